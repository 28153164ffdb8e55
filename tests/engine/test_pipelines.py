"""Pipelines with memory, worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from costmodels import LinearCost
from costmodels.prefill import PipelineCost
from policies import parse_policy
from sim.engine import simulate
from sim.memory import Memory
from sim.records import FINISHED
from tests.engine.costs import prefill_only
from tests.engine.test_cases import batches, trace
from traces import Segments, Trace

SLOW_END = PipelineCost(
    "slow-end", (prefill_only(), LinearCost(step=100, decode=0, per_decode=0, prefill=0, per_token=0))
)
"""A first stage of a nanosecond per token, and a second one of a hundred per batch."""


OFFLOAD = Memory(
    regime="store",
    blocks=0,
    block_size=1,
    suffix="offload",
    cpu_blocks=9,
    bytes_per_block=10,
    pcie_bytes_per_s=10**9,
)
"""Everything cached is in CPU memory, ten nanoseconds per token away."""


def one_token_blocks(n: int, prefix_cache: bool = False) -> Memory:
    return Memory(blocks=n + 1, block_size=1, prefix_cache=prefix_cache)


def segmented() -> Trace:
    """Four equal prompts of five tokens, the last three at once."""
    same = Segments(np.arange(5), np.zeros(4, dtype=np.int64), np.full(4, 5))
    return replace(trace((0, 5, 1), (1000, 5, 1), (1000, 5, 1), (1000, 5, 1)), segments=same)


def test_who_comes_while_the_next_request_waits_for_memory_may_go_before_it() -> None:
    """The second request does not fit beside the first; the third does, and comes before the first leaves."""
    requests = trace((0, 8, 1), (1, 9, 1), (50, 2, 1))
    run = simulate(requests, parse_policy("srjf-static+full"), SLOW_END, cache=one_token_blocks(10).build(requests))
    assert batches(run) == [{0: 8}, {2: 2}, {1: 9}]
    assert run.steps["start_ns"].tolist() == [0, 50, 208]


def test_a_request_whose_batch_is_under_way_cannot_be_preempted() -> None:
    """Three of seven blocks are those of a request that has run, so the one that needs them loses its own and waits."""
    requests = trace((0, 7, 1), (0, 3, 1))
    policy = parse_policy("fcfs+token-budget:budget=8,seqs=4,threshold=3")
    run = simulate(requests, policy, SLOW_END, cache=one_token_blocks(7).build(requests))
    assert batches(run) == [{0: 3, 1: 3}, {0: 3}, {0: 3}, {0: 1}]
    assert run.steps["start_ns"].tolist()[:2] == [0, 106]
    assert run.preemptions["request"].tolist() == [0]
    assert (run.requests["outcome"] == FINISHED).all()


def test_stages_wait_for_blocks_from_cpu_memory_too() -> None:
    """The second batch waits 40 ns before its first stage; no stage works on two batches at once."""
    requests = segmented()
    run = simulate(requests, parse_policy("fcfs+full"), SLOW_END, cache=OFFLOAD.build(requests))
    steps = run.steps
    assert run.requests["cached_tokens"].tolist() == [0, 4, 4, 4]
    # The second: 40 ns of transfer, 1 ns in the first stage, 100 ns in the second. Then the next one's are here.
    assert steps["start_ns"].tolist() == [0, 1000, 1041, 1141]
    assert steps["duration_ns"].tolist() == [105, 141, 200, 200]
    assert steps["busy_ns"].tolist() == [52, 50, 50, 50]


def test_blocks_of_the_next_request_come_while_another_runs() -> None:
    """Without a pipeline: the first of three waits 40 ns for its four blocks, the others' are sent for in time."""
    requests = segmented()
    run = simulate(
        requests,
        parse_policy("fcfs+full"),
        LinearCost(step=100, decode=0, per_decode=0, prefill=0, per_token=1),
        cache=OFFLOAD.build(requests),
    )
    hundred = run.steps["duration_ns"] - run.steps["prefill_tokens"]
    assert hundred.tolist() == [100, 140, 100, 100]
    assert (run.steps["busy_ns"] == 100 + run.steps["prefill_tokens"]).all()


def test_what_is_predicted_of_a_batch_is_its_work_not_its_way_through_the_stages() -> None:
    """The second batch waits for the second stage, which no predictor of steps knows."""
    requests = trace((0, 5, 1), (0, 5, 1))
    run = simulate(requests, parse_policy("fcfs+deadline-fill:tpot=9"), SLOW_END)
    assert run.steps["predicted_ns"].tolist() == [105, 105]
    assert run.steps["duration_ns"].tolist() == [105, 200]
