"""SLOWeave's GPU table: the paper's numbers, the scaling to a GPU's own time, and verdicts that can go either way."""

import functools
from dataclasses import replace

import numpy as np
import pytest

from costmodels import LinearCost, load_cost_model, save_cost_model
from costmodels.linear import COEFFICIENTS
from experiments.sloweave.gpu import regenerate_gpu
from experiments.sloweave.gpu_blocks import (
    OBJECTIVES,
    PRINTED,
    SCALED,
    Block,
    GpuExperiment,
    load_experiment,
    paper_rows,
)
from experiments.sloweave.gpu_order import HOLDS, REVERSED, TIED, order_rows, table2_rows
from experiments.sloweave.gpu_runs import DEFAULT, FIXED, OURS, GpuRuns, run_gpu, run_seed
from experiments.sloweave.grid import NAMES
from experiments.tables import Rows
from policies import parse_policy
from sim.engine import simulate
from sim.metrics import summarise
from sim.objectives import MS, Objectives
from traces.synthetic import SLOWEAVE, generate

FULL = load_experiment()

SMALL = replace(
    FULL,
    blocks=tuple(replace(block, requests=80) for block in FULL.blocks[:2]),
    chunks=(512, 1536),
    budgets=(512, 1536),
    tuning_seeds=1,
)


@functools.cache
def small_runs() -> GpuRuns:
    return run_gpu(SMALL, range(2), jobs=1)


def test_every_row_of_the_paper_is_there_and_keeps_its_own_identity() -> None:
    """Goodput is throughput times attainment, in all nine rows, to the digits that are printed."""
    paper = paper_rows()
    assert {block for block, _ in paper} == {block.name for block in FULL.blocks}
    assert len(paper) == 9
    for row in paper.values():
        assert row["throughput"] * row["slo_percent"] / 100 == pytest.approx(row["goodput"], abs=0.06)


def test_the_papers_order_is_what_is_claimed() -> None:
    paper = paper_rows()
    for block in FULL.blocks:
        ours, fixed, default = (paper[block.name, role] for role in (OURS, FIXED, DEFAULT))
        assert ours["goodput"] > fixed["goodput"] > default["goodput"]
        assert ours["joules_per_valid"] < fixed["joules_per_valid"] < default["joules_per_valid"]


def test_on_the_papers_own_cost_model_nothing_is_scaled() -> None:
    """The row is then the simulator's own run, for KV memory is not short."""
    block = replace(FULL.blocks[0], cost_model="sloweave-paper")
    assert block.scale == 1
    assert block.rate == SLOWEAVE["mixed"].rate
    assert block.objectives(SCALED) == block.objectives(PRINTED) == Objectives(ttft=1000 * MS, tpot_p99=25 * MS)
    trace, cost, goals = generate("mixed", 0), load_cost_model("sloweave-paper"), block.objectives(SCALED)
    policies = [p for p in NAMES if p != "fcfs+fixed:chunk=64"]
    for row in run_seed(block, 0, policies):
        tables = simulate(trace, parse_policy(row["policy"]), cost, objectives=goals)
        plain = summarise(tables.requests, tables.steps, goals)
        for metric in ("ttft_p99_ms", "tpot_p99_ms", "throughput", "goodput"):
            assert row[metric] == plain[metric], (row["policy"], metric)


PAPERS = replace(FULL.blocks[2], cost_model="sloweave-paper", requests=300)

PAIR = ["fcfs+fixed:chunk=128", "sloweave"]
"""Of whose requests some are valid, and all."""


@functools.cache
def paper_pair() -> Rows:
    return run_seed(PAPERS, 3, PAIR)


@pytest.mark.parametrize("factor", [3, 40])
def test_a_gpu_that_is_only_slower_is_the_same_experiment(tmp_path, factor: int) -> None:
    """All times of the paper's model times a factor: the scale is that factor, and the same requests are valid."""
    paper = load_cost_model("sloweave-paper")
    assert isinstance(paper, LinearCost)
    slow = replace(paper, name="slow", **{c: factor * getattr(paper, c) for c in COEFFICIENTS})
    save_cost_model(slow, tmp_path / "slow.json")
    slower = replace(PAPERS, cost_model=str(tmp_path / "slow.json"))
    assert slower.scale == pytest.approx(factor)
    # Arrivals and objectives are stretched to the nanosecond, not beyond.
    assert 100 < paper_pair()[0]["valid"] < 200
    for a, b in zip(paper_pair(), run_seed(slower, 3, PAIR), strict=True):
        if a["target"] == SCALED:
            assert b["valid"] == pytest.approx(a["valid"], abs=1)
            assert b["ttft_p99_ms"] == pytest.approx(factor * a["ttft_p99_ms"], rel=1e-4)


def test_what_is_offered_over_what_can_be_done_is_the_simulators() -> None:
    for block in FULL.blocks:
        assert block.load == pytest.approx(SLOWEAVE[block.workload].rate / block.paper_capacity)
        arrivals = block.trace(0).arrival_ns / generate(block.workload, 0).arrival_ns.clip(1)
        assert arrivals[1:] == pytest.approx(block.scale, rel=1e-6)
        assert block.objectives(PRINTED).tpot_p99 == 25 * MS
        assert block.objectives(SCALED).tpot_p99 == round(25 * MS * block.scale)


def test_regenerating_writes_everything_and_the_same_numbers_again(tmp_path, light_pictures) -> None:
    made = regenerate_gpu(tmp_path / "a", range(2), jobs=1, experiment=SMALL)
    names = {f"{stem}.{suffix}" for stem in ("table2", "figure3") for suffix in ("png", "pdf", "csv")}
    assert {p.name for p in made.files} == names | {"sloweave-gpu.md", "order.csv", "per-seed.csv", "tuning.csv"}
    runs = small_runs()
    assert made.table2 == table2_rows(runs)
    assert made.orders == order_rows(runs)
    assert len(made.orders) == len(OBJECTIVES) * len(SMALL.blocks) * 3 * 2
    text = (tmp_path / "a" / "sloweave-gpu.md").read_text()
    for block in SMALL.blocks:
        assert f"{block.rate:.2f}" in text


def test_rows_are_means_of_their_seeds_and_identities_hold() -> None:
    runs = small_runs()
    for row in table2_rows(runs):
        own = [
            r
            for r in runs.rows
            if (r["block"], r["target"], r["policy"]) == (row["block"], row["target"], row["policy"])
        ]
        assert len(own) == 2
        assert row["goodput"] == pytest.approx(np.mean([r["goodput"] for r in own]))
        for r in own:
            assert r["goodput"] == pytest.approx(r["throughput"] * r["slo_percent"] / 100)
            assert r["valid_per_kj"] * r["energy_j"] == pytest.approx(1e3 * r["valid"])
        joules, valid = sum(r["energy_j"] for r in own), sum(r["valid"] for r in own)
        assert row["joules_per_valid"] == (pytest.approx(joules / valid) if valid else None)


def test_chunk_and_budget_are_chosen_on_other_seeds() -> None:
    runs = small_runs()
    assert not {r["seed"] for r in runs.rows} & {r["seed"] for r in runs.tuning}
    for block in SMALL.blocks:
        for target in OBJECTIVES:
            tried = {
                r["policy"]: r["goodput"] for r in runs.tuning if (r["block"], r["target"]) == (block.name, target)
            }
            best = max(SMALL.fixed, key=lambda policy: tried[policy])
            assert runs.roles[block.name, target][FIXED] == best


def test_the_verdict_goes_where_the_numbers_go() -> None:
    """SLOWeave's rows raised, lowered, or made to differ from seed to seed."""
    runs, first = small_runs(), SMALL.blocks[0]

    def verdicts(change) -> set[str]:
        rows = [{**r, **(change(r) if r["policy"] == OURS else {})} for r in runs.rows]
        changed = GpuRuns(runs.experiment, rows, runs.tuning, runs.roles)
        mine = [
            r for r in order_rows(changed) if r["block"] == first.name and r["metric"] == "goodput" and r["in_paper"]
        ]
        return {r["verdict"] for r in mine if r["better"] == "SLOWeave"}

    assert verdicts(lambda r: {"goodput": 1000 + r["seed"] / 100}) == {HOLDS}
    assert verdicts(lambda r: {"goodput": -1000 - r["seed"] / 100}) == {REVERSED}
    assert verdicts(lambda r: {"goodput": (-1) ** r["seed"] * 1000.0}) == {TIED}


def test_blocks_fit_their_gpus() -> None:
    for block in FULL.blocks:
        assert isinstance(block, Block)
        assert block.memory.blocks is not None
        assert block.memory.blocks * 16 > 400_000
    assert isinstance(FULL, GpuExperiment)


def test_the_command(cli, monkeypatch) -> None:
    monkeypatch.setattr("experiments.sloweave.gpu_blocks.load_experiment", lambda: SMALL)
    monkeypatch.setattr("experiments.sloweave.gpu.load_experiment", lambda: SMALL)
    monkeypatch.setattr("experiments.sloweave.gpu.run_gpu", lambda experiment, seeds, jobs: small_runs())
    for picture in ("draw_table2", "draw_figure3"):
        monkeypatch.setattr(f"experiments.sloweave.gpu.{picture}", lambda *_: [])
    done = cli("figures", "sloweave-gpu", "--seeds", "2", "--jobs", "1", "--json")
    assert done.code == 0, done.err
    assert done.json["seeds"] == 2
    assert len(done.json["orders"]) == len(order_rows(small_runs()))
    shown = cli("figures", "sloweave-gpu", "--seeds", "2", "--jobs", "1", "--out", "again")
    assert "comparisons of the paper's order hold" in shown.out
    again = cli("figures", "sloweave-gpu", "--seeds", "2", "--out", "again")
    assert again.code == 2
    assert "is not empty" in again.err
    assert cli("figures", "sloweave-gpu", "--seeds", "1").code == 2
