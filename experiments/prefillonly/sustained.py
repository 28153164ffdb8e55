"""How many times the QPS PrefillOnly sustains at equal latency: the paper's "1.4 to 4.0 times", defined.

Fixed before any ratio was looked at:

- A system's curve is its latency (mean, or P99, of a run; then the mean over seeds) over the rates of Figure 6, with
  straight lines between them where both axes are logarithmic. It sustains a rate up to the first at which the curve
  exceeds the level.
- The level is PrefillOnly's own latency at x/2, x and 2x, where x is its throughput with the whole dataset at once.
  The ratio that counts is that at x; the other two show how far it depends on the level.
- A baseline whose curve lies above the level from the lowest rate on, or below it to the highest, gives a bound: the
  ratio is at least, or at most, what that rate makes it.
- The interval is Student's over the pseudo-values of the logarithm of the ratio with one seed left out (jackknife), at
  95 %. Seeds are paired: all systems see the same requests.

Changed after a first look: the numerator is the rate at which the level was read, not the first at which
PrefillOnly's own curve exceeds it. For a rising curve that is the same; with shuffled requests PrefillOnly's latency
falls again where more requests wait, for it then has more to group.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from experiments.prefillonly.grid import Grid, Point
from experiments.prefillonly.systems import PREFILLONLY
from experiments.tables import Rows
from sim.stats import Interval, paired, t_interval

FloatArray = NDArray[np.float64]

LEVELS = (0.5, 1.0, 2.0)
"""Rates, in units of x, at which PrefillOnly's latency is the level."""

MAIN_LEVEL = 1.0

CLAIM = (1.4, 4.0)
"""The paper's range of ratios (abstract and §7.2)."""

LATENCIES = {"mean": "jct_mean_ms", "P99": "jct_p99_ms"}


@dataclass(frozen=True)
class Sustained:
    """The rate that a curve sustains at a level, or a ratio of such rates."""

    qps: float
    bound: str
    """Empty; ``<`` where it is at most so much, since the curve is above the level from the lowest rate on; ``>`` where
    it is at least so much, since the curve never exceeds the level."""


def sustained(qps: FloatArray, latency: FloatArray, level: float) -> Sustained:
    """Return the rate up to which ``latency`` stays at or below ``level``.

    Args:
        qps: rates, shape (rates,), increasing.
        latency: at these rates, shape (rates,), above 0.
        level: above 0.
    """
    above = np.flatnonzero(latency > level)
    if not len(above):
        return Sustained(float(qps[-1]), ">")
    k = int(above[0])
    if k == 0:
        return Sustained(float(qps[0]), "<")
    share = np.log(level / latency[k - 1]) / np.log(latency[k] / latency[k - 1])
    return Sustained(float(qps[k - 1] * (qps[k] / qps[k - 1]) ** share), "")


def crossing(qps: FloatArray, latency: FloatArray, other: FloatArray) -> Sustained:
    """Return the rate up to which ``latency`` stays below ``other``'s, read as :func:`sustained` reads a curve."""
    return sustained(qps, latency / other, 1.0)


def log_interval(
    per_seed: FloatArray, statistic: Callable[[FloatArray], Sustained], confidence: float = 0.95
) -> tuple[Interval, str]:
    """Return a positive statistic of all seeds, its interval by the jackknife of its logarithm, and its bound.

    Args:
        per_seed: seeds first.
        statistic: of some of the seeds.
        confidence: of the interval, which is missing where the statistic is a bound or there is one seed.
    """
    whole = statistic(per_seed)
    n = len(per_seed)
    if whole.bound or n < 2:
        return Interval(whole.qps, None, None), whole.bound
    left_out = [statistic(np.delete(per_seed, s, axis=0)).qps for s in range(n)]
    spread = t_interval([n * np.log(whole.qps) - (n - 1) * np.log(v) for v in left_out], confidence)
    assert spread.lo is not None
    assert spread.hi is not None
    # The pseudo-values give the width; the statistic of all seeds stays the estimate.
    factor = float(np.exp((spread.hi - spread.lo) / 2))
    return Interval(whole.qps, whole.qps / factor, whole.qps * factor), ""


def qps_ratio(qps: FloatArray, ours: FloatArray, theirs: FloatArray, at: int) -> tuple[Interval, str]:
    """Return the ratio of the rates sustained at the latency that ``ours`` has at rate number ``at``, and its bound.

    The bound is empty, or ``>`` or ``<`` where the ratio is at least or at most so much.

    Args:
        qps: shape (rates,), increasing.
        ours: latencies, shape (seeds, rates).
        theirs: likewise, of the same seeds.
        at: index of a rate.
    """

    def ratio(kept: FloatArray) -> Sustained:
        mine, other = kept.mean(axis=0)
        level = float(mine[at])
        found = sustained(qps, other, level)
        return Sustained(float(qps[at]) / found.qps, {"<": ">", ">": "<", "": ""}[found.bound])

    return log_interval(np.stack([ours, theirs], axis=1), ratio)


def curves(grid: Grid, point: Point, metric: str) -> FloatArray:
    """Return a metric of every seed at every rate, shape (seeds, rates)."""
    return np.column_stack([grid.per_seed(point, multiple, metric) for multiple in grid.multiples])


def ratio_rows(grid: Grid) -> Rows:
    """Return the ratios of every baseline that fits, at equal mean and at equal P99 latency, at all levels.

    ``verdict`` says where the interval lies: ``within`` the paper's range, ``below`` or ``above`` it, or ``unclear``
    where it overlaps. Rows of metric ``throughput`` are the ratio of throughputs with the whole dataset at once, for
    shuffled requests at the highest rate.
    """
    rows: Rows = []
    for setup, workload in grid.pairs():
        best = Point(setup, workload, PREFILLONLY)
        qps = np.array(grid.qps(best))
        for system in grid.systems(setup, workload):
            if system == PREFILLONLY:
                continue
            other = Point(setup, workload, system)
            for name, metric in LATENCIES.items():
                for level in LEVELS:
                    ours, at = curves(grid, best, metric), grid.multiples.index(level)
                    found, bound = qps_ratio(qps, ours, curves(grid, other, metric), at)
                    rows.append(_row(other, name, level, float(ours[:, at].mean()) / 1e3, found, bound))
            logs = t_interval(np.log(_throughput(grid, best)) - np.log(_throughput(grid, other)))
            spread = Interval(*(None if v is None else float(np.exp(v)) for v in logs))
            rows.append(_row(other, "throughput", None, None, spread, ""))
    return rows


def _throughput(grid: Grid, point: Point) -> list[float]:
    return grid.capacity(point) or grid.per_seed(point, grid.multiples[-1], "throughput")


def _row(
    point: Point, metric: str, level: float | None, level_s: float | None, found: Interval, bound: str
) -> dict[str, object]:
    return {
        **point._asdict(),
        "metric": metric,
        "level_at": level,
        "level_s": level_s,
        "ratio": found.mean,
        "lo": found.lo,
        "hi": found.hi,
        "bound": bound,
        "verdict": _verdict(found, bound),
    }


def _verdict(found: Interval, bound: str) -> str:
    assert found.mean is not None
    lo = found.mean if found.lo is None else found.lo
    hi = found.mean if found.hi is None else found.hi
    lo, hi = (0.0 if bound == "<" else lo), (np.inf if bound == ">" else hi)
    if hi < CLAIM[0] or lo > CLAIM[1]:
        return "below" if hi < CLAIM[0] else "above"
    return "within" if CLAIM[0] <= lo and hi <= CLAIM[1] else "unclear"


def low_load_rows(grid: Grid, setup: str = "h100-nvlink", workload: str = "post-recommendation") -> Rows:
    """Return tensor parallelism's latency less PrefillOnly's at every rate, paired by seed (§7.2: lower at low QPS)."""
    tensor, ours = (Point(setup, workload, system) for system in ("tensor", PREFILLONLY))
    rows: Rows = []
    for multiple, qps in zip(grid.multiples, grid.qps(ours), strict=True):
        for name, metric in LATENCIES.items():
            a, b = (grid.per_seed(point, multiple, metric) for point in (tensor, ours))
            difference = paired(a, b).difference
            rows.append(
                {
                    "setup": setup,
                    "workload": workload,
                    "multiple": multiple,
                    "qps": qps,
                    "metric": name,
                    "tensor_s": float(np.mean(a)) / 1e3,
                    "prefillonly_s": float(np.mean(b)) / 1e3,
                    "difference_s": None if difference.mean is None else difference.mean / 1e3,
                    "lo": None if difference.lo is None else difference.lo / 1e3,
                    "hi": None if difference.hi is None else difference.hi / 1e3,
                }
            )
    return rows
