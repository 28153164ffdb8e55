"""``prefillsim figures all``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from experiments.commands import figures_options
from experiments.commands import options as o

SHOWN = 40
"""Differences that are printed; the others are counted."""


def all_parts(
    check: Annotated[
        bool, typer.Option("--check", help="Hold every table against the committed one; exit code 1 if any differs.")
    ] = False,
    against: Annotated[
        Path | None,
        typer.Option(
            "--against",
            metavar="DIR",
            help="With figures/PART/*.csv and findings/*.csv, for --check; the repository's docs by default.",
            rich_help_panel=o.RUN,
        ),
    ] = None,
    update: Annotated[bool, typer.Option("--update", help="Write the committed tables.")] = False,
    jobs: o.Jobs = None,
    out: o.Out = None,
    resume: o.Resume = False,
    json: o.Json = False,
) -> None:
    """Everything of both papers and of the findings, each part in its own folder; --resume keeps what is finished.

    A part that fails is told, and the others go on.
    """
    from experiments import output
    from experiments.config import ConfigError
    from experiments.documents import FOLDER
    from experiments.figures.all import make_all
    from experiments.figures.check import differences, write_committed
    from experiments.figures.parts import How, parts
    from experiments.folders import check_free

    if check and update:
        raise ConfigError("--update writes what --check compares with; give one of them")
    docs = against or FOLDER
    if (check or update) and not (docs / "figures").is_dir():
        raise ConfigError(f"{docs} has no folder figures with committed tables; give --against DIR")
    folder = out or Path("runs/figures")
    if not resume:
        check_free(folder)

    def tell(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    chosen = parts()
    with figures_options.resumable(folder):
        made = make_all(chosen, folder, How(jobs, not json and sys.stderr.isatty()), resume=resume, told=tell)
    found = []
    if check:
        unmade = [name.partition("/")[2] for name in (*made.skipped, *made.failed)]
        for part in chosen:
            found += differences(part, folder / part.name, docs=docs, skipped=unmade)
    written = [path for part in chosen for path in write_committed(part, folder / part.name, docs)] if update else []
    if json:
        steps = {"seconds": made.seconds, "kept": made.kept, "skipped": made.skipped, "failed": made.failed}
        document = {"out": str(folder), **steps, "differences": [vars(d) for d in found]}
        output.emit({**document, "written": [str(p) for p in written], "files": [str(p) for p in made.files]})
    else:
        minutes = sum(made.seconds.values()) / 60
        output.say(
            *(f"skipped: {name}: {reason}" for name, reason in made.skipped.items()),
            f"{len(made.seconds)} steps made in {minutes:.1f} min, {len(made.kept)} kept: {folder}",
            *(f"written: {path}" for path in written),
            *(f"differs: {difference}" for difference in found[:SHOWN]),
        )
        if len(found) > SHOWN:
            output.say(f"{len(found) - SHOWN} more differences than shown")
        if check:
            output.say("no table differs from the committed ones" if not found else f"{len(found)} differences")
    figures_options.end(made.failed)
    if found:
        raise typer.Exit(1)
