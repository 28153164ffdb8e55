"""The engine equals the naive loop of ``tests/reference.py``, in every table and to the last bit."""

from __future__ import annotations

import numpy as np
import pytest

from costmodels import CostModel
from policies.registry import KINDS, parts
from sim.limits import Limits
from sim.objectives import Objectives
from tests.engine import strategies
from tests.engine.compare import assert_same_run
from tests.engine.costs import PAPER, GrowingCost
from tests.engine.naive import naive
from tests.engine.strategies import Run, ms
from tests.seeded import cases, maybe, pick, rarely, whole
from traces import Trace
from traces.synthetic import generate


def test_every_built_in_part_is_drawn() -> None:
    """Else the engine would never meet a new one here."""
    for kind, drawn in zip(KINDS, (strategies.ORDERINGS, strategies.CHUNKINGS, strategies.ADMISSIONS), strict=True):
        assert set(drawn) == {n for n, part in parts(kind).items() if part.__module__.startswith("policies.")}


@cases(300, strategies.runs())
def test_engine_equals_the_naive_loop(run: Run) -> None:
    assert_same_run(run.simulate(), naive(run))


@cases(
    60,
    strategies.traces(max_size=6, max_output=150),
    pick("fcfs+full", "fcfs+fixed:chunk=9", f"sloweave:tpot={ms(90)}", "sarathi:budget=16,seqs=3"),
    strategies.COSTS,
    maybe(strategies.COSTS),
    rarely(whole(500, 9000)),
)
def test_stretches_change_nothing(
    trace: Trace, policy: str, cost: CostModel, predictor: CostModel | None, horizon: int | None
) -> None:
    """Long outputs and few requests make long decode-only stretches."""
    run = Run(trace, policy, cost, predictor, limits=Limits(horizon_ns=horizon))
    stepwise = run.simulate(stretch=False)
    assert_same_run(run.simulate(stretch=True), stepwise)
    assert_same_run(stepwise, naive(run))


@cases(
    80,
    strategies.traces(min_size=5, max_prompt=120, max_output=12),
    strategies.ANY_ORDERING,
    whole(40, 160),
    whole(0, 90),
    whole(1, 120),
    strategies.LINEAR_COSTS,
)
def test_exceptions_of_aged_prefills(
    trace: Trace, ordering: str, tpot: int, age: int, overrun: int, cost: CostModel
) -> None:
    """Aging shows only where prefills wait behind deadlines, which random policies seldom reach."""
    chunking = f"deadline-fill:tpot={ms(tpot)},age={ms(age + 1)},overrun={ms(overrun)}"
    run = Run(trace, f"{ordering}+{chunking}", cost)
    assert_same_run(run.simulate(), naive(run))


@pytest.mark.parametrize(
    "policy",
    [
        "fcfs+full",
        "fcfs+fixed:chunk=256",
        "sloweave",
        "sloweave:margin=5%,age=100,overrun=20",
        "vllm-default",
        "sarathi:threshold=128",
        "prefillonly:lam=2000",
        "edf+deadline-fill+decode-saturation:fraction=0.5",
        "test-hrrn+test-learning:start=64",
    ],
)
@pytest.mark.parametrize("cost", [PAPER, GrowingCost(base=900_000, batch=90, context=4000, tokens=5500, pairs=400)])
def test_sloweave_workload_at_its_own_scale(policy: str, cost: CostModel) -> None:
    # Chunks that shrink whenever a step is long make a hundred times as many steps.
    n = 12 if "learning" in policy else 60
    run = Run(generate("mixed", seed=3, n=n), policy, cost, objectives=Objectives.parse("ttft:1000,tpot_p99:25"))
    assert_same_run(run.simulate(), naive(run))


@pytest.mark.parametrize("policy", ["fcfs+full", "sloweave", "vllm-default", "test-hrrn+test-pair"])
def test_empty_trace(policy: str) -> None:
    empty = np.empty(0, dtype=np.int64)
    run = Run(Trace(empty, empty, empty), policy, PAPER)
    assert_same_run(run.simulate(), naive(run))
