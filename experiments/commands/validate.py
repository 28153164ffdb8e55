"""``prefillsim validate``: is the simulation true?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from experiments.commands import options as o

if TYPE_CHECKING:
    from collections.abc import Mapping

    from traces.schema import Trace


def add(app: typer.Typer) -> None:
    """Add the command."""
    app.command("validate")(validate)


def validate(
    recorded: Annotated[
        list[Path],
        typer.Option(
            "--recorded",
            metavar="DIR",
            help="A recorded run: a public one with its kernel times, or a run folder; several are repeats.",
            rich_help_panel=o.RUN,
        ),
    ],
    tolerance: Annotated[
        str,
        typer.Option(
            "--tolerance",
            metavar="NAME:%,...",
            help="Largest errors, like ttft:10,jct_p99:15,step:10; 10 each by default.",
            rich_help_panel=o.RUN,
        ),
    ] = "",
    cost_model: o.CostModel = None,
    pipeline_depth: Annotated[
        int | None,
        typer.Option(
            "--pipeline-depth",
            metavar="1|2",
            min=1,
            max=2,
            help="Steps in flight that are judged; by default as the engine ran.",
            rich_help_panel=o.RUN,
        ),
    ] = None,
    llm: Annotated[
        str | None,
        typer.Option("--llm", metavar="NAME", help="The model served, if not as named.", rich_help_panel=o.RUN),
    ] = None,
    slo: o.Slo = None,
    out: o.Out = None,
    seed: o.NoSeed = None,
    json: o.Json = False,
) -> None:
    """Compare simulated with recorded runs: report.html, report.json and pictures; exit 1 past the tolerances."""
    from experiments import output
    from experiments.folders import check_free, claim
    from experiments.plotting import new_figure
    from gpu_runner.validate.report import passed, write_report
    from gpu_runner.validate.run import recorded_sections
    from gpu_runner.validate.tolerances import Tolerances
    from sim.objectives import Objectives
    from sim.provenance import provenance

    tolerances = Tolerances.parse(tolerance)
    objectives = None if slo is None else Objectives.parse(slo)
    check_free(out, may_resume=False)
    sections = recorded_sections(recorded, tolerances, objectives, cost_model, pipeline_depth, llm, _content)
    names = ", ".join(folder.name for folder in recorded)
    where = {**provenance(), "recorded": [str(folder) for folder in recorded], "tolerances": str(tolerances)}

    def fill(folder: Path) -> None:
        write_report(folder, f"Simulated and measured: {names}", sections, where, new_figure)

    folder = claim(out, f"validate-{recorded[0].name}", fill, may_resume=False)
    missed = [miss for section in sections for miss in section.misses]
    if json:
        document = {"passed": passed(sections), "misses": missed, "sections": [s.to_dict() for s in sections]}
        output.emit({**document, "out": str(folder), "files": sorted(p.name for p in folder.iterdir())})
    else:
        for section in sections:
            output.say("", f"{section.level} {section.title}: {section.summary}")
            for grid in section.tables:
                if grid.caption:
                    output.say("", grid.caption)
                output.table(list(grid.columns), [list(row) for row in grid.rows])
        output.say(f"report: {folder / 'report.html'}")
        for miss in missed:
            output.say(f"miss: {miss}")
    if not passed(sections):
        raise typer.Exit(1)


def _content(info: Mapping[str, Any]) -> Trace | None:
    """Return the trace that a ``run.json`` names, if it can be had and is still the one that was run."""
    from experiments.cells import TraceSource
    from traces.schema import TraceError

    try:
        trace = TraceSource(**{**info["trace_source"], "stamp": None}).load(int(info.get("seed") or 0))
    except (KeyError, TypeError, OSError, TraceError):
        return None
    return trace if trace.digest() == info.get("trace_hash") else None
