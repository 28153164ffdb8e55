"""Runs that differ in nothing but their seed, and what their summaries say together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from experiments.compare import Estimate
from experiments.recorded import Described
from sim.stats import Interval, paired, ranking


@dataclass(frozen=True)
class Group:
    """Runs of one policy on one trace, on different seeds."""

    label: str
    trace: str
    objectives: str
    point: dict[str, Any]
    runs: list[Described]

    def per_seed(self, metric: str) -> list[float | None]:
        """Return a metric of each run."""
        return [run.summary.get(metric) for run in self.runs]

    def estimate(self, metric: str) -> Estimate:
        """Return a metric's mean and interval over seeds."""
        return Estimate.of(self.per_seed(metric))


@dataclass(frozen=True)
class Difference:
    """One metric of two groups on the seeds that both have."""

    group: str
    base: str
    metric: str
    interval: Interval
    seeds: int
    significant: bool


def grouped(runs: Iterable[Described]) -> list[Group]:
    """Return the groups in the order in which their first runs come; the same run given twice counts once."""
    found: dict[tuple[str, ...], dict[Any, Described]] = {}
    for run in runs:
        key = (run.label, run.trace, str(run.objectives), repr(sorted(run.point.items(), key=lambda p: p[0])))
        own = found.setdefault(key, {})
        # Repeats of a real run on one seed are runs of their own; a folder that is given twice is not.
        own.setdefault((run.seed, run.trace_hash, str(run.path.resolve())), run)
    return [
        Group(first.label, first.trace, str(first.objectives), first.point, list(own.values()))
        for own in found.values()
        for first in [next(iter(own.values()))]
    ]


def names_of(groups: Sequence[Group]) -> list[str]:
    """Return what to call each group beside the others: the policy, and more where that is not enough."""
    names: list[str] = []
    for parts in (("label",), ("label", "trace"), ("label", "trace", "objectives")):
        names = [" · ".join(getattr(g, p) for p in parts if getattr(g, p)) for g in groups]
        if len(set(names)) == len(names):
            return names
    return [f"{name} ({i})" for i, name in enumerate(names, 1)]


def differences(groups: Sequence[Group], metrics: Sequence[str]) -> list[Difference]:
    """Return each group's differences from the first one, paired by trace and seed; none where they share no seed."""
    names = names_of(groups)
    found = []
    for name, group in zip(names[1:], groups[1:], strict=True):
        pairs = paired_runs(group, groups[0])
        for metric in metrics:
            both = [(a.summary.get(metric), b.summary.get(metric)) for a, b in pairs]
            both = [(a, b) for a, b in both if a is not None and b is not None]
            if both:
                result = paired([a for a, _ in both], [b for _, b in both])
                found.append(Difference(name, names[0], metric, result.difference, len(both), result.significant))
    return found


def paired_runs(a: Group, b: Group) -> list[tuple[Described, Described]]:
    """Return runs of both groups on equal traces."""
    others = {run.trace_hash: run for run in b.runs}
    return [(run, others[run.trace_hash]) for run in a.runs if run.trace_hash and run.trace_hash in others]


def places(groups: Sequence[Group], metric: str = "goodput") -> list[list[str]] | None:
    """Rank groups that ran on the same traces; see :func:`sim.stats.ranking`. ``None`` where they did not."""
    if len(groups) < 2 or any(len(paired_runs(a, b)) < len(a.runs) for a, b in combinations(groups, 2)):
        return None
    hashes = [run.trace_hash for run in groups[0].runs]
    if len(hashes) < 2 or len(set(hashes)) < len(hashes) or any(len(g.runs) != len(hashes) for g in groups):
        return None
    by_hash = [{run.trace_hash: run.summary.get(metric) for run in g.runs} for g in groups]
    values = {
        name: [own[h] for h in hashes] for name, own in zip(names_of(groups), by_hash, strict=True) if any(own.values())
    }
    return ranking(values) if len(values) > 1 else None
