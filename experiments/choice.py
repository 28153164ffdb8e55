"""Which policy to choose where: the best at every point of a sweep, and whether it is surely better than all others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from experiments.compare import Estimate
from experiments.config import ConfigError, suggest
from experiments.recorded import Swept
from experiments.tables import Rows
from experiments.webreport.groups import Group, grouped, paired_runs
from sim.stats import Interval, holm, p_value, paired

CONFIDENCE = 0.95

PREFERRED = ("rate", "trace.rate", "rate_scale", "trace.rate_scale", "tpot")
"""Axes that go across and up rather than into panels."""

DEFINITIONS = {
    "best": "the policy of the best mean over seeds",
    "second": "the one of the next best mean",
    "difference": "best - second, paired by trace",
    "p": "the largest of the paired t-tests of the best against each other policy; by Holm for the number of points",
    "sure": "p is below 5 %: the best is told apart from every other policy at that point",
}


@dataclass(frozen=True)
class Axes:
    """Which axis of a sweep goes where on a map."""

    across: str
    up: str | None
    panels: str | None

    @property
    def names(self) -> list[str]:
        """Those that there are."""
        return [name for name in (self.across, self.up, self.panels) if name is not None]


@dataclass(frozen=True)
class Choice:
    """The best policy at a point."""

    point: dict[str, Any]
    best: str | None
    """``None`` where nothing was measured."""
    second: str | None
    means: dict[str, float | None]
    """By policy."""
    difference: Interval
    p: float
    """Adjusted; 1 where there is nothing to compare."""

    @property
    def sure(self) -> bool:
        """Whether the best is told apart from every other."""
        return self.p < 1 - CONFIDENCE


def axes_of(sweep: Swept, across: str | None, up: str | None) -> Axes:
    """Return what goes where; axes of one value are left out.

    Raises:
        ConfigError: if there is no such axis, or there are more than three, or a policy has no value of one.
    """
    usable = [axis for axis, values in sweep.axes.items() if len(values) > 1]
    for option, name in (("--x", across), ("--y", up)):
        if name is not None and name not in usable:
            raise ConfigError(f"{option} {name} is no axis of {sweep.path} with several values{suggest(name, usable)}")
    if across is not None and across == up:
        raise ConfigError(f"--x and --y are both {across}; give two axes")
    if not usable or len(usable) > 3:
        raise ConfigError(
            f"{sweep.path} has {len(usable)} axes with several values"
            + (f" ({', '.join(usable)})" if usable else "")
            + ", but a map has one to three, like rate, tpot and workload"
        )
    for axis in usable:
        without = next((cell.policy for cell in sweep.cells if cell.point.get(axis) is None), None)
        if without is not None:
            raise ConfigError(
                f"{sweep.path}: {axis} is a parameter that {without} does not have, so policies cannot be compared "
                "along it; name each setting as a policy of its own instead"
            )
    rest = sorted(
        (axis for axis in usable if axis not in (across, up)),
        key=lambda axis: PREFERRED.index(axis) if axis in PREFERRED else len(PREFERRED),
    )
    first = across or rest.pop(0)
    second = up or (rest.pop(0) if rest else None)
    return Axes(first, second, rest[0] if rest else None)


def choices(sweep: Swept, metric: str) -> list[Choice]:
    """Return the best policy at every point, in the order of the sweep.

    Raises:
        ConfigError: if no run has measured the metric, or there is one policy only.
    """
    known = list(dict.fromkeys(name for cell in sweep.cells for name in cell.summary))
    if metric not in known:
        raise ConfigError(f"--metric {metric}: no run has measured it{suggest(metric, known)}")
    if len({cell.label for cell in sweep.cells}) < 2:
        raise ConfigError(f"{sweep.path} has one policy, so there is nothing to choose; sweep several")
    at: dict[str, list[Group]] = {}
    for group in grouped(sweep.cells):
        at.setdefault(repr(sorted(group.point.items(), key=lambda p: p[0])), []).append(group)
    found = [_choice(groups, metric) for groups in at.values()]
    adjusted = holm([choice.p for choice in found])
    return [Choice(c.point, c.best, c.second, c.means, c.difference, p) for c, p in zip(found, adjusted, strict=True)]


def _choice(groups: Sequence[Group], metric: str) -> Choice:
    means = {group.label: Estimate.of(group.per_seed(metric)).mean for group in groups}
    sign = -1 if metric.endswith("_ms") else 1
    measured = sorted(
        (group for group in groups if means[group.label] is not None),
        key=lambda group: -sign * (means[group.label] or 0.0),
    )
    if len(measured) < 2:
        alone = measured[0].label if measured else None
        return Choice(groups[0].point, alone, None, means, Interval(None, None, None), 1.0)
    best, *others = measured
    p = max(p_value(*_pairs(best, other, metric)) for other in others)
    difference = paired(*_pairs(best, others[0], metric)).difference
    return Choice(groups[0].point, best.label, others[0].label, means, difference, p)


def _pairs(a: Group, b: Group, metric: str) -> tuple[list[float | None], list[float | None]]:
    pairs = paired_runs(a, b)
    return [run.summary.get(metric) for run, _ in pairs], [run.summary.get(metric) for _, run in pairs]


def choice_rows(found: Sequence[Choice]) -> Rows:
    """Return one flat row per point."""
    rows = []
    for c in found:
        mean, lo, hi = c.difference
        rows.append(
            {
                **c.point,
                "best": c.best,
                "second": c.second,
                "sure": c.sure,
                "p": c.p,
                "difference": mean,
                "difference_lo": lo,
                "difference_hi": hi,
                **{f"mean {policy}": value for policy, value in c.means.items()},
            }
        )
    return rows
