"""Capacity as a number, and two policies' capacities compared on the same seeds.

From a rate that surely holds a level of attainment to one that surely breaks it, attainment is taken to run in straight
lines over the logarithm of the rate, from each rate that was run to the next. Where it first falls below the level is
the estimate. Intervals are Student's over the pseudo-values of its logarithm with one seed left out (jackknife);
policies are compared by the ratio of their estimates, seed by seed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from experiments.capacity.search import Capacity, Grid, Values
from sim.stats import Interval, t_interval

FloatArray = NDArray[np.float64]


def points_of(capacity: Capacity, values: Values) -> list[int]:
    """Return the places from the one that holds to the one that breaks, empty where one of them is missing."""
    if capacity.holds is None or capacity.breaks is None:
        return []
    return sorted(place for place in values if capacity.holds <= place <= capacity.breaks)


def crossing(log_rates: FloatArray, attainment: FloatArray, level: float) -> float:
    """Return the logarithm of the rate at which attainment first falls below the level.

    The first rate where it is below from there on, the last one where it never is.

    Args:
        log_rates: increasing, shape (rates,).
        attainment: at these rates, shape (rates,).
        level: from 0 to 1.
    """
    below = np.flatnonzero(attainment < level)
    if not len(below) or below[0] == 0:
        return float(log_rates[0 if len(below) else -1])
    k = int(below[0])
    share = (attainment[k - 1] - level) / (attainment[k - 1] - attainment[k])
    return float(log_rates[k - 1] + share * (log_rates[k] - log_rates[k - 1]))


def estimate(capacity: Capacity, values: Values, grid: Grid, confidence: float) -> Interval:
    """Return the rate at which attainment crosses the level, and its interval over seeds."""
    return _jackknife([(capacity, values)], grid, confidence)


def ratio(a: tuple[Capacity, Values], b: tuple[Capacity, Values], grid: Grid, confidence: float) -> Interval:
    """Return how many times as high ``a``'s capacity is as ``b``'s, and the interval over the seeds of both."""
    return _jackknife([a, b], grid, confidence)


def surely_higher(a: Capacity, b: Capacity) -> bool:
    """Return whether ``a`` surely holds the level at a rate at which ``b`` surely breaks it, or a higher one."""
    return a.holds is not None and b.breaks is not None and a.holds >= b.breaks


def _jackknife(found: Sequence[tuple[Capacity, Values]], grid: Grid, confidence: float) -> Interval:
    """Return the first estimate, divided by the second where there is one, with its interval."""
    places = [points_of(capacity, values) for capacity, values in found]
    if not all(places):
        return Interval(None, None, None)
    seeds = min(len(values[p]) for (_, values), own in zip(found, places, strict=True) for p in own)
    tables = [
        (np.log([grid.rate(p) for p in own]), np.array([values[p][:seeds] for p in own]), capacity.level)
        for (capacity, values), own in zip(found, places, strict=True)
    ]

    def statistic(kept: NDArray[np.intp]) -> float:
        first, *second = (crossing(x, y[:, kept].mean(axis=1), level) for x, y, level in tables)
        return first - sum(second)

    every = np.arange(seeds)
    whole = statistic(every)
    left_out = [statistic(np.delete(every, s)) for s in range(seeds)] if seeds > 1 else []
    spread = t_interval([seeds * whole - (seeds - 1) * v for v in left_out], confidence)
    if spread.lo is None or spread.hi is None:
        return Interval(math.exp(whole), None, None)
    # The pseudo-values give the width; the statistic of all seeds stays the estimate.
    half = (spread.hi - spread.lo) / 2
    return Interval(math.exp(whole), math.exp(whole - half), math.exp(whole + half))
