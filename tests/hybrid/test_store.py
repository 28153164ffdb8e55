"""The prefix store: what it finds is what was computed, and the least recently used goes first."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_runner.hybrid.errors import HybridError
from gpu_runner.hybrid.prefixstore import PrefixStore, Shape
from tests.hybrid.small import GQA, model, plain_logits, prefiller, relative

SIZE = 4
SHAPE = Shape(GQA.layers, GQA.kv_heads, GQA.head_dim, torch.float32, SIZE)
PROMPTS = st.lists(st.tuples(st.integers(0, 2), st.integers(1, 30), st.integers(0, 30)), min_size=1, max_size=12)


def prompt(family: int, count: int) -> list[int]:
    """Prompts of one family begin alike; families share their first 6 tokens."""
    return [*range(6), *(30 * (family + 1) + i for i in range(count))][: count + 3]


class Slow:
    """Whole prompts' blocks in a list, least recently used first."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.blocks: list[tuple[int, ...]] = []

    def hits(self, ids: list[int]) -> int:
        blocks = [tuple(ids[: n + SIZE]) for n in range(0, len(ids) - SIZE, SIZE)]
        return next((i for i, b in enumerate(blocks) if b not in self.blocks), len(blocks))

    def serve(self, ids: list[int], keep: int) -> None:
        found = self.hits(ids)
        count = max(found, min(keep // SIZE, self.capacity))
        used = [tuple(ids[: n * SIZE + SIZE]) for n in range(count)]
        others = [b for b in self.blocks if b not in used]
        self.blocks = others + used[::-1]
        while len(self.blocks) > self.capacity:
            self.blocks.pop(0)


@given(PROMPTS, st.integers(0, 8))
@settings(deadline=None, max_examples=25)
def test_hits_are_those_of_the_slow_store_and_answers_those_of_the_plain_pass(
    requests: list[tuple[int, int, int]], capacity: int
) -> None:
    store, slow, ours = PrefixStore(SHAPE, capacity), Slow(capacity), prefiller("llama")
    for family, count, keep in requests:
        ids = prompt(family, count)
        keep = min(keep, len(ids))
        assert store.cached_tokens(ids) == slow.hits(ids) * SIZE
        with store.open(ids, keep) as entry:
            assert entry.tokens < len(ids)
            new = torch.tensor(ids[entry.tokens :])
            logits = ours.prefill(new, prefix=entry if entry.tokens else None, keep=entry.keep, sink=entry)
        slow.serve(ids, keep)
        assert len(store) == len(slow.blocks) <= capacity
        assert relative(logits, plain_logits(model("llama"), torch.tensor(ids))) <= 1e-5


def test_a_prefill_that_fails_leaves_nothing_to_be_found() -> None:
    store = PrefixStore(SHAPE, 4)
    ids = list(range(13))
    with pytest.raises(RuntimeError, match="out of memory"), store.open(ids, 12):
        raise RuntimeError("out of memory")
    assert store.cached_tokens(ids) == len(store) == 0
    with store.open(ids, 16) as entry:
        assert entry.keep == 16


def test_a_negative_store_is_refused() -> None:
    with pytest.raises(HybridError, match="capacity is -1 blocks"):
        PrefixStore(SHAPE, -1)
