"""What a search for capacities has found, and what a reader should know of it."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from experiments.capacity.estimate import ratio, surely_higher
from experiments.capacity.search import Capacity, Design
from experiments.cells import Cell
from experiments.compare import run_warnings
from experiments.sweep import SweepResult
from sim.stats import Interval

ESTIMATED = 0.95
"""Confidence of estimates and ratios."""

DEFINITIONS = {
    "attainment": "share of a run's arrived requests that meet every objective, mean over seeds; runs start empty",
    "capacity": "the rate up to which attainment stays at or above a level",
    "holds": "the highest rate tested that surely has at least the level",
    "breaks": "the lowest rate tested that surely has less",
    "confidence": "that capacity lies between the two; t-tests over seeds, Bonferroni over a search's rates and looks",
    "estimate": "where attainment, interpolated between the two over log rate, first falls below the level; jackknife",
    "ratio": "of two estimates, on the same seeds; jackknife of its logarithm, 95 %",
    "surely_higher": "one policy surely holds the level at a rate at which, or above one at which, the other breaks it",
}


@dataclass(frozen=True)
class Found:
    """A policy's capacity at a level."""

    policy: str
    capacity: Capacity
    estimate: Interval
    """In requests per second."""


@dataclass(frozen=True)
class Rates:
    """The rates of a search as the configuration has them, and in requests per second."""

    axis: str
    per_second: float
    """What 1 on the axis is: 1, or the mean rate of a file's own arrivals."""


@dataclass(frozen=True)
class Measured:
    """Capacities, and all that they were found by."""

    sweep: SweepResult
    design: Design
    rates: Rates
    levels: list[float]
    values: dict[str, dict[int, list[float]]]
    """Attainments by policy and place, in order of seed."""
    found: list[Found]
    """By policy, then by level."""

    def rate(self, place: int | None) -> float | None:
        """Return the rate of a place, in requests per second."""
        return None if place is None else self.design.grid.rate(place) * self.rates.per_second

    @property
    def policies(self) -> list[str]:
        """In the order in which they were given."""
        return list(self.values)

    @property
    def seeded(self) -> bool:
        """Whether there is more than one trace, so that there is a confidence."""
        return self.design.seeds > 1

    def of(self, policy: str, level: float) -> Found:
        """Return what was found for a policy at a level."""
        return next(f for f in self.found if f.policy == policy and f.capacity.level == level)

    def versus(self, a: Found, b: Found) -> Interval:
        """Return the ratio of two policies' capacities at a level, with its interval on common seeds."""
        own, other = ((f.capacity, self.values[f.policy]) for f in (a, b))
        return ratio(own, other, self.design.grid, ESTIMATED)

    @property
    def warnings(self) -> list[str]:
        """What a reader should know before believing the rates that hold."""
        held = {(f.policy, self.design.grid.rate(f.capacity.holds)) for f in self.found if f.capacity.holds is not None}
        experiment = self.sweep.experiment
        cells = tuple(c for c in experiment.cells if (c.label, c.point[0][1]) in held)
        at_those = dataclasses.replace(self.sweep, experiment=dataclasses.replace(experiment, cells=cells))
        runs = run_warnings(at_those) if cells else []
        alone = [] if self.seeded else [_one_trace(experiment.cells[0])]
        return [*alone, *(f"at the rates that hold, {text}" for text in runs), *self._notes()]

    def _notes(self) -> list[str]:
        notes = []
        for f in self.found:
            c, who = f.capacity, f"{f.policy} at {100 * f.capacity.level:g} %"
            if c.rises is not None:
                low, high = (f"{self.rate(place):.4g}" for place in c.rises)
                notes.append(
                    f"{who}: attainment does not fall with the rate: {low} requests/s surely breaks the level, {high} "
                    "surely holds it; the interval is the lowest one found where it is crossed, and there may be others"
                )
            if c.spent:
                notes.append(f"{who}: the search ended early, having visited as many rates as its confidence is for")
        return notes

    def document(self) -> dict[str, Any]:
        """Return the JSON form."""
        cell = self.sweep.experiment.cells[0]
        return {
            "trace": cell.source.label,
            "requests": cell.requests,
            "objectives": str(cell.objectives),
            "axis": self.rates.axis,
            "confidence": self.design.confidence if self.seeded else None,
            "most_seeds": self.design.seeds,
            "looks": self.design.looks,
            "range": [self.rate(0), self.rate(self.design.grid.size)],
            "step": self.design.grid.ratio,
            "runs": len(self.sweep.experiment.cells),
            "capacities": [self._entry(f) for f in self.found],
            "paired": self._paired(),
            "warnings": self.warnings,
            "failures": self.sweep.failure_lines,
            "definitions": DEFINITIONS,
            "cost_model": cell.cost.to_dict(),
            "package": cell.resolved()["package"],
        }

    def _entry(self, found: Found) -> dict[str, Any]:
        c = found.capacity
        return {
            "policy": found.policy,
            "level": c.level,
            "holds": self.rate(c.holds),
            "breaks": self.rate(c.breaks),
            "estimate": found.estimate.mean,
            "estimate_ci95": found.estimate[1:],
            "rates": c.visited,
            "runs": sum(map(len, self.values[found.policy].values())),
            "rises": None if c.rises is None else [self.rate(place) for place in c.rises],
        }

    def _paired(self) -> list[dict[str, Any]]:
        rows = []
        for level in self.levels:
            first, *others = (self.of(policy, level) for policy in self.policies)
            for other in others:
                found = self.versus(other, first)
                rows.append(
                    {
                        "level": level,
                        "a": other.policy,
                        "b": first.policy,
                        "ratio": found.mean,
                        "ci95": found[1:],
                        "surely_higher": surely_higher(other.capacity, first.capacity),
                        "surely_lower": surely_higher(first.capacity, other.capacity),
                    }
                )
        return rows


def _one_trace(cell: Cell) -> str:
    return (
        f"{cell.source.label} has arrivals of its own, made denser or sparser: the capacity is that of this one trace "
        "and has no confidence; --rate R gives Poisson arrivals that differ by seed"
    )
