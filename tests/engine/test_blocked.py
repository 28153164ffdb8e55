"""Who is next may change while the next request waits for memory: with time, or as decodes evict what was cached."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from policies import parse_policy
from sim.engine import simulate
from sim.memory import Memory
from tests.engine.costs import prefill_only
from tests.engine.test_cases import trace
from traces import Segments


@pytest.mark.parametrize("stretch", [False, True])
def test_an_ordering_that_reads_the_clock(stretch: bool) -> None:
    """The first request decodes; of the two that wait the larger is next, and does not fit, until 23 ns.

    Then (23 - 20) / 16 of the small one's waiting ratio exceeds (23 - 10) / 80 of the large one's.
    """
    requests = trace((0, 16, 60), (10, 80, 1), (20, 16, 1))
    cache = Memory(blocks=7).build(requests)
    run = simulate(requests, parse_policy("test-hrrn+full"), prefill_only(), cache=cache, stretch=stretch)
    first, large, small = run.requests["first_scheduled_ns"].tolist()
    assert (first, small) == (0, 23)
    assert large == run.requests["finished_ns"][0]


@pytest.mark.parametrize("stretch", [False, True])
def test_an_ordering_that_reads_the_cache(stretch: bool) -> None:
    """Three prompts leave 2, 1 and 6 blocks in a cache of 16; one that decodes takes the 7 others, then those 2.

    The longest cached prefix is theirs until both are gone, but needs 13 blocks. When the 9th block is taken, in the
    113th decode, the one that hits the next block becomes next, and fits.
    """
    contents = [(1, 33), (2, 17), (3, 97), (4, 16), (1, 33), (5, 170), (2, 17)]
    requests = trace((0, 33, 1), (100, 17, 1), (200, 97, 1), (400, 16, 200), (460, 203, 1), (460, 17, 1))
    segments = Segments(np.array([0, 1, 2, 3, 4, 6, 7]), *np.array(contents).T)
    requests = replace(requests, segments=segments)
    cache = Memory(blocks=17).build(requests)
    run = simulate(requests, parse_policy("lpm+full"), prefill_only(), cache=cache, stretch=stretch)
    started = run.requests["first_scheduled_ns"].tolist()
    # The prefill of the one that decodes ends at 416; its decode k begins at 416 + k - 1.
    assert started[3] == 400
    assert started[5] == 416 + 113
    assert run.requests["cached_tokens"].tolist() == [0, 0, 0, 0, 0, 16]
    assert started[4] == run.requests["finished_ns"][3]


def test_who_finishes_together_gives_blocks_back_in_batch_order() -> None:
    """The shorter of the first two was admitted first, so its four blocks make room for the third, not the other's."""
    requests = trace((0, 4, 2), (0, 3, 2), (1000, 5, 1), (2000, 5, 1))
    segments = Segments(np.arange(5), np.array([1, 2, 3, 1]), requests.prompt_tokens)
    requests = replace(requests, segments=segments)
    cache = Memory(blocks=11, block_size=1).build(requests)
    run = simulate(requests, parse_policy("srjf-static+token-budget:budget=64"), prefill_only(), cache=cache)
    assert run.requests["finished_ns"][0] == run.requests["finished_ns"][1]
    assert run.requests["cached_tokens"].tolist() == [0, 0, 0, 4]
