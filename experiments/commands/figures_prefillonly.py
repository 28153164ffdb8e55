"""``prefillsim figures prefillonly`` and ``prefillonly-more``."""

from __future__ import annotations

import sys
from pathlib import Path

from experiments.commands import figures_options
from experiments.commands import options as o


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

    chosen = figures_options.seeds_of(seeds, seed, len(SEEDS))
    folder = out or Path("runs/figures-prefillonly")
    if not resume:
        check_free(folder)
    progress = not json and sys.stderr.isatty()
    with figures_options.resumable(folder):
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

    chosen = figures_options.seeds_of(seeds, seed, len(LEFT_OUT_SEEDS))
    folder = claim(out, "figures-prefillonly-more", lambda _: None, may_resume=False)
    files = run_left_out(folder, chosen, jobs)
    if json:
        output.emit({"out": str(folder), "seeds": len(chosen), "files": [str(path) for path in files]})
        return
    output.say(f"tables and figures: {folder}")
