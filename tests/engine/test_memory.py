"""Engines with KV memory equal the naive loop with the naive memory, in every table and to the last bit."""

from __future__ import annotations

from tests.engine.compare import assert_same_run
from tests.engine.memories import ONE_TOKEN, PIPELINES, crowded_runs, pool_runs, store_runs
from tests.engine.naive import naive
from tests.engine.strategies import Run
from tests.seeded import cases, either, just


@cases(200, either(pool_runs(), crowded_runs()))
def test_vllm_s_pool(run: Run) -> None:
    stepwise = run.simulate(stretch=False)
    assert_same_run(stepwise, naive(run))
    assert_same_run(run.simulate(), stepwise)


@cases(60, crowded_runs(just("fcfs+test-capped")))
def test_prefills_that_pause_need_no_blocks(run: Run) -> None:
    assert_same_run(run.simulate(), naive(run))


@cases(100, store_runs())
def test_prefillonly_s_store(run: Run) -> None:
    assert_same_run(run.simulate(), naive(run))


@cases(100, pool_runs(cost=PIPELINES, one_token=ONE_TOKEN))
def test_a_pipeline_with_vllm_s_pool(run: Run) -> None:
    assert_same_run(run.simulate(), naive(run))


@cases(100, store_runs(cost=PIPELINES))
def test_a_pipeline_with_a_store(run: Run) -> None:
    assert_same_run(run.simulate(), naive(run))
