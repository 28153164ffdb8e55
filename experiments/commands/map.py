"""``prefillsim map``: which policy to choose where."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from experiments.commands import options as o

AxisAcross = Annotated[
    str | None, typer.Option("--x", metavar="AXIS", help="Axis that goes across; a rate by default.")
]
AxisUp = Annotated[str | None, typer.Option("--y", metavar="AXIS", help="Axis that goes up.")]


def add(app: typer.Typer) -> None:
    """Add the command."""
    app.command("map")(choice_map)


def choice_map(
    sweep: Annotated[Path, typer.Argument(metavar="SWEEP", help="A sweep's folder, of two policies or more.")],
    metric: Annotated[str, typer.Option("--metric", help="What the best is best in.")] = "goodput",
    x: AxisAcross = None,
    y: AxisUp = None,
    out: o.DocumentOut = None,
    json: o.Json = False,
) -> None:
    """Draw the best policy at every point of a sweep, and where none is surely best."""
    from experiments import output
    from experiments.cells import json_bytes
    from experiments.choice import DEFINITIONS, axes_of, choice_rows, choices
    from experiments.choice_picture import show_choices, write_map
    from experiments.config import ConfigError
    from experiments.folders import check_free, claim
    from experiments.recorded import Swept, read_any
    from sim.store import atomic_write

    check_free(out, may_resume=False)
    read = read_any(sweep)
    if not isinstance(read, Swept):
        raise ConfigError(f"{sweep} is not a sweep; `prefillsim sweep FILE.toml` makes one")
    axes = axes_of(read, x, y)
    found = choices(read, metric)
    document = {"metric": metric, "axes": axes.names, "points": choice_rows(found), "definitions": DEFINITIONS}

    def fill(folder: Path) -> None:
        atomic_write(folder / "map.json", json_bytes(document))
        write_map(found, axes, metric, read.name, folder)

    folder = claim(out, "map", fill, may_resume=False)
    if json:
        output.emit({**document, "out": str(folder), "files": sorted(str(path) for path in folder.iterdir())})
    else:
        show_choices(found, metric)
        output.say(f"picture: {folder / 'map.png'}", f"results: {folder}")
        output.warn(read.failures)
