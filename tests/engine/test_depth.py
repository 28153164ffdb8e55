"""Engines with two steps in flight equal the naive loop, in every table and to the last bit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
import pytest

from costmodels import CostModel
from policies import Policy
from sim.limits import Limits
from sim.memory import Memory
from sim.objectives import Objectives
from tests.engine import strategies
from tests.engine.compare import assert_same_run
from tests.engine.costs import PAPER, GrowingCost
from tests.engine.memories import crowded_runs, largest, pool_runs
from tests.engine.naive import naive
from tests.engine.strategies import Run, ms
from tests.seeded import built, cases, either, maybe, pick, rarely, whole
from traces import Trace
from traces.synthetic import generate


@dataclass(frozen=True)
class Watched(Run):
    """A run that keeps what its policy sees and learns."""

    seen: list[tuple[object, ...]] = field(default_factory=list)

    def build(self) -> Policy:
        policy = super().build()
        watched = [(policy.chunking, "grant"), *((part, "observe") for part in policy.observers)]
        for part, name in [*watched, *([(policy.admission, "admit")] if policy.admission else [])]:
            object.__setattr__(part, name, self._watch(name, getattr(part, name)))
        return policy

    def _watch(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def watch(*args: object) -> object:
            self.seen.append((name, *args))
            return method(*args)

        return watch


def deep(run: Run) -> Watched:
    own = {f.name: getattr(run, f.name) for f in fields(Run)}
    return Watched(**own | {"limits": replace(run.limits, pipeline_depth=2)})


def check(run: Watched) -> None:
    """Fail unless the engine, step by step and in stretches, does and shows what the naive loop does and shows."""
    expected, seen = naive(run), [*run.seen]
    for stretch in (False, True):
        run.seen.clear()
        assert_same_run(run.simulate(stretch), expected)
        assert run.seen == seen


@cases(100, built(deep, strategies.runs()))
def test_any_policy(run: Watched) -> None:
    check(run)


def seated(run: Run, seats: int) -> Run:
    """Limit how many run at once, except where the policy does that itself."""
    return run if "budget" in run.policy else replace(run, limits=replace(run.limits, max_num_seqs=seats))


@cases(100, built(deep, either(pool_runs(), crowded_runs(), built(seated, crowded_runs(), whole(3, 8)))))
def test_vllm_s_pool(run: Watched) -> None:
    check(run)


def squeezed(n: int, block: int, spare: int, chunk: int, budget: int, seed: int) -> Run:
    """Let a long prompt need the blocks of many short requests behind it, some blocks at a time."""
    rng = np.random.default_rng(seed)
    prompts = np.array([rng.integers(30, 70), *rng.integers(1, 9, n)])
    outputs = np.array([rng.integers(1, 4), *rng.integers(5, 40, n)])
    trace = Trace(np.cumsum([0, *rng.integers(0, 3, n)]), prompts, outputs)
    memory = Memory(blocks=largest(trace, block) + 1 + spare, block_size=block)
    return Run(trace, f"fcfs+token-budget:budget={budget},threshold={chunk},seqs=9", PAPER, memory=memory)


@cases(60, built(squeezed, whole(2, 8), whole(1, 4), whole(0, 12), whole(2, 16), whole(20, 40), whole(0, 2**32)))
def test_what_a_victim_leaves_in_the_cache(run: Run) -> None:
    """Its newest token is not known yet, so the block that it fills cannot be found again."""
    check(deep(run))


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
    check(deep(Run(trace, policy, cost, predictor, limits=Limits(horizon_ns=horizon))))


@pytest.mark.parametrize(
    "policy",
    [
        "fcfs+full",
        "sloweave",
        "sloweave:margin=5%,age=100,overrun=20",
        "vllm-default",
        "prefillonly:lam=2000",
        "edf+deadline-fill+decode-saturation:fraction=0.5",
        "fcfs+test-learning:start=64",
    ],
)
@pytest.mark.parametrize("cost", [PAPER, GrowingCost(base=900_000, batch=90, context=4000, tokens=5500, pairs=400)])
def test_sloweave_workload_at_its_own_scale(policy: str, cost: CostModel) -> None:
    # Chunks that shrink whenever a step is long make a hundred times as many steps.
    n = 12 if "learning" in policy else 40
    run = Run(generate("mixed", seed=3, n=n), policy, cost, objectives=Objectives.parse("ttft:1000,tpot_p99:25"))
    check(deep(run))


def test_a_victim_whose_last_token_is_in_flight_finishes_with_it() -> None:
    """Request 0 lacks a block for step 3, in which 1, then last in the batch, needs nothing any more."""
    trace = Trace(np.array([0, 0, 10**9, 10**9]), np.array([2, 2, 1, 1]), np.array([6, 2, 3, 3]))
    run = deep(Run(trace, "fcfs+full", PAPER, limits=Limits(max_num_seqs=2), memory=Memory(blocks=8, block_size=1)))
    check(run)
    tables = run.simulate()
    assert {name: column.tolist() for name, column in tables.preemptions.items()} == {
        "step": [3],
        "request": [1],
        "after": [2],
        "until": [-1],
    }
    ends = tables.steps["start_ns"] + tables.steps["duration_ns"]
    assert tables.requests["finished_ns"][1] == ends[2]
    assert tables.requests["generated_tokens"].tolist() == [6, 2, 3, 3]
    assert tables.steps["kv_blocks"].tolist()[:4] == [2, 5, 7, 5]
    assert tables.steps["n_decode"][-3:].max() == 2, "its seat is free again, so the later two run together"
