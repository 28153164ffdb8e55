"""``prefillsim figures sloweave`` and ``sloweave-gpu``."""

from __future__ import annotations

import sys
from pathlib import Path

from experiments.commands import figures_options
from experiments.commands import options as o


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

    chosen = figures_options.seeds_of(seeds, seed, len(SEEDS))
    folder = out or Path("runs/figures-sloweave")
    if not resume:
        check_free(folder)
    progress = not json and sys.stderr.isatty()
    with figures_options.resumable(folder):
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

    chosen = figures_options.seeds_of(seeds, seed, load_experiment().seeds)
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
