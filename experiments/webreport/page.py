"""The report as one HTML document: what there is to show, in the order in which it is read."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.config import ConfigError
from experiments.recorded import Described, Recorded, Swept, read_any, read_recorded
from experiments.webreport import charts, sweeps
from experiments.webreport.groups import Group, differences, grouped, names_of, places
from experiments.webreport.reproduce import COST_FILE, SWEEP_FILE, command_of, file_of
from experiments.webreport.stories import Story, Storyteller, outcomes
from experiments.webreport.words import (
    DEFINITIONS,
    DIFFERENCES,
    HEADLINES,
    METRICS,
    compared,
    headed,
    shown,
    with_interval,
)

if TYPE_CHECKING:
    from jinja2 import Environment

MOST_DRAWN = 8
"""Groups whose tables are drawn; a picture with more lines cannot be read."""

SEEDS_DRAWN = 5
"""Runs of a group whose distributions are drawn."""

MOST_STORIES = 4
"""Groups whose slowest requests are told about."""

MOST_ROWS = 400
"""Rows of a sweep's table."""

MOST_COMMANDS = 24

STARRED = "* where the interval excludes zero"

MOST_RECORD = 60_000
"""Characters of ``run.json`` that are shown."""


@dataclass(frozen=True)
class Table:
    """A table of text; the first ``left`` columns are flush left."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str = ""
    left: int = 1


@dataclass(frozen=True)
class Section:
    """A heading with what comes under it."""

    title: str
    anchor: str
    text: list[str] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    charts: list[charts.Chart] = field(default_factory=list)
    stories: list[tuple[str, str, list[Story]]] = field(default_factory=list)
    """Name of the run, a remark, and the stories."""
    listings: list[tuple[str, str]] = field(default_factory=list)
    """Headings and texts that must keep their lines."""
    definitions: dict[str, str] = field(default_factory=dict)
    cards: list[tuple[str, str, str]] = field(default_factory=list)
    """Name, value and unit."""
    folded: list[Table] = field(default_factory=list)
    """Tables that are shown on request."""

    @property
    def legend(self) -> list[tuple[str, str]]:
        """What the lines of all charts are, see :attr:`experiments.webreport.svg.Plot.legend`."""
        return list(dict.fromkeys(entry for chart in self.charts for entry in chart.plot.legend))


@dataclass(frozen=True)
class Sources:
    """What a report is about."""

    runs: list[Recorded]
    sweeps: list[Swept]

    @property
    def described(self) -> list[Described]:
        """Every run, and every run of every sweep."""
        return [*self.runs, *(cell for sweep in self.sweeps for cell in sweep.cells)]


def read_sources(paths: Sequence[Path]) -> Sources:
    """Read the folders of runs and sweeps.

    Raises:
        ConfigError: if there is none.
        StoreError: if one is neither, or damaged.
    """
    runs: list[Recorded] = []
    found: list[Swept] = []
    given: dict[Path, Path] = {}
    for path in paths:
        given.setdefault(path.resolve(), path)
    for path in given.values():
        read = read_any(path)
        if isinstance(read, Swept):
            found.append(read)
        else:
            runs += read
    sources = Sources(runs, found)
    if not sources.described:
        raise ConfigError(f"{', '.join(map(str, paths))} has no run that succeeded, so there is nothing to report")
    return sources


def write_report(sources: Sources, title: str | None = None) -> str:
    """Return the document.

    Raises:
        StoreError: if the tables of a run cannot be read any more.
    """
    groups = grouped(sources.described)
    alone = [group for group in groups if not group.point]
    drawn = _drawn(alone)
    sections = [
        *_summary(alone),
        *_comparison(alone),
        *(section for sweep in sources.sweeps for section in _sweep(sweep)),
        *_pictures(drawn),
        *_exceptions(drawn),
        *_stories(drawn),
        Section("Definitions", "definitions", definitions=DEFINITIONS),
        _provenance(sources),
        _again(sources),
    ]
    return (
        _environment()
        .get_template("page.html.j2")
        .render(
            title=title or _title(sources, groups),
            subtitle=_subtitle(groups),
            warnings=_warnings(sources, groups),
            sections=sections,
            style=_resource("style.css"),
        )
    )


def _title(sources: Sources, groups: Sequence[Group]) -> str:
    if sources.sweeps and not sources.runs:
        return ", ".join(sweep.name for sweep in sources.sweeps)
    traces = list(dict.fromkeys(g.trace for g in groups))
    names = list(dict.fromkeys(g.label for g in groups))
    what = names[0] if len(names) == 1 else f"{len(names)} policies"
    return f"{what} on {traces[0] if len(traces) == 1 else f'{len(traces)} traces'}"


def _subtitle(groups: Sequence[Group]) -> str:
    objectives = list(dict.fromkeys(g.objectives for g in groups))
    runs = sum(len(g.runs) for g in groups)
    if len(objectives) > 1:
        told = "objectives differ"
    else:
        told = f"objectives in ms: {objectives[0]}" if objectives[0] else "no objectives: every finished request counts"
    return f"{runs:,} {'run' if runs == 1 else 'runs'}; {told}"


def _warnings(sources: Sources, groups: Sequence[Group]) -> list[str]:
    kinds: dict[str, tuple[str, int]] = {}
    for run in sources.described:
        listed = run.info.get("warnings")
        for warning in map(str, listed if isinstance(listed, list) else []):
            kind = "".join(c for c in warning if not c.isdigit())
            first, n = kinds.get(kind, (warning, 0))
            kinds[kind] = (first, n + 1)
    total = len(sources.described)
    told = [w if total == 1 else f"{n} of {total:,} runs: {w}" for w, n in kinds.values()][:10]
    told += [note for sweep in sources.sweeps for note in sweep.notes]
    if len({g.objectives for g in groups}) > 1:
        told.append("The runs have different objectives, so their goodput and attainment mean different things.")
    failures = [failure for sweep in sources.sweeps for failure in sweep.failures]
    told += [f"failed: {failure}" for failure in failures[:10]]
    if len(failures) > 10:
        told.append(f"{len(failures)} runs failed, {len(failures) - 10} more than shown")
    return told


def _summary(groups: Sequence[Group]) -> list[Section]:
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


def _comparison(groups: Sequence[Group]) -> list[Section]:
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


def _difference_table(found: Sequence[Any], base: str) -> Table:
    metrics = [m for m in DIFFERENCES if any(d.metric == m for d in found)]
    by = {(d.group, d.metric): d for d in found}
    rows = []
    for name in dict.fromkeys(d.group for d in found):
        own = [by.get((name, m)) for m in metrics]
        seeds = max(d.seeds for d in own if d is not None)
        rows.append((name, f"{seeds}", *("–" if d is None else _difference(d) for d in own)))
    intervals = f", with 95 % intervals; {STARRED}" if any(d.interval.lo is not None for d in found) else ""
    caption = f"Differences from {base} on the same traces{intervals}"
    return Table(("policy", "pairs", *(headed(m) for m in metrics)), rows, caption)


def _difference(d: Any) -> str:
    mean, lo, hi = d.interval
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


def _sweep(sweep: Swept) -> list[Section]:
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
            *("–" if g.point.get(a) is None else str(g.point[a]) for a in axes),
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
        at = ["–" if own[0].point.get(a) is None else str(own[0].point[a]) for a in axes]
        for name in dict.fromkeys(d.group for d in found):
            by = {d.metric: d for d in found if d.group == name}
            cells = ("–" if m not in by else _difference(by[m]) for m in metrics)
            rows.append((f"{name} − {found[0].base}", *at, *cells))
    if not rows:
        return []
    columns = ("policies", *axes, *(headed(m) for m in metrics))
    caption = f"Paired differences at each point, with 95 % intervals; {STARRED}"
    return [Table(columns, rows[:MOST_ROWS], caption, left=1 + len(axes))]


def _drawn(groups: Sequence[Group]) -> list[tuple[str, list[Recorded]]]:
    """Return the runs whose tables are drawn, by group."""
    names = names_of(groups)
    found: list[tuple[str, list[Recorded]]] = []
    for name, group in zip(names, groups, strict=True):
        runs: list[Recorded] = []
        for run in group.runs[:SEEDS_DRAWN]:
            if isinstance(run, Recorded):
                runs.append(run)
            elif (run.path / "requests.parquet").is_file():
                runs.append(read_recorded(run.path))
        if runs:
            found.append((name, runs))
    return found[:MOST_DRAWN]


def _pictures(drawn: Sequence[tuple[str, list[Recorded]]]) -> list[Section]:
    if not drawn:
        return []
    told = [
        "Where a policy has several runs, the first is drawn, and of distributions the first "
        f"{min(max(len(runs) for _, runs in drawn), SEEDS_DRAWN)}."
    ]
    text = told if any(len(runs) > 1 for _, runs in drawn) else []
    scatter = charts.scatter_chart(drawn)
    latencies = [*charts.cdf_charts(drawn), *([scatter] if scatter is not None else [])]
    others = [charts.attainment_chart(drawn), *charts.time_charts(drawn), charts.hit_chart(drawn)]
    steps = [charts.chunk_chart(drawn), charts.exception_chart(drawn)]
    made = [
        Section("Latencies", "latencies", text, charts=latencies),
        Section("Over time", "time", charts=[c for c in others if c is not None]),
        Section("Steps", "steps", charts=[c for c in steps if c is not None]),
    ]
    return [section for section in made if section.charts]


def _exceptions(drawn: Sequence[tuple[str, list[Recorded]]]) -> list[Section]:
    rows = [(name, text, f"{count:,}") for name, runs in drawn for text, count in outcomes(runs[0])[:12]]
    if not drawn:
        return []
    if not rows:
        text = ["Every request finished, and no step overran a deadline on purpose."]
        return [Section("SLO exceptions and rejections", "exceptions", text)]
    table = Table(("policy", "what", "count"), rows, "Of each policy's first run", left=2)
    return [Section("SLO exceptions and rejections", "exceptions", tables=[table])]


def _stories(drawn: Sequence[tuple[str, list[Recorded]]]) -> list[Section]:
    found = []
    for name, runs in drawn[:MOST_STORIES]:
        teller = Storyteller(runs[0])
        stories = teller.slowest()
        remark = (
            "Which request had which chunk is not known of this run; with --batches it would be."
            if teller.chunks is None and len(runs[0].tables.steps["start_ns"])
            else ""
        )
        if stories:
            found.append((name, remark, stories))
    if not found:
        return []
    text = ["The longest to their first token, and the longest gaps between two. Strips run from arrival to the end."]
    return [Section("Slowest requests", "slowest", text, stories=found)]


def _provenance(sources: Sources) -> Section:
    made: dict[tuple[str, ...], int] = {}
    for run in sources.described:
        git = run.info.get("git")
        git = git if isinstance(git, dict) else {}
        revision = str(git.get("revision") or "unknown")[:12] + (" and changes" if git.get("dirty") else "")
        known = [str(run.info.get(key, "–")) for key in ("cost_model_hash", "python", "platform")]
        made[revision, *known] = made.get((revision, *known), 0) + 1
    columns = ("runs", "code", "cost model hash", "Python", "platform")
    table = Table(columns, [(f"{n:,}", *key) for key, n in made.items()], left=len(columns))
    rows = [
        (run.label, run.path.name, "–" if run.seed is None else f"{run.seed}", run.trace, run.trace_hash)
        for run in sources.described[:MOST_ROWS]
    ]
    more = len(sources.described) - MOST_ROWS
    caption = "Runs" + (f", without {more:,} more" if more > 0 else "")
    folded = [Table(("policy", "folder", "seed", "trace", "trace hash"), rows, caption, left=5)]
    listings = []
    if len(sources.described) == 1:
        record = json.dumps(sources.described[0].info, indent=1, ensure_ascii=False)
        listings.append(("The whole record", record[:MOST_RECORD]))
    return Section("Where this comes from", "provenance", tables=[table], folded=folded, listings=listings)


def _again(sources: Sources) -> Section:
    listings, text = [], []
    for sweep in sources.sweeps:
        lines = f"# save as {SWEEP_FILE}, then: prefillsim sweep {SWEEP_FILE}\n{file_of(sweep)}"
        listings.append((f"{sweep.path.name}: the experiment", lines))
        if isinstance(sweep.config.get("cost_model"), str) and sweep.config["cost_model"].endswith(".json"):
            text.append(f"Cost models that are files, like {sweep.config['cost_model']}, have to be there too.")
    for run in sources.runs[:MOST_COMMANDS]:
        command, notes = command_of(run)
        listings.append((run.path.name, "\n".join([command, *(f"# {note}" for note in notes)])))
    if any(COST_FILE in listing for _, listing in listings):
        text.append("Cost models that are not shipped are in run.json, from where they can be copied into files.")
    return Section("Make it again", "again", text, listings=listings)


@lru_cache(maxsize=1)
def _environment() -> Environment:
    import jinja2

    return jinja2.Environment(
        loader=jinja2.FunctionLoader(_resource),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _resource(name: str) -> str:
    return (resources.files("experiments.webreport") / name).read_text(encoding="utf-8")
