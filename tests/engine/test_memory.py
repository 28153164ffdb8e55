"""Engines with KV memory equal the naive loop with the naive memory, in every table and to the last bit."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.engine.compare import assert_same_run
from tests.engine.memories import ONE_TOKEN, PIPELINES, crowded_runs, pool_runs, store_runs
from tests.engine.naive import naive
from tests.engine.strategies import Run
from tests.seeded import just

quietly = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


@settings(quietly, max_examples=200)
@given(st.one_of(pool_runs(), crowded_runs()))
def test_vllm_s_pool(run: Run) -> None:
    stepwise = run.simulate(stretch=False)
    assert_same_run(stepwise, naive(run))
    assert_same_run(run.simulate(), stepwise)


@settings(quietly, max_examples=60)
@given(crowded_runs(just("fcfs+test-capped")))
def test_prefills_that_pause_need_no_blocks(run: Run) -> None:
    assert_same_run(run.simulate(), naive(run))


@settings(quietly, max_examples=100)
@given(store_runs())
def test_prefillonly_s_store(run: Run) -> None:
    assert_same_run(run.simulate(), naive(run))


@settings(quietly, max_examples=100)
@given(pool_runs(cost=PIPELINES, one_token=ONE_TOKEN))
def test_a_pipeline_with_vllm_s_pool(run: Run) -> None:
    assert_same_run(run.simulate(), naive(run))


@settings(quietly, max_examples=100)
@given(store_runs(cost=PIPELINES))
def test_a_pipeline_with_a_store(run: Run) -> None:
    assert_same_run(run.simulate(), naive(run))
