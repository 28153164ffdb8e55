"""The engine with the heap runs as it does when every waiting request is looked up and scored at each decision."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from costmodels.jct import jct_model, ns_per_token
from policies import parse_policy
from sim.engine import simulate
from sim.memory import Memory
from tests.engine.compare import assert_same_run
from tests.engine.costs import GrowingCost
from tests.rescan import AlgorithmOne, Rescan
from tests.seeded import Maker, built, cases, just, pick, whole
from tests.sim.contents import contents
from traces import Trace

LONGEST = 1000

lams = pick("0", "1e7", "1e8", "333333333.3", "1e9")
estimators = pick("tokens", "linear", "attention", "perfect")
costs = built(GrowingCost, base=whole(1, 9), tokens=whole(1, 5), pairs=whole(0, 3))


def timed(made: tuple[Trace, int], gap: int, seed: int, prefill_only: bool) -> tuple[Trace, int]:
    trace, block = made
    gaps = np.random.default_rng(seed).integers(0, gap + 1, len(trace))
    outputs = np.ones_like(trace.output_tokens) if prefill_only else trace.output_tokens
    return replace(trace, arrival_ns=np.cumsum(gaps), output_tokens=outputs), block


def traces(prefill_only: Maker) -> Maker:
    return built(timed, contents(pick(1, 2, 4), 24), pick(0, 5, 40, 150), whole(0, 2**32), prefill_only)


def assert_heap_is_rescan(trace: Trace, memory: Memory, lam: str, jct: str, rest: str, cost: GrowingCost) -> None:
    heap = parse_policy(f"srjf-calibrated:lam={lam},jct={jct},longest={LONGEST}+{rest}")
    fast = simulate(trace, heap, cost, cache=memory.build(trace))
    cache = memory.build(trace)
    rescan = Rescan(lam)
    if jct != "tokens":
        rescan = Rescan(lam, jct_model(jct, cost, LONGEST).ns, ns_per_token(cost, LONGEST))
    ordering = AlgorithmOne(rescan, cache.hit_tokens)
    ordering.needs_predictor = heap.needs_predictor
    assert_same_run(fast, simulate(trace, replace(heap, ordering=ordering), cost, cache=cache))


@cases(60, traces(just(True)), whole(0, 12), lams, estimators, costs)
def test_prefill_only_serving_with_a_store(
    drawn: tuple[Trace, int], blocks: int, lam: str, jct: str, cost: GrowingCost
) -> None:
    """PrefillOnly's own regime, down to a store that holds nothing."""
    trace, block = drawn
    memory = Memory(regime="store", blocks=blocks, block_size=block)
    assert_heap_is_rescan(trace, memory, lam, jct, "full", cost)


@cases(60, traces(pick(False, True)), whole(0, 12), lams, estimators, costs, pick("full", "fixed:chunk=5"))
def test_one_pool_with_decodes_and_preemptions(
    drawn: tuple[Trace, int], spare: int, lam: str, jct: str, cost: GrowingCost, rest: str
) -> None:
    """The pool of vLLM, barely larger than the largest request."""
    trace, block = drawn
    needed = -(-int((trace.prompt_tokens + trace.output_tokens).max()) // block)
    memory = Memory(blocks=needed + 1 + spare, block_size=block)
    assert_heap_is_rescan(trace, memory, lam, jct, rest, cost)
