"""``prefillsim figures findings``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from experiments.commands import figures_options
from experiments.commands import options as o


def findings(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME]...", help="Of questions; all of them by default.")
    ] = None,
    jobs: o.Jobs = None,
    out: o.Out = None,
    resume: o.Resume = False,
    json: o.Json = False,
) -> None:
    """Ask the questions that neither paper answers, by their own runs; a page with every answer and its picture.

    A question whose public traces are not there is skipped.
    """
    from experiments import output
    from experiments.figures.findings import answer_all
    from experiments.findings.catalogue import find
    from experiments.folders import check_free

    asked = find(list(dict.fromkeys(names or ())))
    folder = out or Path("runs/figures-findings")
    if not resume:
        check_free(folder)
    titles = {question.name: question.asks for question in asked}

    def tell(name: str, answer: str) -> None:
        if not json:
            output.say(f"{name}: {titles[name]}", "", answer, "")

    with figures_options.resumable(folder):
        made = answer_all(asked, folder, resume=resume, jobs=jobs, progress=not json and sys.stderr.isatty(), told=tell)
    if json:
        answers = [{"name": name, "asks": titles[name], "answer": text} for name, text in made.answers.items()]
        told = {"answers": answers, "skipped": made.skipped, "failed": made.failed}
        output.emit({"out": str(folder), **told, "files": [str(path) for path in made.files]})
    else:
        output.say(*(f"skipped: {name}: {reason}" for name, reason in made.skipped.items()))
        if made.answers:
            output.say(f"page, tables and pictures: {folder}")
    figures_options.end(made.failed)
