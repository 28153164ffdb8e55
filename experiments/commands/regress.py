"""``prefillsim regress``: has a change made anything worse?"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from experiments.commands import options as o


def add(app: typer.Typer) -> None:
    """Add the command."""
    app.command("regress")(regress)


def regress(
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE.toml...", help="Runs as of a sweep, and [tolerance] in percent.")
    ],
    update: Annotated[
        bool, typer.Option("--update", help="Write the baselines, and say what changes in them.")
    ] = False,
    baseline: Annotated[
        Path | None,
        typer.Option("--baseline", metavar="FILE", help="Of one file; by default NAME.baseline.json beside it."),
    ] = None,
    tolerance: Annotated[
        str | None,
        typer.Option(
            "--tolerance",
            metavar="NAME:%,...",
            help="How much worse means may be: goodput, attainment (0.5 by default), p99 (1), ttft_p99, ...",
            rich_help_panel=o.RUN,
        ),
    ] = None,
    jobs: o.Jobs = None,
    markdown: Annotated[
        Path | None,
        typer.Option("--markdown", metavar="FILE", help="A summary for a pull request.", rich_help_panel=o.OUTPUT),
    ] = None,
    junit: Annotated[
        Path | None, typer.Option("--junit", metavar="FILE", help="JUnit XML.", rich_help_panel=o.OUTPUT)
    ] = None,
    json: o.Json = False,
) -> None:
    """Make the runs of each FILE.toml again and hold them against its baseline; exit code 1 if any is worse.

    The seeds are those of the baseline, so that every difference is one of the code.
    """
    from experiments import output
    from experiments.config import ConfigError
    from experiments.regress import report
    from experiments.regress.check import Check
    from experiments.written import write_text
    from sim.store import atomic_write

    if baseline is not None and len(files) > 1:
        raise ConfigError("--baseline belongs to one file; give the files one at a time")
    written_to = {"--markdown": markdown, "--junit": junit}
    for option, path in written_to.items():
        if path is not None and update:
            raise ConfigError(f"--update writes baselines and judges nothing, so there is nothing to put into {option}")
        if path is not None and (path.is_dir() or not path.absolute().parent.is_dir()):
            what = "is a folder" if path.is_dir() else "is in no folder that exists"
            raise ConfigError(f"{option} {path} {what}; give a file")
    checks = [Check.of(file, baseline, tolerance, update=update) for file in dict.fromkeys(files)]
    outcomes = []
    documents = []
    for check in checks:
        output.warn(check.experiment.notes)
        outcome = check.run(jobs, progress=not json and sys.stderr.isatty())
        outcomes.append(outcome)
        documents.append(report.document(outcome))
        if update:
            write = outcome.stale and not outcome.failures
            if write:
                atomic_write(check.baseline_file, outcome.now.text().encode())
            documents[-1]["updated"] = write
        if json:
            continue
        if update and not outcome.failures:
            report.show_update(outcome, write)
        else:
            report.show(outcome)
    if markdown is not None:
        write_text(markdown, report.markdown(outcomes))
    if junit is not None:
        atomic_write(junit, report.junit(outcomes))
    if json:
        output.emit({"passed": all(outcome.passed for outcome in outcomes), "files": documents})
    output.fail_with(
        [f for outcome in outcomes for f in outcome.failures], sum(len(c.experiment.cells) for c in checks)
    )
    if not update and not all(outcome.passed for outcome in outcomes):
        raise typer.Exit(1)
