"""The block pool in runs against vLLM's pool block by block."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from sim.content import ContentTree
from sim.least import FAR
from sim.pool import BlockPool
from sim.runs import RunStretch
from tests.blockwise import BlockwisePool
from tests.seeded import cases, just, whole
from tests.sim.contents import contents, life
from traces import Segments, Trace


class Pair:
    """Both pools through the same life, as a scheduler would lead it; every step compares all that can be seen."""

    def __init__(
        self, trace: Trace, block_size: int, blocks: int, *, caching: bool = True, endless: bool = False
    ) -> None:
        self.trace, self.block_size = trace, block_size
        self.tree = ContentTree(trace, block_size)
        self.fast = BlockPool(self.tree, None if endless else blocks, prefix_cache=caching)
        self.slow = BlockwisePool(trace, blocks, block_size, caching)
        self.endless = endless
        self.tokens = trace.prompt_tokens.tolist()
        self.outputs = [0] * len(trace)
        self.waiting = [i for i in range(len(trace)) if self.slow.refusal(i) is None]
        self.running: dict[int, int] = {}
        self.watched: dict[int, int] = {}
        self.sample: dict[RunStretch, int] = {}

    def start(self, choice: int) -> None:
        if not self.waiting:
            return
        i = self.waiting[choice % len(self.waiting)]
        tokens = self.tokens[i]
        fits = [pool.fits(i, tokens, choice % 3) for pool in (self.fast, self.slow)]
        assert fits[1] == fits[0] or self.endless
        if fits[1]:
            self.begin(i)
            self.extend(i, choice)

    def begin(self, i: int) -> None:
        self.unwatch(i)
        self.waiting.remove(i)
        self.running[i] = self.fast.start(i, self.tokens[i], 0)
        assert self.running[i] == self.slow.start(i, self.tokens[i], 0)

    def extend(self, i: int, choice: int) -> None:
        left = self.tokens[i] - self.running[i]
        self.compute(i, self.running[i] + (1 + choice % left if choice % 4 else left))

    def compute(self, i: int, computed: int) -> None:
        """Compute a chunk, or be preempted where its blocks do not fit."""
        missing = self.fast.missing(i, computed)
        assert missing == self.slow.missing(i, computed)
        if missing > self.slow.free:
            self.stop(i)
        else:
            self.running[i] = computed
            for pool in (self.fast, self.slow):
                pool.extend(i, computed)

    def prefill(self, choice: int) -> None:
        """Go on with a prefill."""
        unfinished = [i for i, computed in self.running.items() if computed < self.tokens[i]]
        if unfinished:
            self.extend(unfinished[choice % len(unfinished)], choice)

    def decode(self, choice: int) -> None:
        """Some steps of all that decode."""
        for _ in range(1 + choice % 5):
            decoding = [i for i, computed in self.running.items() if computed == self.tokens[i]]
            for i in decoding:
                self.outputs[i] += 1
                self.tokens[i] += 1
                if self.outputs[i] == self.trace.output_tokens[i]:
                    self.stop(i, finished=True)
            decoding = [i for i in decoding if i in self.running]
            needed = sum(self.running[i] % self.block_size == 0 for i in decoding)
            while needed > self.slow.free:
                victim = decoding.pop()
                needed -= self.running[victim] % self.block_size == 0
                self.stop(victim)
            for pool in (self.fast, self.slow):
                pool.take(needed)
            for i in decoding:
                self.running[i] += 1

    def stop(self, i: int, finished: bool = False) -> None:
        computed = self.running.pop(i)
        for pool in (self.fast, self.slow):
            pool.finish(i, computed)
        if not finished:
            self.waiting.append(i)

    def preempt(self, choice: int) -> None:
        if self.running:
            self.stop(list(self.running)[choice % len(self.running)])

    def watch(self, choice: int) -> None:
        if self.waiting:
            i = self.waiting[choice % len(self.waiting)]
            if i in self.watched:
                self.unwatch(i)
            else:
                self.fast.watch(i)
                self.watched[i] = self.fast.hit_tokens(i, self.tokens[i])

    def unwatch(self, i: int) -> None:
        if self.watched.pop(i, None) is not None:
            self.fast.unwatch(i)

    def compare(self) -> None:
        fast, slow, size = self.fast, self.slow, self.block_size
        assert fast.capacity - fast.free == slow.capacity - slow.free
        for i, tokens in enumerate(self.tokens):
            hit = fast.hit_tokens(i, tokens)
            assert hit == slow.hit_tokens(i, tokens)
            assert hit % size == 0
            assert hit < tokens
            if not self.endless:
                for reserve in (0, 1, fast.free):
                    assert fast.fits(i, tokens, reserve) == slow.fits(i, tokens, reserve)
        told = set(fast.changes())
        assert told <= self.watched.keys()
        hits = {i: fast.hit_tokens(i, self.tokens[i]) for i in self.watched}
        assert {i for i, hit in hits.items() if hit != self.watched[i]} <= told
        self.watched = hits
        self.compare_insides()

    def stretches(self) -> list[RunStretch]:
        """All stretches, with a request that has each."""
        found = {}
        for i in range(len(self.trace)):
            own = self.fast._own.get(i)
            found.update(dict.fromkeys([*self.fast.path(i), *([] if own is None else [own])], i))
        self.sample = found
        return list(found)

    def compare_insides(self) -> None:
        """The same blocks with the same holders, and the free ones in the same order."""
        fast, slow = self.fast, self.slow
        held: dict[int, list[int]] = {}
        for at in self.stretches():
            assert at.runs == sorted(at.runs, key=lambda r: r.lo)
            assert at.blocks == sum(r.hi - r.lo for r in at.runs)
            # Present blocks are closed under prefixes, within a stretch and along a path.
            assert {b for r in at.runs for b in range(r.lo, r.hi)} == set(range(at.lo, at.depth))
            for run in at.runs:
                assert run.lo < run.hi
                for block in range(run.lo, run.hi):
                    held.setdefault(self.key(at, block), []).append(run.holders)
        for i in range(len(self.trace)):
            path = self.fast.path(i)
            assert all(a.depth == a.hi or b.depth == b.lo for a, b in pairwise(path))
        copies = {key: [b.holders for b in blocks] for key, blocks in slow.present.items() if blocks}
        if not self.running:
            assert fast.free == fast.capacity
        assert {k: sorted(v) for k, v in held.items()} == {k: sorted(v) for k, v in copies.items()}
        order = [self.key(r.at, b) for r in fast._unheld for b in reversed(range(r.lo, r.hi))]
        if not self.endless:
            assert [None] * fast._blank + order == [b.key for b in slow.unused]

    def key(self, at: RunStretch | None, block: int) -> int:
        assert at is not None
        i = self.sample[at]
        return self.slow.keys(i, (block + 1) * self.block_size)[block]


def lead(pair: Pair, choices: bytes) -> None:
    """Lead both pools through a life; each byte says what is next and with whom."""
    doings = [pair.start, pair.start, pair.prefill, pair.decode, pair.preempt, pair.watch]
    for byte in choices:
        doings[byte % 6](byte // 6)
        pair.compare()


spare = whole(0, 12)


def largest(trace: Trace, block_size: int) -> int:
    return int(-(-(trace.prompt_tokens + trace.output_tokens - 1) // block_size).max())


@cases(150, contents(whole(1, 5)), spare, life)
def test_equals_the_pool_block_by_block(drawn: tuple[Trace, int], more: int, choices: bytes) -> None:
    trace, block_size = drawn
    lead(Pair(trace, block_size, largest(trace, block_size) + 1 + more), choices)


@cases(30, contents(just(16)), spare, life)
def test_equals_the_pool_block_by_block_with_blocks_of_16_tokens(
    drawn: tuple[Trace, int], more: int, choices: bytes
) -> None:
    trace, block_size = drawn
    lead(Pair(trace, block_size, largest(trace, block_size) + 1 + more), choices)


@cases(30, contents(whole(1, 5)), whole(2, 12), life)
def test_equals_it_where_some_requests_are_refused(drawn: tuple[Trace, int], blocks: int, choices: bytes) -> None:
    pair = Pair(*drawn, blocks)
    refused = {i for i in range(len(drawn[0])) if pair.fast.refusal(i) is not None}
    assert refused == set(range(len(drawn[0]))) - set(pair.waiting)
    lead(pair, choices)


@cases(30, contents(whole(1, 5)), spare, life)
def test_equals_it_without_a_prefix_cache(drawn: tuple[Trace, int], more: int, choices: bytes) -> None:
    trace, block_size = drawn
    pair = Pair(trace, block_size, largest(trace, block_size) + 1 + more, caching=False)
    lead(pair, choices)
    assert all(pair.fast.hit_tokens(i, tokens) == 0 for i, tokens in enumerate(pair.tokens))


@cases(30, contents(whole(1, 5)), life)
def test_unlimited_memory_equals_a_pool_that_is_never_full(drawn: tuple[Trace, int], choices: bytes) -> None:
    lead(Pair(*drawn, 3000, endless=True), choices)


@pytest.mark.parametrize(
    "script",
    [
        # A hit splits what its first holder still holds and later gives back as two.
        "0:6 1:6 -1 -0",
        "0:6 1:6 -0 -1",
        # A run of copies whose middle is the oldest copy: of a run that nobody holds, and of one that is held.
        "0:3 1:4 0:6 -0 -1 2:6 -2",
        "0:3 1:4 0:6 -1 -0 2:6 -2",
        "0:3 1:4 0:6 -1 2:6 -0 -2",
        "0:3 1:4 0:6 2:6 -0 -1 -2",
        "0:3 1:4 0:6 2:6 -2 -1 -0",
        # The end of a run that is held has been split off and evicted; it goes on from there.
        "0:3 1:5 -1 0:6 -0 1:6 2:6 -2 -1",
        # Parts of a run are as old as it was: with a younger copy of three blocks beside it, unheld and held.
        "0:3 1:6 0:6 -0 -1 2:6 3:7 -2 -3",
        "0:3 1:6 0:6 2:6 3:7 -0 -1 -2 -3",
        "0:3 1:6 0:6 2:6 -1 -2 3:7 -0 -3",
    ],
)
@pytest.mark.parametrize("more", [0, 3, 20])
def test_copies_and_splits(script: str, more: int) -> None:
    """Three prompts of the same 6 blocks and a longer one; ``1:4``: request 1 computes 4 tokens; ``-1``: it ends."""
    pair = Pair(prompts_of(*[[(0, 6)]] * 3, [(0, 7)], [(1, 5)], outputs=[9] * 5), 1, 26 + more)
    for word in script.split():
        if word.startswith("-"):
            pair.stop(int(word[1:]))
        else:
            i, computed = map(int, word.split(":"))
            if i not in pair.running:
                pair.begin(i)
            pair.compute(i, max(computed, pair.running[i]))
        pair.compare()
    pair.begin(4)
    for _ in range(pair.slow.free - 5):
        for pool in (pair.fast, pair.slow):
            pool.take(1)
        pair.compare()


def prompts_of(*prompts: list[tuple[int, int]], outputs: list[int] | None = None) -> Trace:
    return Trace(
        np.arange(len(prompts)),
        np.array([sum(n for _, n in p) for p in prompts]),
        np.array(outputs or [1] * len(prompts)),
        segments=Segments(
            np.cumsum([0, *map(len, prompts)]),
            np.array([c for p in prompts for c, _ in p]),
            np.array([n for p in prompts for _, n in p]),
        ),
    )


def pool_of(trace: Trace, blocks: int | None, block_size: int = 16) -> BlockPool:
    return BlockPool(ContentTree(trace, block_size), blocks)


@pytest.mark.parametrize("chunk", [512, 8192])
def test_chunks_do_not_change_the_peak(chunk: int) -> None:
    """peers.md case 5 (sched-sim): 8192 → 1 in chunks of 512 holds 512 blocks at its peak, as unchunked."""
    pool = pool_of(prompts_of([(0, 8192)]), 600)
    assert pool.start(0, 8192, 0) == 0
    peak = 0
    for computed in range(chunk, 8193, chunk):
        pool.extend(0, computed)
        peak = max(peak, pool.capacity - pool.free)
    pool.finish(0, 8192)
    assert peak == 512
    assert pool.free == 599


def test_a_warm_prompt_computes_its_last_block() -> None:
    """peers.md case 11 (inference-sim#196, #1057, #1121): block 4; cold computes 40, warm 4."""
    pool = pool_of(prompts_of([(0, 40)], [(0, 40)]), None, 4)
    computed = []
    for i in (0, 1):
        hit = pool.start(i, 40, 0)
        computed.append(40 - hit)
        for end in (16, 32, 40):
            pool.extend(i, max(end, hit))
        pool.finish(i, 40)
    assert computed == [40, 4]


def test_refuses_what_cannot_run() -> None:
    """peers.md case 1 (inference-sim#373): 20 blocks, 1000 → 4 and 100 → 4."""
    trace = Trace(np.array([0, 0]), np.array([1000, 100]), np.array([4, 4]))
    tree = ContentTree(trace, 16)
    refusal = BlockPool(tree, 20, max_input=1000).refusal(0)
    assert refusal == "needs 63 blocks of 16 tokens for 1000 prompt and 4 output tokens, but the cache has 19"
    refusal = BlockPool(tree, 20, max_input=99).refusal(1)
    assert refusal == "a prompt of 100 tokens exceeds the maximum input length of 99"
    assert BlockPool(ContentTree(trace, 16), None).refusal(0) is None


def test_a_request_may_fill_the_pool() -> None:
    """The last sampled token is never computed: 16 blocks hold 200 → 57, not 200 → 58."""
    trace = Trace(np.array([0, 0]), np.array([200, 200]), np.array([57, 58]))
    pool = BlockPool(ContentTree(trace, 16), 17)
    assert pool.refusal(0) is None
    assert pool.refusal(1) is not None


def test_long_prompts_are_few_runs() -> None:
    """60,000 tokens are 3,750 blocks; a life in chunks leaves one run, and every further one adds few."""
    pool = pool_of(prompts_of(*[[(0, 50_000), (i, 10_000)] for i in range(1, 9)]), 3 * 3750)
    for i in range(8):
        computed = pool.start(i, 60_000, 0)
        assert computed == (50_000 if i else 0)
        while computed < 60_000:
            computed = min(60_000, computed + 512)
            pool.extend(i, computed)
        pool.finish(i, 60_000)
    assert len(list(pool._unheld)) <= 9
    assert pool.free == pool.capacity


def test_taking_more_than_is_free_is_an_error() -> None:
    pool = pool_of(prompts_of([(0, 64)]), 3)
    with pytest.raises(RuntimeError, match="more blocks were taken than are free"):
        pool.take(4)


def test_unlimited_memory_is_far_from_full() -> None:
    pool = pool_of(prompts_of([(0, 64)]), None)
    assert pool.capacity == pool.free == FAR
