"""Engines with two steps in flight equal the naive loop, in every table and to the last bit."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from costmodels import CostModel
from sim.engine import Limits
from sim.objectives import Objectives
from tests.engine import strategies
from tests.engine.compare import assert_same_run
from tests.engine.costs import PAPER, GrowingCost
from tests.engine.memories import crowded_runs, pool_runs
from tests.engine.naive import naive
from tests.engine.strategies import Run, ms
from traces import Trace
from traces.synthetic import generate

quietly = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


def deep(run: Run) -> Run:
    return replace(run, limits=replace(run.limits, pipeline_depth=2))


@settings(quietly, max_examples=150)
@given(strategies.runs().map(deep))
def test_any_policy(run: Run) -> None:
    stepwise = run.simulate(stretch=False)
    assert_same_run(stepwise, naive(run))
    assert_same_run(run.simulate(), stepwise)


@settings(quietly, max_examples=150)
@given(st.one_of(pool_runs(), crowded_runs()).map(deep))
def test_vllm_s_pool(run: Run) -> None:
    stepwise = run.simulate(stretch=False)
    assert_same_run(stepwise, naive(run))
    assert_same_run(run.simulate(), stepwise)


@settings(quietly, max_examples=60)
@given(
    strategies.traces(max_size=6, max_output=150),
    st.sampled_from(["fcfs+full", "fcfs+fixed:chunk=9", f"sloweave:tpot={ms(90)}", "sarathi:budget=16,seqs=3"]),
    strategies.costs,
    strategies.maybe(strategies.costs),
    strategies.rarely(st.integers(500, 9000)),
)
def test_stretches_change_nothing(
    trace: Trace, policy: str, cost: CostModel, predictor: CostModel | None, horizon: int | None
) -> None:
    """Long outputs and few requests make long decode-only stretches."""
    run = deep(Run(trace, policy, cost, predictor, limits=Limits(horizon_ns=horizon)))
    stepwise = run.simulate(stretch=False)
    assert_same_run(run.simulate(stretch=True), stepwise)
    assert_same_run(stepwise, naive(run))


@pytest.mark.parametrize(
    "policy",
    [
        "fcfs+full",
        "sloweave",
        "sloweave:margin=5%,age=100,overrun=20",
        "vllm-default",
        "prefillonly:lam=2000",
        "edf+deadline-fill+decode-saturation:fraction=0.5",
        "test-hrrn+test-learning:start=64",
    ],
)
@pytest.mark.parametrize("cost", [PAPER, GrowingCost(base=900_000, batch=90, context=4000, tokens=5500, pairs=400)])
def test_sloweave_workload_at_its_own_scale(policy: str, cost: CostModel) -> None:
    run = Run(generate("mixed", seed=3, n=60), policy, cost, objectives=Objectives.parse("ttft:1000,tpot_p99:25"))
    assert_same_run(deep(run).simulate(), naive(deep(run)))
