"""``prefillsim timeline``: runs as traces for Perfetto, and as a picture of their steps."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from experiments.commands import options as o


def add(app: typer.Typer) -> None:
    """Add the command."""
    app.command("timeline")(timeline)


def timeline(
    folders: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Results folders; each a process.")],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", metavar="FILE.json", help="trace.json by default; .json.gz too.", rich_help_panel=o.OUTPUT
        ),
    ] = None,
    window: Annotated[
        str | None, typer.Option("--window", metavar="FROM:TO", help="Only these milliseconds of the run's clock.")
    ] = None,
    svg: Annotated[
        Path | None,
        typer.Option("--svg", metavar="FILE.svg", help="Draw the window's steps instead.", rich_help_panel=o.OUTPUT),
    ] = None,
    json: o.Json = False,
) -> None:
    """Export runs as Chrome trace JSON, which opens in Perfetto, or draw the steps of a window."""
    from experiments import output
    from experiments.config import ConfigError
    from experiments.recorded import read_runs, window_of
    from experiments.step_picture import steps_svg
    from experiments.timeline import trace_lines
    from experiments.written import check_file, write_text

    span = window_of(window)
    if svg is not None and span is None:
        raise ConfigError("--svg draws a window of time: give one with --window FROM:TO in ms, like 5000:5400")
    if svg is None and out is None:
        out = Path("trace.json")
    if out is not None:
        check_file(out, ".json", ".json.gz")
    if svg is not None:
        check_file(svg, ".svg")
    runs = read_runs(folders)
    written = []
    if out is not None:
        written.append((out, write_text(out, trace_lines(runs, span))))
    if svg is not None and span is not None:
        written.append((svg, write_text(svg, steps_svg(runs, span))))
    if json:
        output.emit(
            {
                "files": [str(path) for path, _ in written],
                "runs": [{"label": run.label, "steps": len(run.tables.steps["start_ns"])} for run in runs],
            }
        )
        return
    for path, size in written:
        output.say(f"written: {path} ({size / 1e6:.2f} MB)")
    if out is not None:
        output.say("open it in https://ui.perfetto.dev")
