"""How long a prefill-only request will take: the estimators that order a queue (PrefillOnly §6.3).

A request of ``n_input`` tokens, ``n_cached`` of them in the prefix cache, runs alone in one step. Estimators are
exact in integers, so that every machine orders a queue alike.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Protocol

from costmodels.base import CostModel, CostModelError

UNIT = 10**9
"""Coefficients are in units of 10**-9 ns."""

STEP = 1_000
"""Granularity of the profile in tokens (PrefillOnly §6.3)."""

LONGEST_INPUT = 1_000_000
"""More tokens than any model takes; a grid of longer inputs would take minutes to fit."""

SLOPE_LONGEST = 20_000
"""Longest input of the profile from which :func:`ns_per_token` takes the slope."""


class Jct(Protocol):
    """An estimator of the job completion time of a prefill-only request, waiting excluded."""

    @property
    def name(self) -> str:
        """Which of :data:`ESTIMATORS` it is."""
        ...

    def ns(self, n_input: int, n_cached: int) -> int:
        """Return the estimate in nanoseconds; a fit may be negative, which ranks like any other number."""
        ...


@dataclass(frozen=True)
class PerfectJct:
    """The cost model itself."""

    cost: CostModel
    name: str = "perfect"

    def ns(self, n_input: int, n_cached: int) -> int:
        return request_ns(self.cost, n_input, n_cached)


@dataclass(frozen=True)
class FittedJct:
    """``constant + per_input * n_input + per_cached * n_cached + per_square * (n_input² - n_cached²)``, rounded.

    Coefficients are integers in units of 10**-9 ns.
    """

    name: str
    constant: int = 0
    per_input: int = 0
    per_cached: int = 0
    per_square: int = 0

    def ns(self, n_input: int, n_cached: int) -> int:
        fine = self.constant + self.per_input * n_input + self.per_cached * n_cached
        if self.per_square:
            fine += self.per_square * (n_input * n_input - n_cached * n_cached)
        return (2 * fine + UNIT) // (2 * UNIT)


def tokens_jct(cost: CostModel, longest: int, step: int = STEP) -> FittedJct:
    """Return the default proxy: uncached tokens, at :func:`ns_per_token` each."""
    slope = ns_per_token(cost) * UNIT
    return FittedJct("tokens", per_input=slope, per_cached=-slope)


def linear_jct(cost: CostModel, longest: int, step: int = STEP) -> FittedJct:
    """Return the least squares fit of ``1, n_input, n_cached`` to a profile of ``cost``."""
    fit = _fit(cost, longest, step, lambda n, cached: (1, n, cached))
    return FittedJct("linear", *fit)


def attention_jct(cost: CostModel, longest: int, step: int = STEP) -> FittedJct:
    """Return the least squares fit that has attention's ``n_input² - n_cached²`` too."""
    fit = _fit(cost, longest, step, lambda n, cached: (1, n, cached, n * n - cached * cached))
    return FittedJct("attention", *fit)


def perfect_jct(cost: CostModel, longest: int, step: int = STEP) -> PerfectJct:
    """Return the estimator that knows the cost model."""
    return PerfectJct(cost)


ESTIMATORS: dict[str, Callable[[CostModel, int, int], Jct]] = {
    "tokens": tokens_jct,
    "linear": linear_jct,
    "attention": attention_jct,
    "perfect": perfect_jct,
}


def jct_model(name: str, cost: CostModel, longest: int, step: int = STEP) -> Jct:
    """Return the estimator ``name`` of requests of up to ``longest`` tokens on ``cost``.

    Args:
        name: One of ``tokens``, ``linear``, ``attention``, ``perfect``.
        cost: The cost model that is profiled.
        longest: Longest input of the profile, in tokens: the maximum input length, at least 4.
        step: Granularity of the profile in tokens; finer where ``longest`` is less than four of it.

    Raises:
        CostModelError: if there is no such estimator, or ``longest`` or ``step`` is too small.
    """
    if name not in ESTIMATORS:
        near = difflib.get_close_matches(name, ESTIMATORS, 1, 0.5)
        meant = f"; did you mean {near[0]}?" if near else ""
        raise CostModelError(f"unknown JCT estimator {name!r}{meant} (estimators: {', '.join(ESTIMATORS)})")
    return ESTIMATORS[name](cost, longest, step)


def request_ns(cost: CostModel, n_input: int, n_cached: int) -> int:
    """Return the time of a step that prefills the whole rest of one request; at least one token is computed."""
    tokens = max(1, n_input - n_cached)
    context = n_input - tokens
    return cost.step_ns(0, 0, 0, 1, tokens, tokens * context + tokens * (tokens + 1) // 2)


def ns_per_token(cost: CostModel, longest: int = SLOPE_LONGEST, step: int = STEP) -> int:
    """Return what one more uncached token costs: the slope of JCT over uncached tokens in the profile, at least 1.

    It converts λ, which is in tokens per second, for estimators in nanoseconds.
    """
    return max(1, round(_least_squares(cost, longest, step, lambda n, cached: (1, n - cached))[1]))


def profile(longest: int, step: int = STEP) -> Iterator[tuple[int, int]]:
    """Yield the profiled pairs (n_input, n_cached): multiples of ``step``, at least one step of it uncached.

    Raises:
        CostModelError: if ``longest`` is less than 4 or ``step`` less than 1.
    """
    for what, value, least in (("longest", longest, 4), ("step", step, 1)):
        if type(value) is not int or value < least:
            raise CostModelError(f"JCT profile: {what} is {value!r}; it must be a whole number, at least {least}")
    step = min(step, longest // 4)
    for n_input in range(step, longest + 1, step):
        for n_cached in range(0, n_input, step):
            yield n_input, n_cached


Features = Callable[[int, int], tuple[int, ...]]


def _fit(cost: CostModel, longest: int, step: int, features: Features) -> list[int]:
    return [round(x * UNIT) for x in _least_squares(cost, longest, step, features)]


def _least_squares(cost: CostModel, longest: int, step: int, features: Features) -> list[Fraction]:
    """Solve the normal equations exactly."""
    pairs = list(profile(longest, step))
    rows = [(*features(n, cached), request_ns(cost, n, cached)) for n, cached in pairs]
    columns = list(zip(*rows, strict=True))
    *xs, _ = columns
    return _solve([[Fraction(sum(map(int.__mul__, x, y))) for y in columns] for x in xs])


def _solve(rows: Sequence[list[Fraction]]) -> list[Fraction]:
    """Solve a positive definite system, the right side in the last column, by Gauss-Jordan elimination."""
    for i, pivot in enumerate(rows):
        pivot[:] = [value / pivot[i] for value in pivot]
        for j, row in enumerate(rows):
            if j != i:
                row[:] = [value - row[i] * p for value, p in zip(row, pivot, strict=True)]
    return [row[-1] for row in rows]
