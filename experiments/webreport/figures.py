"""The sections that are made of summaries: the figures, their comparison, and sweeps."""

from __future__ import annotations

from collections.abc import Sequence

from experiments.recorded import Swept
from experiments.webreport import sweeps
from experiments.webreport.groups import Difference, Group, differences, grouped, names_of, places
from experiments.webreport.parts import MOST_ROWS, Section, Table
from experiments.webreport.words import DASH, DIFFERENCES, HEADLINES, METRICS, compared, headed, shown, with_interval

STARRED = "* where the interval excludes zero"


def summary_section(groups: Sequence[Group]) -> list[Section]:
    """Return the figures of the only policy, nothing where there are several."""
    if len(groups) != 1:
        return []
    group = groups[0]
    cards = []
    for metric in HEADLINES:
        estimate = group.estimate(metric)
        if estimate.mean is not None:
            cards.append((METRICS[metric].name, with_interval(metric, estimate), METRICS[metric].unit))
    keys = list(dict.fromkeys(k for run in group.runs for k in run.summary))
    rows = [(headed(k), *(shown(k, run.summary.get(k)) for run in group.runs[:10])) for k in keys]
    seeds = [f"seed {run.seed}" if run.seed is not None else run.path.name for run in group.runs[:10]]
    table = Table(("figure", *(seeds if len(seeds) > 1 else ["value"])), rows, "Every figure of the summary")
    return [Section("Summary", "summary", cards=cards, folded=[table])]


def comparison_section(groups: Sequence[Group]) -> list[Section]:
    """Return policies side by side, nothing for a single one."""
    if len(groups) < 2:
        return []
    names = names_of(groups)
    metrics = compared([run.summary for g in groups for run in g.runs])
    rows = [
        (name, f"{len(g.runs)}", *(with_interval(m, g.estimate(m)) for m in metrics))
        for name, g in zip(names, groups, strict=True)
    ]
    several = any(len(g.runs) > 1 for g in groups)
    caption = "Means over seeds ± half the 95 % interval" if several else "One run each"
    tables = [Table(("policy", "runs", *(headed(m) for m in metrics)), rows, caption)]
    found = differences(groups, DIFFERENCES)
    if found:
        tables.append(_difference_table(found, names[0]))
    return [Section("Comparison", "comparison", [_ranking(groups)], tables)]


def _difference_table(found: Sequence[Difference], base: str) -> Table:
    metrics = [m for m in DIFFERENCES if any(d.metric == m for d in found)]
    by = {(d.group, d.metric): d for d in found}
    rows = []
    for name in dict.fromkeys(d.group for d in found):
        own = [by.get((name, m)) for m in metrics]
        seeds = max(d.seeds for d in own if d is not None)
        rows.append((name, f"{seeds}", *(DASH if d is None else _difference(d) for d in own)))
    intervals = f", with 95 % intervals; {STARRED}" if any(d.interval.lo is not None for d in found) else ""
    caption = f"Differences from {base} on the same traces{intervals}"
    return Table(("policy", "pairs", *(headed(m) for m in metrics)), rows, caption)


def _difference(d: Difference) -> str:
    mean, lo, hi = d.interval
    if mean is None:
        return DASH
    sign = "+" if mean > 0 else ""
    if lo is None or hi is None:
        return f"{sign}{shown(d.metric, mean)}"
    return (
        f"{sign}{shown(d.metric, mean)} [{shown(d.metric, lo)}, {shown(d.metric, hi)}]{' *' if d.significant else ''}"
    )


def _ranking(groups: Sequence[Group]) -> str:
    found = places(groups)
    if found is None:
        return "No ranking by goodput: it takes two seeds, on which every policy was run once."
    if len(found) == 1:
        return "By goodput the policies are tied: no paired 95 % interval (Holm) tells them apart."
    told = "; ".join(f"{i}. {' and '.join(group)}" for i, group in enumerate(found, 1))
    return f"By goodput, where paired 95 % intervals (Holm) exclude zero: {told}."


def sweep_section(sweep: Swept) -> list[Section]:
    """Return the curves and tables of a sweep, nothing for one without axes."""
    if not sweep.axes or not sweep.cells:
        return []
    text, drawn = [], []
    axis = sweeps.numeric_axis(sweep)
    if axis is not None:
        curves = sweeps.curves(sweep, axis)
        drawn = sweeps.curve_charts(curves, axis)
        if len(curves) > sweeps.MOST_LINES:
            text.append(f"The first {sweeps.MOST_LINES} of {len(curves)} lines are drawn.")
        knees = [(c.name, c.knee) for c in curves if axis in sweeps.RATES]
        if any(knee is not None for _, knee in knees):
            told = "; ".join(
                f"{name}: {f'{knee:g}' if knee is not None else 'none'}" for name, knee in knees[: sweeps.MOST_LINES]
            )
            text.append(f"Knee, the largest rate up to which attainment stays at {100 * sweeps.ENOUGH:.0f} %: {told}.")
    groups = grouped(sweep.cells)
    axes = list(sweep.axes)
    metrics = compared([cell.summary for cell in sweep.cells])
    rows = [
        (
            g.label,
            *(DASH if g.point.get(a) is None else str(g.point[a]) for a in axes),
            *(with_interval(m, g.estimate(m)) for m in metrics),
        )
        for g in groups[:MOST_ROWS]
    ]
    more = f"; the first {MOST_ROWS} of {len(groups)}, summary.csv has all" if len(groups) > MOST_ROWS else ""
    table = Table(
        ("policy", *axes, *(headed(m) for m in metrics)),
        rows,
        f"Means over seeds ± half the 95 % interval{more}",
        left=1 + len(axes),
    )
    folded = [table, *_sweep_differences(groups, axes)]
    return [Section(f"Sweep {sweep.name}", f"sweep-{sweep.path.name}", text, charts=drawn, folded=folded)]


def _sweep_differences(groups: Sequence[Group], axes: Sequence[str]) -> list[Table]:
    """Return each policy's differences from the first one, point by point."""
    points: dict[str, list[Group]] = {}
    for group in groups:
        points.setdefault(repr([group.point.get(a) for a in axes]), []).append(group)
    rows = []
    metrics: list[str] = []
    for own in points.values():
        found = differences(own, DIFFERENCES)
        metrics = metrics or list(dict.fromkeys(d.metric for d in found))
        at = [DASH if own[0].point.get(a) is None else str(own[0].point[a]) for a in axes]
        for name in dict.fromkeys(d.group for d in found):
            by = {d.metric: d for d in found if d.group == name}
            cells = (DASH if m not in by else _difference(by[m]) for m in metrics)
            rows.append((f"{name} − {found[0].base}", *at, *cells))
    if not rows:
        return []
    columns = ("policies", *axes, *(headed(m) for m in metrics))
    caption = f"Paired differences at each point, with 95 % intervals; {STARRED}"
    return [Table(columns, rows[:MOST_ROWS], caption, left=1 + len(axes))]
