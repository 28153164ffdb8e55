"""``prefillsim diff``: the first step in which two runs differ."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from experiments.commands import options as o


def add(app: typer.Typer) -> None:
    """Add the command."""
    app.command("diff")(diff)


def diff(
    run_a: Annotated[Path, typer.Argument(metavar="RUN_A", help="A run's folder.")],
    run_b: Annotated[Path, typer.Argument(metavar="RUN_B", help="Another's, of the same requests.")],
    times: Annotated[
        bool | None,
        typer.Option(
            "--times/--no-times",
            help="Times must be equal too; by default if both are simulations.",
            show_default=False,
        ),
    ] = None,
    plugin: o.Plugins = None,
    json: o.Json = False,
) -> None:
    """Find the first step in which two runs differ, and what that came to. Exit status: 0 equal, 1 different."""
    from experiments import output
    from experiments.diff.first import diff as compare
    from experiments.diff.shown import show_diff
    from experiments.why.again import one_run

    found = compare(one_run(run_a), one_run(run_b), times, [Path(p) for p in plugin or ()])
    document = found.document()
    if json:
        output.emit(document)
    else:
        show_diff(document)
    if not found.equal:
        raise typer.Exit(1)
