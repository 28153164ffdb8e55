"""The committed tables are what the code makes: quick ones whole, of the grids a sample of points with all seeds."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from costmodels import load_cost_model
from experiments.figures.check import committed_folder, compared, read_rows, same
from experiments.figures.parts import parts
from experiments.findings.table import read_table
from experiments.prefillonly.bench import METRICS, Load, aggregate, run_all, runs_of
from experiments.prefillonly.claims import draw_claims
from experiments.prefillonly.grid import CREDIT, LONGEST, SHUFFLED
from experiments.prefillonly.hitrates import ORDERING
from experiments.prefillonly.memory_pictures import draw_figure3, draw_figure4, draw_figure10, draw_table2
from experiments.prefillonly.regenerate import SEEDS
from experiments.prefillonly.systems import SETUPS, deploy
from experiments.prefillonly.toy import draw_figure5
from experiments.sloweave.gpu_blocks import load_experiment
from experiments.sloweave.gpu_runs import GpuRuns, run_seed
from experiments.sloweave.grid import NAMES, WORKLOADS
from experiments.sloweave.regenerate import SEEDS as SLOWEAVE_SEEDS
from experiments.sloweave.timeline import draw_figure2
from policies import parse_policy
from sim.engine import simulate
from sim.metrics import summarise
from sim.objectives import MS, Objectives
from sim.stats import t_interval
from traces.synthetic import SLOWEAVE, generate

DOCS = Path(__file__).resolve().parents[2] / "docs"

QUICK: dict[str, tuple[Callable[[Path], list[Path]], ...]] = {
    "sloweave": (draw_figure2,),
    "prefillonly": (
        draw_table2,
        draw_figure3,
        draw_figure4,
        draw_figure5,
        draw_figure10,
        lambda folder: draw_claims(folder, SEEDS),
    ),
}
"""What takes a few seconds at most, by part."""


@pytest.mark.parametrize("part", QUICK)
def test_quick_tables_are_the_committed_ones(part: str, tmp_path: Path, undrawn: None) -> None:
    made = [path for draw in QUICK[part] for path in draw(tmp_path) if path.suffix == ".csv"]
    assert len(made) == len(QUICK[part])
    for path in made:
        committed = read_rows(DOCS / "figures" / part / path.name)
        assert not compared(path.name, committed, read_rows(path))
        # The comparison is not blind: a number that is off by a hundred-thousandth is seen.
        row = next(k for k, line in enumerate(committed) for text in line if _is_float(text))
        column = next(k for k, text in enumerate(committed[row]) if _is_float(text))
        committed[row][column] = repr(float(committed[row][column]) * (1 + 1e-5))
        assert len(compared(path.name, committed, read_rows(path))) == 1


def _is_float(text: str) -> bool:
    return "." in text and text.replace(".", "").replace("-", "").isdigit() and float(text) != 0


Found = tuple[str, str, dict[str, Any], dict[str, Any]]
"""Part, table, the columns that tell the row, and what they hold in it."""


def spread(name: str, values: list[float]) -> dict[str, float | None]:
    return dict(zip((name, f"{name}_lo", f"{name}_hi"), t_interval(values), strict=True))


@functools.cache
def sloweave_runs(workload: str, policy: str, tpot_ms: int = 25) -> list[dict[str, float]]:
    cost, goals = (
        load_cost_model("sloweave-paper"),
        Objectives(round(SLOWEAVE[workload].ttft_ms * MS), tpot_p99=tpot_ms * MS),
    )
    runs = [simulate(generate(workload, s), parse_policy(policy), cost, objectives=goals) for s in SLOWEAVE_SEEDS]
    return [summarise(run.requests, run.steps, goals) for run in runs]


def sloweave_point(workload: str, policy: str) -> Found:
    """A row of Table 3: 20 runs."""
    found = sloweave_runs(workload, policy)
    row: dict[str, Any] = {}
    for metric in ("ttft_p99_ms", "tpot_p99_ms", "goodput"):
        row |= spread(metric, [float(f[metric]) for f in found])
    row |= spread("slo_percent", [100 * float(f["slo_attainment"]) for f in found])
    return "sloweave", "table3", {"workload": workload, "policy": NAMES[policy]}, row


def tight_point(workload: str) -> Found:
    """A point of Figure 5 at 10 ms: 20 runs."""
    at = {"workload": workload, "policy": NAMES["sloweave"], "tpot_objective_ms": 10}
    return (
        "sloweave",
        "figure5",
        at,
        spread("goodput", [float(f["goodput"]) for f in sloweave_runs(workload, "sloweave", 10)]),
    )


@functools.cache
def gpu_row(target: str, role: str) -> Found:
    """A row of SLOWeave's Table 2: 10 runs; that chunk and budget are the best is not asked."""
    experiment = load_experiment()
    block = experiment.blocks[2]
    at = {"block": block.name, "target": target, "role": role}
    policy = read_table(DOCS / "figures" / "sloweave-gpu" / "table2.csv").where(**at).rows[0]["policy"]
    rows = [row for seed in range(experiment.seeds) for row in run_seed(block, seed, [policy])]
    runs = GpuRuns(experiment, rows, [], {(block.name, target): {role: policy}})
    return "sloweave-gpu", "table2", at, runs.estimates(block, target, role)


@functools.cache
def latency_point(setup: str, workload: str, system: str, table: str, multiple: float) -> Found:
    """A point of PrefillOnly's Figures 6 or 7: 10 runs."""
    at = {"setup": setup, "workload": workload, "system": system, "multiple": multiple}
    qps = read_table(DOCS / "figures" / "prefillonly" / f"{table}.csv").where(**at).rows[0]["qps"]
    metric = {"figure6": "jct_mean_ms", "figure7": "jct_p99_ms"}[table.partition("-")[0]]
    deployment = deploy(SETUPS[setup], system, LONGEST[workload])
    seconds = []
    for seed in SEEDS:
        run = deployment.run(generate(workload, seed, rate=qps))
        seconds.append(float(summarise(run.requests, run.steps, Objectives())[metric]) / 1e3)
    mean, lo, hi = t_interval(seconds)
    return "prefillonly", table, at, {"mean": mean, "lo": lo, "hi": hi}


@functools.cache
def ordering_point(multiple: float, name: str) -> Found:
    """A point of what PrefillOnly left out: 5 runs."""
    at = {"arrivals": "credit", "multiple": multiple, "ordering": name}
    qps = read_table(DOCS / "figures" / "prefillonly-more" / "left-out-orderings.csv").where(**at).rows[0]["qps"]
    system = deploy(SETUPS["h100"], "prefillonly", LONGEST[CREDIT]).with_policy("prefillonly:lam=0")
    (row,) = aggregate(run_all(runs_of([(at, system, Load(CREDIT, qps))], range(5)), 1), ORDERING.by, METRICS)
    return "prefillonly-more", "left-out-orderings", at, row


SAMPLE = {
    **{
        f"sloweave, {workload}, {policy}": functools.partial(sloweave_point, workload, policy)
        for workload, policy in (
            *((w, "sloweave") for w in WORKLOADS),
            # Each of the static policies once.
            ("chat", "fcfs+fixed:chunk=64"),
            ("chat", "fcfs+fixed:chunk=256"),
            ("bursty", "fcfs+fixed:chunk=1024"),
            ("long", "fcfs+full"),
        )
    },
    "sloweave, mixed, 10 ms": lambda: tight_point("mixed"),
    "sloweave, long, 10 ms": lambda: tight_point("long"),
    "sloweave-gpu": lambda: gpu_row("scaled", "default"),
    "prefillonly, credit": lambda: latency_point("l4", CREDIT, "prefillonly", "figure7", 2),
    "prefillonly, shuffled": lambda: latency_point("h100", SHUFFLED, "tensor", "figure7-shuffled", 0.5),
    "prefillonly-more": lambda: ordering_point(2, "calibrated, λ=0"),
}


@pytest.mark.parametrize("sample", SAMPLE.values(), ids=list(SAMPLE))
def test_points_of_the_grids_are_the_committed_ones(sample: Callable[[], Found]) -> None:
    part, table, at, made = sample()
    (row,) = read_table(DOCS / "figures" / part / f"{table}.csv").where(**at).rows
    assert sum(isinstance(value, float) for value in made.values()) >= 3
    for name, value in made.items():
        assert same(_cell(row[name]), _cell(value)), (name, row[name], value)
        if isinstance(value, float) and value:
            assert not same(_cell(row[name] * (1 + 1e-5)), _cell(value)), name


def _cell(value: Any) -> str:
    """As :func:`experiments.tables.csv_bytes` writes it; a whole number that was read is a number like any other."""
    return "" if value is None else str(float(value)) if isinstance(value, int | float) else str(value)


def test_every_part_has_its_tables_and_nothing_else_is_committed() -> None:
    folders = {committed_folder(part) for part in parts()}
    assert set((DOCS / "figures").iterdir()) <= folders
    for part in parts():
        names = {path.name for path in committed_folder(part).glob("*.csv")}
        assert names
        assert not names & set(part.uncompared)
    committed = [*(DOCS / "figures").rglob("*"), *(DOCS / "findings").glob("*.csv")]
    assert {path.suffix for path in committed if path.is_file()} == {".csv"}
    assert sum(path.stat().st_size for path in committed if path.is_file()) < 3e6
