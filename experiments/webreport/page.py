"""The report as one HTML document: what there is to show, in the order in which it is read."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from importlib import resources
from typing import TYPE_CHECKING

from experiments.recorded import Recorded, read_recorded
from experiments.webreport import charts
from experiments.webreport.figures import comparison_section, summary_section, sweep_section
from experiments.webreport.groups import Group, grouped, names_of
from experiments.webreport.origins import again_section, provenance_section
from experiments.webreport.parts import Section, Table
from experiments.webreport.sources import Sources
from experiments.webreport.stories import Storyteller, outcomes
from experiments.webreport.words import DEFINITIONS

if TYPE_CHECKING:
    from jinja2 import Environment

MOST_DRAWN = 8
"""Groups whose tables are drawn; a picture with more lines cannot be read."""

SEEDS_DRAWN = 5
"""Runs of a group whose distributions are drawn."""

MOST_STORIES = 4
"""Groups whose slowest requests are told about."""


def write_report(sources: Sources, title: str | None = None) -> str:
    """Return the document.

    Raises:
        StoreError: if the tables of a run cannot be read any more.
    """
    groups = grouped(sources.described)
    alone = [group for group in groups if not group.point]
    drawn = _drawn(alone)
    sections = [
        *summary_section(alone),
        *comparison_section(alone),
        *(section for sweep in sources.sweeps for section in sweep_section(sweep)),
        *_pictures(drawn),
        *_exceptions(drawn),
        *_stories(drawn),
        Section("Definitions", "definitions", definitions=DEFINITIONS),
        provenance_section(sources),
        again_section(sources),
    ]
    template = _environment().get_template("page.html.j2")
    return template.render(
        title=title or _title(sources, groups),
        subtitle=_subtitle(groups),
        warnings=_warnings(sources, groups),
        sections=sections,
        style=_resource("style.css"),
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
