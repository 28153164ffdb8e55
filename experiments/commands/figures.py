"""``prefillsim figures``: the tables and figures of a paper, regenerated."""

from __future__ import annotations

import sys
from pathlib import Path

import typer

from experiments.commands import options as o


def add(app: typer.Typer) -> None:
    """Add the group of commands."""
    group = typer.Typer(help="Regenerate a paper's tables and figures.", no_args_is_help=True)
    group.callback()(_group)
    group.command("sloweave")(sloweave)
    app.add_typer(group, name="figures")


def _group() -> None:
    pass


def sloweave(
    seeds: o.Seeds = None,
    seed: o.Seed = None,
    jobs: o.Jobs = None,
    out: o.Out = None,
    resume: o.Resume = False,
    json: o.Json = False,
) -> None:
    """SLOWeave's Tables 3 and 4 and Figures 2, 4 and 5, and the paper's numbers beside ours."""
    from experiments import output
    from experiments.config import ConfigError
    from experiments.sloweave.regenerate import SEEDS, regenerate

    n = len(SEEDS) if seeds is None else seeds
    if n < 2:
        raise ConfigError(f"--seeds is {n}, but intervals need at least 2 seeds")
    first = seed or 0
    folder = out or Path("runs/figures-sloweave")
    progress = not json and sys.stderr.isatty()
    made = regenerate(folder, seeds=range(first, first + n), resume=resume, jobs=jobs, progress=progress)
    agree = sum(row["verdict"] == "agrees" for row in made.reproduction)
    strictly = sum(row["strictly"] for row in made.reproduction)
    if json:
        document = {"out": str(folder), "seeds": n, "agree": agree, "strictly": strictly, "numbers": made.reproduction}
        output.emit({**document, "files": [str(path) for path in made.files]})
        return
    columns = ["source", "workload", "policy", "TPOT (ms)", "metric", "paper", "ours", "lies in", "verdict"]
    output.table(
        columns,
        [
            [
                row["source"],
                row["workload"],
                row["policy"],
                str(row["tpot_objective_ms"]),
                row["metric"],
                f"{row['paper']:g}",
                f"{row['ours']:.4g}",
                f"{row['interval_lo']:.4g} to {row['interval_hi']:.4g}",
                row["verdict"],
            ]
            for row in made.reproduction
            if row["metric"] in ("goodput", "goodput_ratio") or row["verdict"] == "differs"
        ],
        left=3,
    )
    output.say(
        f"{agree} of {len(made.reproduction)} numbers of the paper lie in the 95 % interval of a mean of 5 seeds that "
        f"vary like ours, {agree - strictly} of them only with half a printed digit granted; shown: goodputs, their "
        "ratios, and what differs",
        f"tables and figures: {folder}",
    )
