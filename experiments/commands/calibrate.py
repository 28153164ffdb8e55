"""``prefillsim calibrate``: a cost model from a profile of step times."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from experiments.commands import options as o


def add(app: typer.Typer) -> None:
    """Add the command."""
    app.command("calibrate")(calibrate)


def calibrate(
    profile: Annotated[Path, typer.Argument(metavar="PROFILE", help="A profile table, as written by write_profile.")],
    out: Annotated[
        Path,
        typer.Option("--out", "-o", metavar="FILE.json", help="A new file for the model.", rich_help_panel=o.OUTPUT),
    ],
    report: Annotated[
        Path | None,
        typer.Option(
            "--report",
            metavar="DIR",
            help="A new folder for the report; by default beside the model.",
            rich_help_panel=o.OUTPUT,
        ),
    ] = None,
    estimator: Annotated[
        str | None,
        typer.Option("--estimator", metavar="NAME", help="Pick linear, nnls, table or boosted, whatever the errors."),
    ] = None,
    name: Annotated[str | None, typer.Option("--name", help="Of the model; by default the file's.")] = None,
    seed: o.NoSeed = None,
    json: o.Json = False,
) -> None:
    """Fit all estimators to measured steps, score them on shapes held out, and write the best as a cost model."""
    from costmodels.io import save_cost_model
    from costmodels.profile import read_profile
    from experiments import output
    from experiments.calibration import calibrate as fit
    from experiments.calibration_report import score_rows, write_report
    from experiments.config import ConfigError
    from experiments.folders import check_free

    if out.suffix != ".json":
        raise ConfigError(f"--out {out} must end in .json")
    if out.exists():
        raise ConfigError(f"{out} exists; give a new file")
    folder = report or out.with_name(f"{out.stem}-report")
    check_free(folder, may_resume=False)
    made = fit(read_profile(profile), name or out.stem, estimator)
    chosen = "" if estimator is None else f" --estimator {estimator}"
    card = made.card(f"prefillsim calibrate {profile.name} -o {out.name}{chosen}")
    out.parent.mkdir(parents=True, exist_ok=True)
    save_cost_model(made.model, out, card)
    files = write_report(made, folder, card)
    if json:
        document = {"out": str(out), "report": [str(f) for f in files], "picked": made.picked, "why": made.why}
        output.emit({**document, "scores": score_rows(made), "p99_margins": card["fit"]["p99_margins"]})
        return
    output.table(
        ["estimator", "mean error", "worst decile", "worst", "bias", "falls", "certified"],
        [
            [
                f"{s.estimator}{' *' if s.estimator == made.picked else ''}",
                f"{s.mae:.2%}",
                f"{s.worst_decile:.2%}",
                f"{s.worst:.1%}",
                f"{s.bias:+.2%}",
                str(s.falls),
                "yes" if s.certified else "no",
            ]
            for s in made.scores.values()
        ],
    )
    output.say(
        f"Errors: predicted ÷ {made.truth} − 1 on shapes held out. Falls: of 100,000 random pairs of steps with at "
        "most one prefill, how many have a shorter prediction for more work.",
        f"* picked: {made.why if estimator is None else 'as asked for'}",
    )
    if made.coverage is not None:
        output.say(
            f"P99 margins cover {made.coverage.conformal:.2%} (c99) and {made.coverage.residual_table:.2%} (p99) of "
            f"held-out rows, mean of {made.coverage.splits} splits"
        )
    output.say(f"model: {out}", f"report: {folder}")
    output.warn(made.profile.warnings)
