"""End to end: latencies and goodput of simulated runs against those of a real engine, with the engine's own spread."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpu_runner.validate.tolerances import FIGURES, SPREADS, STATISTICS, Tolerances, ValidationError
from policies.units import MS, NS
from sim.gaps import last_token_steps, pauses_of, token_spans
from sim.metrics import met
from sim.objectives import Objectives
from sim.records import FINISHED, NULL, UNFINISHED, Columns
from sim.replicas import by_replica, first_token_steps

FloatArray = NDArray[np.float64]

FEWEST_REPEATS = 3
"""Fewer repeats say nothing about their spread."""

KEPT_UP = 0.95
"""Where a rate is stable, at least this share of the arrivals in a run's second half leave in that time."""


@dataclass(frozen=True, eq=False)
class Sample:
    """What one run's requests saw, whichever host it ran on."""

    times: Mapping[str, FloatArray]
    """By name in ``TIMES``, in milliseconds, one value per request or, for ``itl``, per gap; empty where not measured.

    ``tpot`` is a request's mean gap.
    """
    goodput: float | None = None
    """Requests that met every objective, per second from first arrival to last finish."""

    @property
    def figures(self) -> dict[str, float | None]:
        """The numbers of ``FIGURES``; ``None`` where nothing was measured."""
        found: dict[str, float | None] = dict.fromkeys(FIGURES)
        for name, values in self.times.items():
            if len(values):
                numbers = [values.mean(), *np.percentile(values, [50, 90, 99])]
                found |= {f"{name}_{s}": float(v) for s, v in zip(STATISTICS, numbers, strict=True)}
        return {**found, "goodput": self.goodput}


def sample_of(requests: Columns, steps: Columns, preemptions: Columns, objectives: Objectives) -> Sample:
    """Return the sample of a run's tables; without steps there are no gaps between single tokens."""
    done = requests["outcome"] == FINISHED
    ttft, tpot = requests["ttft_ns"], requests["tpot_mean_ns"]
    times = {
        "ttft": ttft[ttft != NULL] / MS,
        "tpot": tpot[~np.isnan(tpot)] / MS,
        "itl": _gaps(requests, steps, preemptions) / MS,
        "jct": requests["jct_ns"][done] / MS,
    }
    goodput = None
    if done.any():
        duration = int(requests["finished_ns"][done].max() - requests["arrival_ns"].min())
        goodput = float(np.count_nonzero(met(requests, objectives)) * NS / duration) if duration else None
    return Sample(times, goodput)


def _gaps(requests: Columns, steps: Columns, preemptions: Columns) -> FloatArray:
    """Return all gaps between two tokens of a request, in nanoseconds."""
    parts = [np.empty(0)]
    if not len(steps["start_ns"]):
        return parts[0]
    for own_requests, own_steps, own_preemptions in by_replica(requests, steps, preemptions):
        ends = own_steps["start_ns"] + own_steps["duration_ns"]
        first, pauses = first_token_steps(own_requests, own_steps), pauses_of(own_preemptions)
        spans = token_spans(first, last_token_steps(first, own_requests["generated_tokens"], pauses), pauses)
        gaps = np.diff(ends)
        parts += [gaps[a:b] for a, b in zip(spans["first"].tolist(), spans["last"].tolist(), strict=True)]
        parts.append(ends[pauses["until"]] - ends[pauses["after"]])
    return np.concatenate(parts).astype(np.float64)


@dataclass(frozen=True)
class Row:
    """One figure of both sides."""

    figure: str
    measured: float | None
    """Mean over the engine's repeats."""
    simulated: float | None
    """Mean over the simulated runs."""
    spread: float | None
    """Standard deviation of the engine's repeats, a share of their mean; ``None`` for fewer than three."""
    tolerance: float

    @property
    def error(self) -> float | None:
        """``simulated / measured - 1``; ``None`` where one side has nothing, or 0 was measured."""
        if not self.measured or self.simulated is None:
            return None
        return self.simulated / self.measured - 1

    @property
    def allowed(self) -> float:
        """The tolerance, or two spreads where that is more."""
        return max(self.tolerance, SPREADS * (self.spread or 0.0))

    @property
    def within(self) -> bool | None:
        """Whether the error is allowed; ``None`` where nothing was measured."""
        if self.measured is None:
            return None
        return self.measured == self.simulated if self.error is None else abs(self.error) <= self.allowed

    def to_dict(self) -> dict[str, Any]:
        """Return everything, as JSON can say it."""
        return {
            "figure": self.figure,
            "measured": self.measured,
            "simulated": self.simulated,
            "error": self.error,
            "spread": self.spread,
            "allowed": self.allowed,
            "within": self.within,
        }


def compare(
    measured: Sequence[Mapping[str, float | None]],
    simulated: Sequence[Mapping[str, float | None]],
    tolerances: Tolerances,
    names: Iterable[str] = FIGURES,
) -> list[Row]:
    """Compare figures of an engine's repeats with those of simulated runs, in the order of ``names``.

    Figures that neither side has are left out.

    Raises:
        ValidationError: if one side has no run.
    """
    if not (measured and simulated):
        raise ValidationError("a comparison needs at least one measured and one simulated run")
    rows = []
    for name in names:
        real, ours = ([v for run in runs if (v := run.get(name)) is not None] for runs in (measured, simulated))
        if not (real or ours):
            continue
        mean = float(np.mean(real)) if real else None
        spread = None
        if mean and len(real) >= FEWEST_REPEATS:
            spread = float(np.std(real, ddof=1)) / abs(mean)
        rows.append(Row(name, mean, float(np.mean(ours)) if ours else None, spread, tolerances.of(name)))
    return rows


def keeps_up(requests: Columns) -> bool:
    """Return whether a run's rate is stable: in the second half of its arrivals as many leave as come, but for 5 %.

    Requests that were turned away neither come nor leave.
    """
    arrival = requests["arrival_ns"]
    if not len(arrival):
        return True
    last = int(arrival.max())
    middle = (int(arrival.min()) + last) // 2
    kept = (requests["outcome"] == FINISHED) | (requests["outcome"] == UNFINISHED)
    come = np.count_nonzero(kept & (arrival > middle))
    finished = requests["finished_ns"]
    leave = np.count_nonzero(kept & (finished > middle) & (finished <= last))
    return bool(leave >= KEPT_UP * come)


def knee(stable: Mapping[float, Sequence[bool]]) -> float | None:
    """Return the largest rate up to which most repeats of every rate were stable; ``None`` if there is none.

    Args:
        stable: by rate, whether each repeat was.
    """
    best = None
    for rate in sorted(stable):
        if 2 * sum(stable[rate]) <= len(stable[rate]):
            break
        best = rate
    return best
