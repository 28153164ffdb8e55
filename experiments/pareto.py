"""Policies against each other: who is dominated in latency and goodput, and what other measures of goodput say.

Everything is read from folders of runs that are there already, at any objectives.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from experiments.compare import Estimate
from experiments.config import ConfigError
from experiments.recorded import Described, Recorded, Swept, read_any, read_recorded
from experiments.surface import credit, duration_ns, overshoot
from experiments.tables import Rows
from experiments.webreport.groups import Group, grouped
from policies.units import NS
from sim.metrics import met
from sim.objectives import Objectives
from sim.records import FINISHED, Columns
from sim.stats import paired

FloatArray = NDArray[np.float64]

CRITERIA = {"ttft_p99_ms": -1, "tpot_p99_ms": -1, "goodput": 1}
"""What a policy is judged by: -1 where less is better, 1 where more is."""

KEPT = (
    *("arrival_ns", "first_token_ns", "finished_ns", "generated_tokens", "outcome", "ttft_ns", "tpot_p99_ns"),
    *("itl_max_ns", "jct_ns", "slo_ttft_ns", "slo_tpot_ns"),
)
"""Columns of the requests table that are kept in memory."""

DEFINITIONS = {
    "goodput": "requests that meet every objective / (first arrival to last finish), per second",
    "soft_goodput": "the same with a soft step: a request late by a share x of the objective it misses most counts "
    "1 - x/width, none below 0",
    "lateness": "by what share a finished request overshoots the objective it misses most, 0 where it meets all; mean",
    "ttft_p99_ms": "P99 of TTFT over requests",
    "tpot_p99_ms": "P99 over requests of each request's own P99 gap between tokens",
    "front": "no other policy at the same point is at least as good in the means of all of these and better in one",
    "surely": "each difference in which the dominating policy is better is one that a paired 95 % interval confirms",
}


@dataclass(frozen=True)
class Case:
    """One policy at one point of a sweep, with what every request of every seed got."""

    group: Group
    requests: list[Columns]
    """By run of the group."""
    objectives: Objectives

    @property
    def policy(self) -> str:
        """As the user wrote it."""
        return self.group.label

    @property
    def place(self) -> tuple[str, str]:
        """What tells this point from others: trace, and the values of the axes."""
        at = ", ".join(f"{axis.rpartition('.')[2]}={value}" for axis, value in self.group.point.items())
        return self.group.trace, at

    def goodput(self) -> list[float | None]:
        """Return, by seed, requests per second that meet every objective."""
        return [_per_second(run, met(run, self.objectives).astype(np.float64)) for run in self.requests]

    def soft_goodput(self, width: float) -> list[float | None]:
        """Return, by seed, goodput with a step that is ``width`` wide; see :func:`experiments.surface.credit`."""
        return [_per_second(run, credit(overshoot(run, self.objectives), width)) for run in self.requests]

    def lateness(self) -> list[float | None]:
        """Return, by seed, the mean overshoot of finished requests; ``None`` where none has finished."""
        late = [np.maximum(overshoot(run, self.objectives)[run["outcome"] == FINISHED], 0.0) for run in self.requests]
        return [float(values.mean()) if len(values) else None for values in late]

    def criterion(self, name: str) -> list[float | None]:
        """Return, by seed, one of :data:`CRITERIA`."""
        return self.goodput() if name == "goodput" else self.group.per_seed(name)


@dataclass(frozen=True)
class Standing:
    """Where a policy stands among those at its point."""

    case: Case
    estimates: dict[str, Estimate]
    """By criterion, and ``soft_goodput`` and ``lateness``."""
    dominated_by: str | None
    surely: bool

    @property
    def front(self) -> bool:
        """Whether no other dominates it."""
        return self.dominated_by is None


def read_cases(paths: Sequence[Path], objectives: Objectives | None) -> list[Case]:
    """Read runs and sweeps.

    Args:
        paths: folders.
        objectives: in place of the runs' own.

    Raises:
        StoreError: if one is neither, damaged, or a sweep that kept no tables.
        ConfigError: if there is no run that succeeded.
    """
    described: list[Described] = []
    for path in paths:
        read = read_any(path)
        described += read.cells if isinstance(read, Swept) else read
    if not described:
        raise ConfigError(f"{', '.join(map(str, paths))} has no run that succeeded")
    return [
        Case(group, [_kept(run) for run in group.runs], group.runs[0].objectives if objectives is None else objectives)
        for group in grouped(described)
    ]


def _kept(run: Described) -> Columns:
    tables = (run if isinstance(run, Recorded) else read_recorded(run.path)).tables
    return {name: tables.requests[name] for name in KEPT}


def _per_second(run: Columns, counts: FloatArray) -> float | None:
    duration = duration_ns(run)
    return float(counts.sum()) * NS / duration if duration else None


def points(cases: Sequence[Case]) -> dict[tuple[str, str], list[Case]]:
    """Return the cases by where they are, in the order in which they come."""
    found: dict[tuple[str, str], list[Case]] = {}
    for case in cases:
        found.setdefault(case.place, []).append(case)
    return found


def standings(cases: Sequence[Case], width: float) -> list[Standing]:
    """Return where each policy stands among those at the same point.

    Args:
        cases: of one or several points.
        width: of the soft step.
    """
    result = []
    for own in points(cases).values():
        values = [{name: case.criterion(name) for name in CRITERIA} for case in own]
        used = [name for name in CRITERIA if any(v is not None for seeds in values for v in seeds[name])]
        for i, case in enumerate(own):
            dominating = [j for j in range(len(own)) if j != i and _dominates(values[j], values[i], used)]
            sure = [j for j in dominating if _surely(own[j], case, values[j], values[i], used)]
            by = next(iter(sure or dominating), None)
            estimates = {name: Estimate.of(values[i][name]) for name in CRITERIA}
            estimates["soft_goodput"] = Estimate.of(case.soft_goodput(width))
            estimates["lateness"] = Estimate.of(case.lateness())
            result.append(Standing(case, estimates, None if by is None else own[by].policy, bool(sure)))
    return result


def _dominates(a: dict[str, list[float | None]], b: dict[str, list[float | None]], used: Sequence[str]) -> bool:
    """Return whether the means of ``a`` are nowhere worse than those of ``b``, and somewhere better."""
    better = [_advantage(a, b, name) for name in used]
    return all(d is not None and d >= 0 for d in better) and any(d for d in better)


def _advantage(a: dict[str, list[float | None]], b: dict[str, list[float | None]], name: str) -> float | None:
    x, y = (Estimate.of(values[name]).mean for values in (a, b))
    return None if x is None or y is None else CRITERIA[name] * (x - y)


def _surely(
    a: Case,
    b: Case,
    mine: dict[str, list[float | None]],
    theirs: dict[str, list[float | None]],
    used: Sequence[str],
) -> bool:
    others = {run.trace_hash: j for j, run in enumerate(b.group.runs)}
    shared = [(i, others[run.trace_hash]) for i, run in enumerate(a.group.runs) if run.trace_hash in others]
    for name in used:
        if not _advantage(mine, theirs, name):
            continue
        if not paired([mine[name][i] for i, _ in shared], [theirs[name][j] for _, j in shared]).significant:
            return False
    return True


def front_rows(found: Sequence[Standing], width: float) -> Rows:
    """Return one flat row per policy and point."""
    rows = []
    for standing in found:
        trace, at = standing.case.place
        row: dict[str, Any] = {"trace": trace, "point": at, "policy": standing.case.policy}
        row["objectives"] = str(standing.case.objectives)
        row["seeds"] = len(standing.case.requests)
        for name, estimate in standing.estimates.items():
            lo, hi = estimate.ci95 or (None, None)
            row |= {name: estimate.mean, f"{name}_lo": lo, f"{name}_hi": hi}
        row |= {"soft_width": width, "front": standing.front, "dominated_by": standing.dominated_by}
        row["surely"] = None if standing.front else standing.surely
        rows.append(row)
    return rows
