"""``prefillsim pareto``: runs that are there already, at any objectives."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from experiments.commands import options as o

Ttft = Annotated[
    str | None,
    typer.Option("--ttft", metavar="LOW:HIGH|A,B,...", help="TTFT objectives in ms.", rich_help_panel=o.RUN),
]
Tpot = Annotated[
    str | None,
    typer.Option("--tpot", metavar="LOW:HIGH|A,B,...", help="TPOT objectives in ms.", rich_help_panel=o.RUN),
]
Soft = Annotated[
    float,
    typer.Option(
        "--soft",
        min=0.0,
        max=100.0,
        metavar="W",
        help="Width of the soft step: lateness at which a request counts nothing, as a share of its objective.",
        rich_help_panel=o.RUN,
    ),
]


def add(app: typer.Typer) -> None:
    """Add the command."""
    app.command("pareto")(pareto)


def pareto(
    folders: Annotated[list[Path], typer.Argument(metavar="RUN_OR_SWEEP...", help="Results folders, with tables.")],
    slo: o.Slo = None,
    ttft: Ttft = None,
    tpot: Tpot = None,
    soft: Soft = 0.1,
    out: o.DocumentOut = None,
    json: o.Json = False,
) -> None:
    """Show goodput at any objectives, who is dominated, and how late requests are, without running anything again."""
    from experiments import output
    from experiments.cells import json_bytes
    from experiments.folders import check_free, claim
    from experiments.pareto import DEFINITIONS, front_rows, read_cases, standings
    from experiments.pareto_report import show_standings, write_standings
    from experiments.surface import objective_grid, parse_objectives
    from experiments.surface_picture import write_surfaces
    from sim.objectives import Objectives
    from sim.store import atomic_write

    objectives = None if slo is None else Objectives.parse(slo)
    first, second = (
        None if text is None else parse_objectives(option, text)
        for option, text in (("--ttft", ttft), ("--tpot", tpot))
    )
    check_free(out, may_resume=False)
    cases = read_cases(folders, objectives)
    runs = [run for case in cases for run in case.requests]
    ttft_ns = objective_grid(runs, "ttft_ns") if first is None else first
    tpot_ns = objective_grid(runs, "tpot_p99_ns") if second is None else second
    found = standings(cases, soft)
    rows = front_rows(found, soft)
    document = {"soft_width": soft, "policies": rows, "definitions": DEFINITIONS}

    def fill(folder: Path) -> None:
        atomic_write(folder / "pareto.json", json_bytes(document))
        write_surfaces(cases, ttft_ns, tpot_ns, folder)
        write_standings(found, folder, soft)

    folder = claim(out, "pareto", fill, may_resume=False)
    if json:
        output.emit({**document, "out": str(folder), "files": sorted(str(path) for path in folder.iterdir())})
    else:
        show_standings(found, soft)
        output.say(f"pictures: {folder / 'surface.png'}, {folder / 'pareto.png'}", f"results: {folder}")
