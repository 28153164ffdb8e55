"""Attainment and goodput at any objectives, from what a run's requests have got; no run is repeated.

A request's TTFT and its own P99 gap between tokens say which pairs of objectives it meets, so one run of a policy gives
the whole surface over (TTFT, TPOT) objectives. That is the surface of a policy as it was run: one that reads the
objectives, as deadline-filling chunkings do, would have decided differently under others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from experiments.config import ConfigError
from policies.units import MS, NS
from sim.objectives import Objectives
from sim.records import FINISHED, NULL, Columns
from traces.schema import IntArray

FloatArray = NDArray[np.float64]

HUNDREDTHS = 100
"""A P99 of whole nanoseconds is a whole number of hundredths of one; so compared it loses nothing to rounding."""

STEPS = 24
"""Objectives of each kind on a surface, by default."""


@dataclass(frozen=True)
class Surface:
    """How many requests of a run meet each pair of objectives."""

    ttft_ns: IntArray
    """Shape (ttft,), increasing."""
    tpot_ns: IntArray
    """Shape (tpot,), increasing."""
    met: IntArray
    """Shape (ttft, tpot)."""
    arrived: int
    duration_ns: int
    """First arrival to last finish; 0 where nothing finished."""

    @property
    def attainment(self) -> FloatArray:
        """Shares of arrived requests, shape (ttft, tpot)."""
        shares: FloatArray = (self.met / max(self.arrived, 1)).astype(np.float64)
        return shares

    @property
    def goodput(self) -> FloatArray:
        """Requests per second, shape (ttft, tpot); 0 where nothing finished."""
        rates: FloatArray = self.met.astype(np.float64) * (NS / self.duration_ns if self.duration_ns else 0.0)
        return rates


def surface(requests: Columns, ttft_ns: IntArray, tpot_ns: IntArray) -> Surface:
    """Return how many requests finish with TTFT and P99 TPOT at most as large as each pair of objectives.

    One output token meets any TPOT objective. Objectives that requests have of their own are not looked at.

    Args:
        requests: a run's table.
        ttft_ns: objectives, shape (ttft,), increasing.
        tpot_ns: likewise, shape (tpot,).
    """
    finished = requests["outcome"] == FINISHED
    p99 = np.nan_to_num(requests["tpot_p99_ns"][finished] * HUNDREDTHS, nan=0.0)
    row = np.searchsorted(ttft_ns, requests["ttft_ns"][finished])
    column = np.searchsorted(tpot_ns * HUNDREDTHS, np.rint(p99).astype(np.int64))
    counts = np.zeros((len(ttft_ns) + 1, len(tpot_ns) + 1), dtype=np.int64)
    np.add.at(counts, (row, column), 1)
    met = counts.cumsum(axis=0).cumsum(axis=1)[:-1, :-1]
    return Surface(ttft_ns, tpot_ns, met, len(finished), duration_ns(requests))


def duration_ns(requests: Columns) -> int:
    """Return the time from the first arrival to the last finish, 0 where nothing finished."""
    finished = requests["finished_ns"][requests["outcome"] == FINISHED]
    return int(finished.max() - requests["arrival_ns"].min()) if len(finished) else 0


def objective_grid(runs: Sequence[Columns], column: str, steps: int = STEPS) -> IntArray:
    """Return objectives at which runs differ: from what the luckiest hundredth gets to what nearly all get.

    On a logarithmic scale, in whole microseconds; a single one where nothing was measured or all is equal.
    """
    values = np.concatenate([run[column][(run["outcome"] == FINISHED) & (run[column] > 0)] for run in runs])
    if not len(values):
        return np.array([MS], dtype=np.int64)
    low, high = np.percentile(values, [1, 99.5])
    grid = np.geomspace(max(low, 1_000), max(high, 1_000) * 1.02, steps) / 1_000
    return np.unique(np.ceil(grid).astype(np.int64) * 1_000)


def parse_objectives(option: str, text: str, steps: int = STEPS) -> IntArray:
    """Read ``LOW:HIGH`` or ``A,B,C`` in milliseconds, as increasing nanoseconds.

    Raises:
        ConfigError: if it has another form, or a number is not positive.
    """
    parts = text.split(":") if ":" in text else text.split(",")
    try:
        values = [float(part) for part in parts]
    except ValueError:
        values = []
    usable = bool(values) and all(1e-3 <= v <= 1e12 for v in values) and (":" not in text or len(values) == 2)
    if not usable or (":" in text and values[0] >= values[1]):
        raise ConfigError(f"{option} {text!r} should read LOW:HIGH or A,B,... in ms, like 100:2000")
    if ":" in text:
        values = np.geomspace(values[0], values[1], steps).tolist()
    return np.unique(np.rint(np.array(values) * MS).astype(np.int64))


def overshoot(requests: Columns, objectives: Objectives) -> FloatArray:
    """Return by what share each request overshoots the objective it misses most; at most 0 where it meets all.

    Shape (requests,); infinite for those that did not finish. A request's own objectives take the place of
    ``objectives.ttft`` and ``objectives.tpot_p99``; one output token meets any TPOT objective.
    """
    n = len(requests["outcome"])
    most = np.full(n, -1.0)
    gaps = np.maximum(requests["generated_tokens"] - 1, 1)
    decoding = (requests["finished_ns"] - requests["first_token_ns"]) / gaps
    for values, bound in (
        (requests["ttft_ns"], _own(requests["slo_ttft_ns"], objectives.ttft)),
        (
            np.rint(requests["tpot_p99_ns"] * HUNDREDTHS) / HUNDREDTHS,
            _own(requests["slo_tpot_ns"], objectives.tpot_p99),
        ),
        (decoding, _own(None, objectives.tpot)),
        (requests["itl_max_ns"], _own(None, objectives.itl_max)),
        (requests["jct_ns"], _own(None, objectives.jct)),
    ):
        if bound is not None:
            np.fmax(most, values / bound - 1, out=most)
    most[requests["outcome"] != FINISHED] = np.inf
    return most


def credit(overshoots: FloatArray, width: float) -> FloatArray:
    """Return what each request counts under a soft step: 1 on time, 0 late by ``width`` or more, a line between.

    Args:
        overshoots: see :func:`overshoot`.
        width: a share of the objective; 0 is the hard step.
    """
    if width == 0:
        return (overshoots <= 0).astype(np.float64)
    return np.clip(1 - np.maximum(overshoots, 0.0) / width, 0.0, 1.0)


def _own(own: IntArray | None, default: int | None) -> FloatArray | float | None:
    """Return each request's objective, infinite where it has none; ``None`` where nobody has any."""
    shared = np.inf if default is None else float(default)
    if own is not None and (own != NULL).any():
        return np.where(own != NULL, own, shared)
    return None if default is None else shared
