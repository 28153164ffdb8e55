"""``prefillsim report``: runs and sweeps as one HTML file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from experiments.commands import options as o


def add(app: typer.Typer) -> None:
    """Add the command."""
    app.command("report")(report)


def report(
    folders: Annotated[list[Path], typer.Argument(metavar="RUN_OR_SWEEP...", help="Results folders.")],
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="FILE.html", help="Replaced if it exists.", rich_help_panel=o.OUTPUT)
    ] = Path("report.html"),
    title: Annotated[str | None, typer.Option("--title", help="In place of policy and trace.")] = None,
    json: o.Json = False,
) -> None:
    """Write one HTML file about runs and sweeps: figures with intervals, pictures, the slowest requests' stories."""
    from experiments import output
    from experiments.webreport.page import write_report
    from experiments.webreport.sources import read_sources
    from experiments.written import check_file, write_text

    check_file(out, ".html")
    sources = read_sources(folders)
    size = write_text(out, write_report(sources, title))
    runs = len(sources.described)
    if json:
        output.emit({"out": str(out), "runs": runs, "bytes": size})
    else:
        output.say(f"report: {out} ({runs:,} {'run' if runs == 1 else 'runs'}, {size / 1e6:.2f} MB)")
