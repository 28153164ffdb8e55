"""Cases with KV memory that other simulators got wrong, with the numbers of their reports."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from policies import parse_policy
from sim.engine import simulate
from sim.memory import Memory
from sim.records import FINISHED, REJECTED
from tests.engine.costs import PAPER
from tests.engine.test_cases import batches, outcomes, trace
from tests.tables import RunTables
from traces import Segments, Trace

TWENTY = Memory(blocks=21, block_size=16)
"""Blocks that requests can have; vLLM's null block comes on top."""


def run(requests: Trace, policy: str, memory: Memory, *, stretch: bool = True) -> RunTables:
    return simulate(requests, parse_policy(policy), PAPER, cache=memory.build(requests), stretch=stretch)


@pytest.mark.parametrize("policy", ["vllm-default", "fcfs+full", "sloweave:tpot=50", "prefillonly:lam=500"])
def test_a_request_larger_than_memory_is_rejected_and_the_next_is_served(policy: str) -> None:
    """Case 1 (inference-sim#373: the run never ended): 20 blocks, 1000→4 and then 100→4 at time 0."""
    tables = run(trace((0, 1000, 4), (0, 100, 4)), policy, TWENTY)
    assert tables.requests["outcome"].tolist() == [REJECTED, FINISHED]
    assert tables.reasons == {
        0: "needs 63 blocks of 16 tokens for 1000 prompt and 4 output tokens, but the cache has 20"
    }
    assert sum(outcomes(tables).values()) == 2
    assert tables.requests["generated_tokens"].tolist() == [0, 4]


@pytest.mark.parametrize("stretch", [False, True])
@pytest.mark.parametrize("prefix_cache", [False, True])
def test_two_requests_that_outgrow_memory_together(prefix_cache: bool, stretch: bool) -> None:
    """Case 2 (vllm-project/semantic-router#2890, inference-sim#297): 20 blocks, two of 128→150 at time 0.

    Both hold 10 blocks with 160 tokens computed and want their 11th for the next one. The later one is preempted, once,
    and comes back when the other has finished: until then that one needs up to 18 blocks.
    """
    memory = replace(TWENTY, prefix_cache=prefix_cache)
    tables = run(trace((0, 128, 150), (0, 128, 150)), "vllm-default", memory, stretch=stretch)
    assert outcomes(tables)["finished"] == 2
    assert tables.requests["generated_tokens"].tolist() == [150, 150]
    assert tables.requests["preemptions"].tolist() == [0, 1]
    # The prefill is step 0, and step k decodes token 128 + k.
    assert tables.preemptions["step"].tolist() == [33]
    assert tables.preemptions["after"].tolist() == [32]
    assert tables.steps["kv_blocks"].max() == 20
    assert tables.steps["kv_blocks"][32:34].tolist() == [20, 11]
    # Step 149 has the first one's last token. It has grown from 10 to 18 blocks, so 2 of the victim's 10 are left.
    assert tables.preemptions["until"].tolist() == [150]
    assert tables.chunks["tokens"].tolist() == [128, 128, 128 + 33 - (2 * 16 if prefix_cache else 0)]


def test_the_second_of_two_longer_prompts_waits() -> None:
    """Case 2, the variant with 190→100: 12 of 20 blocks are taken, so the second waits and nobody is preempted."""
    tables = run(trace((0, 190, 100), (0, 190, 100)), "vllm-default", TWENTY)
    assert outcomes(tables)["finished"] == 2
    assert tables.preemptions["step"].tolist() == []
    assert tables.requests["first_scheduled_ns"][1] == tables.requests["finished_ns"][0]
    assert tables.steps["kv_blocks"].max() == 19


@pytest.mark.parametrize("policy", ["fcfs+fixed:chunk=512", "fcfs+token-budget:budget=512", "fcfs+full"])
def test_chunks_take_no_more_memory_than_the_whole(policy: str) -> None:
    """Case 5 (sched-sim: every chunk took the whole prompt's blocks): 8192→1 peaks at 512 blocks, chunked or not."""
    tables = run(trace((0, 8192, 1)), policy, Memory(blocks=2000))
    assert tables.steps["kv_blocks"].max() == 512
    chunk = 8192 if policy == "fcfs+full" else 512
    assert tables.steps["kv_blocks"].tolist() == list(range(chunk // 16, 513, chunk // 16))


@pytest.mark.parametrize("memory", [Memory(blocks=50, block_size=4), Memory(regime="store", blocks=50, block_size=4)])
def test_the_second_of_two_equal_prompts_computes_its_last_block(memory: Memory) -> None:
    """Case 11 (inference-sim#196, #1057, #1121): 40 tokens, chunk 16, block 4: cold 40 computed, warm 4 of 40."""
    same = Segments(np.arange(3), np.zeros(2, dtype=np.int64), np.full(2, 40))
    requests = replace(trace((0, 40, 1), (10**9, 40, 1)), segments=same)
    tables = run(requests, "fcfs+fixed:chunk=16", memory)
    assert batches(tables) == [{0: 16}, {0: 16}, {0: 8}, {1: 4}]
    assert tables.requests["cached_tokens"].tolist() == [0, 36]
    # Attention of the warm one looks at what is cached too.
    assert tables.steps["prefill_pairs"].tolist()[-1] == 37 + 38 + 39 + 40


@pytest.mark.parametrize("prefix_cache", [False, True])
def test_times_of_a_preempted_request_add_up(prefix_cache: bool) -> None:
    """Case 12 (inference-sim#1091, #1095) on case 2: one TTFT, and gaps that sum to latency − TTFT."""
    tables = run(
        trace((0, 128, 150), (0, 128, 150)), "vllm-default", replace(TWENTY, prefix_cache=prefix_cache), stretch=False
    )
    requests = tables.requests
    assert (requests["jct_ns"] == requests["finished_ns"] - requests["arrival_ns"]).all()
    first_step = PAPER.step_ns(0, 0, 0, 2, 256, 0)
    assert requests["ttft_ns"].tolist() == [first_step, first_step]
    gaps = np.rint(requests["tpot_mean_ns"] * 149).astype(np.int64)
    assert (gaps == requests["jct_ns"] - requests["ttft_ns"]).all()
    # The longest is the pause.
    ends = tables.steps["start_ns"] + tables.steps["duration_ns"]
    after, until = int(tables.preemptions["after"][0]), int(tables.preemptions["until"][0])
    assert requests["itl_max_ns"][1] == ends[until] - ends[after]
