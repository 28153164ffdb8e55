"""Bounds on prefill-only latencies: nobody beats SRPT, and arrival order is what Pollaczek and Khinchine say."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.axes import only_cell, plan
from experiments.bounds import bound_lines, bounds_of, compared, pollaczek_khinchine_ns, regret, srpt_ns, work_ns
from experiments.cells import Cell
from experiments.run import simulate_cell
from sim.stats import t_interval
from tests.experiments.runs import drafted
from tests.seeded import cases
from tests.theory.test_priorities import srpt_sojourns

ONE_BY_ONE = ("fcfs+full", "srjf-static+full", "prefillonly", "fcfs+fixed:chunk=2000", "lpm+full", "hrrn+full")

POSTS = "post-recommendation:arrivals=requests"


def cell_of(**values: Any) -> Cell:
    common = {"trace.workload": POSTS, "slo": "jct:1000", "policies": ["fcfs+full"]}
    return only_cell(plan(drafted(**{**common, **values})))


def rows_of(rng: random.Random) -> list[tuple[int, int]]:
    """Arrivals and sizes, many of them equal where there are few to choose from."""
    latest, largest = rng.choice((0, 5, 50)), rng.choice((1, 3, 30))
    return [(rng.randint(0, latest), rng.randint(1, largest)) for _ in range(rng.randint(1, 20))]


@cases(100, rows_of)
def test_srpt_is_the_theorys(rows: list[tuple[int, int]]) -> None:
    arrivals = sorted(at for at, _ in rows)
    sizes = [size for _, size in rows]
    expected = srpt_sojourns(arrivals, sizes).mean()
    assert srpt_ns(np.array(arrivals), np.array(sizes)) == pytest.approx(expected)


@settings(max_examples=20, deadline=None)
@given(st.sampled_from(ONE_BY_ONE), st.sampled_from([0.5, 3.0, 30.0]), st.integers(0, 5))
def test_nobody_is_better_than_srpt(policy: str, rate: float, seed: int) -> None:
    cell = cell_of(policies=[policy], seeds=[seed], **{"trace.rate": rate})
    _, _, result = simulate_cell(cell)
    above = regret(cell, result, bounds_of(cell))
    assert above is not None
    assert above >= -1e-12


def test_shortest_first_is_srpt_where_nothing_could_be_interrupted() -> None:
    at_once = {"trace.workload": "credit-verification:arrivals=all-at-once", "trace.limit": 40}
    regrets = {}
    for policy in ("srjf-static+full", "fcfs+full"):
        cell = cell_of(policies=[policy], **at_once)
        regrets[policy] = regret(cell, simulate_cell(cell)[2], bounds_of(cell))
    assert regrets["srjf-static+full"] == pytest.approx(0)
    assert regrets["fcfs+full"] is not None
    assert regrets["fcfs+full"] > 0.01


def test_arrival_order_is_what_pollaczek_and_khinchine_say() -> None:
    """At a load of one half; the long run's mean lies within the 99.9 % interval of 12 seeds' ratios."""
    ratios = []
    for seed in range(12):
        cell = cell_of(seeds=[seed], **{"trace.limit": 1000})
        trace = cell.source.load(seed)
        half = 0.5 / (work_ns(trace, cell.cost).mean() / 1e9)
        cell = cell_of(seeds=[seed], **{"trace.limit": 1000, "trace.rate": half})
        bounds = bounds_of(cell)
        summary = simulate_cell(cell)[2].summary
        assert bounds is not None
        assert bounds.pollaczek_khinchine_ms is not None
        assert summary is not None
        ratios.append(float(summary["jct_mean_ms"] or 0) / bounds.pollaczek_khinchine_ms)
    mean, low, high = t_interval(ratios, 0.999)
    assert mean is not None
    assert low is not None
    assert high is not None
    assert low < 1 < high
    assert high - low < 0.15


def test_too_much_work_has_no_long_run() -> None:
    cell = cell_of(**{"trace.rate": 1000.0})
    trace = cell.source.load(0)
    assert pollaczek_khinchine_ns(trace, work_ns(trace, cell.cost)) is None
    bounds = bounds_of(cell)
    assert bounds is not None
    assert bounds.pollaczek_khinchine_ms is None


@pytest.mark.parametrize(
    "values",
    [
        {"trace.workload": "mixed", "slo": "ttft:1000"},
        {"memory.blocks": 20_000},
        {"cluster.replicas": 2},
        {"engine.max_model_len": 20_000},
        {"engine.horizon": 1.0},
    ],
)
def test_where_they_do_not_apply(values: dict[str, Any]) -> None:
    assert bounds_of(cell_of(**values)) is None


@pytest.mark.parametrize(
    ("workload", "poisson"),
    [
        (POSTS, True),
        (f"{POSTS},burstiness=0.5", False),
        ("post-recommendation", False),
        ("credit-verification", True),
    ],
)
def test_which_arrivals_are_poisson(workload: str, poisson: bool) -> None:
    bounds = bounds_of(cell_of(**{"trace.workload": workload, "trace.rate": 0.01}))
    assert bounds is not None
    assert (bounds.pollaczek_khinchine_ms is not None) == poisson


def test_a_step_with_several_prefills_has_no_regret() -> None:
    cell = cell_of(policies=["sarathi:budget=40000"], **{"trace.rate": 100.0})
    _, _, result = simulate_cell(cell)
    assert result.summary is not None
    assert result.summary["batch_mean"] != 1
    assert regret(cell, result, bounds_of(cell)) is None


def test_compared_over_seeds() -> None:
    results, cells = {}, []
    for policy in ("fcfs+full", "srjf-static+full", "sarathi:budget=40000"):
        for seed in range(3):
            cell = cell_of(policies=[policy], seeds=[seed], **{"trace.limit": 60, "trace.rate": 5.0})
            cells.append(cell)
            results[cell.key] = simulate_cell(cell)[2]
    document = compared(cells, results)
    assert document is not None
    assert len(document["srpt_jct_mean_ms"]) == 3
    regrets = document["regret"]
    for policy in ("fcfs+full", "srjf-static+full"):
        low, high = regrets[policy]["ci95"]
        assert regrets[policy]["mean"] == pytest.approx(np.mean(regrets[policy]["per_seed"]))
        assert low < regrets[policy]["mean"] < high
    lines = bound_lines(document)
    assert "SRPT" in lines[0]
    assert "Pollaczek-Khinchine" in lines[0]
    assert "srjf-static+full" in lines[1]
    assert compared([cell_of(**{"memory.blocks": 20_000})], {}) is None
    assert bound_lines(None) == []
