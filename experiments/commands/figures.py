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
    group.command("sloweave-gpu")(sloweave_gpu)
    group.command("prefillonly")(prefillonly)
    group.command("prefillonly-more")(prefillonly_more)
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
    from experiments.folders import check_free
    from experiments.sloweave.regenerate import SEEDS, regenerate

    chosen = _seeds(seeds, seed, len(SEEDS))
    folder = out or Path("runs/figures-sloweave")
    if not resume:
        check_free(folder)
    progress = not json and sys.stderr.isatty()
    made = regenerate(folder, seeds=chosen, resume=resume, jobs=jobs, progress=progress)
    agree = sum(row["verdict"] == "agrees" for row in made.reproduction)
    strictly = sum(row["strictly"] for row in made.reproduction)
    if json:
        document = {
            "out": str(folder),
            "seeds": len(chosen),
            "agree": agree,
            "strictly": strictly,
            "numbers": made.reproduction,
        }
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


def sloweave_gpu(
    seeds: o.Seeds = None, seed: o.Seed = None, jobs: o.Jobs = None, out: o.Out = None, json: o.Json = False
) -> None:
    """SLOWeave's Table 2 and Figure 3 on models of the paper's GPUs, and whether the order of policies holds."""
    from experiments import output
    from experiments.folders import claim
    from experiments.sloweave.gpu import regenerate_gpu
    from experiments.sloweave.gpu_blocks import load_experiment
    from experiments.sloweave.gpu_order import HOLDS

    chosen = _seeds(seeds, seed, load_experiment().seeds)
    folder = claim(out, "figures-sloweave-gpu", lambda _: None, may_resume=False)
    made = regenerate_gpu(folder, chosen, jobs)
    if json:
        document = {"out": str(folder), "seeds": len(chosen), "table2": made.table2, "orders": made.orders}
        output.emit({**document, "files": [str(path) for path in made.files]})
        return
    metrics = {"goodput": "goodput", "slo_percent": "SLO (%)", "joules_per_valid": "J / valid"}
    output.table(
        ["TPOT objective", "block", "policy", *(f"{name}\nours [paper]" for name in metrics.values())],
        [
            [
                f"{row['tpot_objective_ms']:.0f} ms",
                row["block"],
                row["label"],
                *(f"{output.number(row[m])} [{output.number(row[f'{m}_paper'])}]" for m in metrics),
            ]
            for row in made.table2
        ],
        left=3,
    )
    claims = [row for row in made.orders if row["in_paper"]]
    holds = sum(row["verdict"] == HOLDS for row in claims)
    output.say(
        f"{holds} of {len(claims)} comparisons of the paper's order hold, by paired 95 % intervals",
        *(
            f"- {row['block']}, {row['target']}, {row['metric']}: {row['better']} over {row['worse']} is "
            f"{row['verdict']}: {row['why']}"
            for row in made.orders
            if row["verdict"] != HOLDS
        ),
        f"tables and figures: {folder}",
    )


def prefillonly(
    seeds: o.Seeds = None,
    seed: o.Seed = None,
    jobs: o.Jobs = None,
    out: o.Out = None,
    resume: o.Resume = False,
    json: o.Json = False,
) -> None:
    """PrefillOnly's Table 2 and Figures 3 to 11, its "1.4 to 4.0 times the QPS", and its numbers beside ours."""
    from experiments import output
    from experiments.folders import check_free
    from experiments.prefillonly.grid import TITLES
    from experiments.prefillonly.pictures import NAMES, ratio_text
    from experiments.prefillonly.regenerate import SEEDS, regenerate
    from experiments.prefillonly.reproduction import claim_verdicts

    chosen = _seeds(seeds, seed, len(SEEDS))
    folder = out or Path("runs/figures-prefillonly")
    if not resume:
        check_free(folder)
    progress = not json and sys.stderr.isatty()
    made = regenerate(folder, seeds=chosen, resume=resume, jobs=jobs, progress=progress)
    agree = sum(row["verdict"] == "agrees" for row in made.numbers)
    if json:
        numbers = [{k: v for k, v in row.items() if k != "point"} for row in made.numbers]
        document = {"out": str(folder), "seeds": len(chosen), "agree": agree, "numbers": numbers}
        output.emit({**document, "ratios": made.ratios, "files": [str(path) for path in made.files]})
        return
    rows: dict[tuple[str, str, str], list[str]] = {}
    for row in claim_verdicts(made.ratios):
        rows.setdefault((row["setup"], row["workload"], row["system"]), []).extend([ratio_text(row), row["verdict"]])
    output.table(
        ["set-up", "workload", "baseline", "at equal mean latency", "", "at equal P99 latency", ""],
        [[setup, TITLES[workload], NAMES[system], *cells] for (setup, workload, system), cells in rows.items()],
        left=3,
    )
    output.say(
        "QPS that PrefillOnly sustains over the baseline's, at the latency that PrefillOnly has at its throughput with "
        "the whole dataset at once; the paper: 1.4 to 4.0",
        f"{agree} of {len(made.numbers)} numbers and readings of the paper come within 20 % of our 95 % interval",
        f"tables and figures: {folder}",
    )


def prefillonly_more(
    seeds: o.Seeds = None, seed: o.Seed = None, jobs: o.Jobs = None, out: o.Out = None, json: o.Json = False
) -> None:
    """The experiments that PrefillOnly left out."""
    from experiments import output
    from experiments.folders import claim
    from experiments.prefillonly.leftout import LEFT_OUT_SEEDS, run_left_out

    chosen = _seeds(seeds, seed, len(LEFT_OUT_SEEDS))
    folder = claim(out, "figures-prefillonly-more", lambda _: None, may_resume=False)
    files = run_left_out(folder, chosen, jobs)
    if json:
        output.emit({"out": str(folder), "seeds": len(chosen), "files": [str(path) for path in files]})
        return
    output.say(f"tables and figures: {folder}")


def _seeds(seeds: int | None, first: int | None, default: int) -> range:
    """Return the seeds that the options ask for.

    Raises:
        ConfigError: if there are too few for an interval.
    """
    from experiments.config import MOST_SEEDS, ConfigError

    n = default if seeds is None else seeds
    if not 2 <= n <= MOST_SEEDS:
        raise ConfigError(f"--seeds is {n}, but intervals need at least 2 seeds and at most {MOST_SEEDS} make sense")
    return range(first or 0, (first or 0) + n)
