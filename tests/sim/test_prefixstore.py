"""PrefillOnly's store against the same store block by block, and its suffix handling by hand."""

from __future__ import annotations

import json

import pytest

from sim.content import ContentTree
from sim.kvcache import NullCache
from sim.memory import Memory, MemoryConfigError
from sim.pool import BlockPool
from sim.prefixstore import CpuMemory, PrefixStore
from tests.seeded import cases, pick, whole
from tests.sim.contents import contents, life
from tests.sim.slow_store import SlowStore
from tests.sim.test_pool import prompts_of
from traces import Trace


class Pair:
    """Both stores through the same life."""

    def __init__(self, trace: Trace, block_size: int, blocks: int, suffix: str, cpu_blocks: int, most: int) -> None:
        self.cpu = None
        if suffix == "offload":
            self.cpu = CpuMemory(blocks=cpu_blocks, bytes_per_block=7, bytes_per_s=3 * 10**9, latency_ns=5)
        tree = ContentTree(trace, block_size)
        self.fast = PrefixStore(tree, blocks, suffix=suffix, cpu=self.cpu)
        self.slow = SlowStore(trace, blocks, block_size, suffix, self.cpu)
        self.prompts = trace.prompt_tokens.tolist()
        self.most = most
        self.running: list[int] = []
        self.watched: dict[int, int] = {}
        self.now = 0

    def start(self, choice: int) -> None:
        i = choice % len(self.prompts)
        if i not in self.running and len(self.running) < self.most:
            if self.watched.pop(i, None) is not None:
                self.fast.unwatch(i)
            self.running.append(i)
            assert self.fast.start(i, self.prompts[i], self.now) == self.slow.start(i, self.prompts[i], self.now)

    def finish(self, choice: int) -> None:
        if self.running:
            i = self.running.pop(choice % len(self.running))
            self.fast.finish(i, self.prompts[i])
            self.slow.finish(i)

    def prefetch(self, choice: int) -> None:
        i = choice % len(self.prompts)
        if i not in self.running:
            self.fast.prefetch(i, self.prompts[i], self.now)
            self.slow.prefetch(i, self.prompts[i], self.now)

    def wait(self, choice: int) -> None:
        self.now += choice

    def watch(self, choice: int) -> None:
        i = choice % len(self.prompts)
        if i not in self.running and i not in self.watched:
            self.fast.watch(i)
            self.watched[i] = self.fast.hit_tokens(i, self.prompts[i])

    def compare(self) -> None:
        fast, slow = self.fast, self.slow
        for i, tokens in enumerate(self.prompts):
            assert fast.hit_tokens(i, tokens) == slow.hit_tokens(i, tokens)
        assert fast.stall_ns == slow.stall_ns
        assert fast.capacity - fast.free == len(slow.pinned())
        assert fast._gpu.stored == len(slow.gpu_store.order) <= fast.capacity
        told = set(fast.changes())
        assert told <= self.watched.keys()
        hits = {i: fast.hit_tokens(i, self.prompts[i]) for i in self.watched}
        assert {i for i, hit in hits.items() if hit != self.watched[i]} <= told
        self.watched = hits


@cases(
    200,
    contents(whole(1, 5)),
    whole(0, 20),
    pick("keep", "discard", "offload", "offload"),
    whole(1, 30),
    whole(1, 3),
    life,
)
def test_equals_the_store_block_by_block(
    drawn: tuple[Trace, int], blocks: int, suffix: str, cpu_blocks: int, most: int, choices: bytes
) -> None:
    trace, block_size = drawn
    pair = Pair(trace, block_size, blocks, suffix, cpu_blocks, most)
    doings = [pair.start, pair.finish, pair.start, pair.finish, pair.prefetch, pair.wait, pair.watch]
    for byte in choices:
        doings[byte % 7](byte // 7)
        pair.compare()


def serve(store: PrefixStore, i: int, now: int = 0) -> int:
    """Run a request alone, and return what it hit."""
    tokens = int(store.tree.trace.prompt_tokens[i])
    hit = store.start(i, tokens, now)
    store.finish(i, tokens)
    return hit


USERS = prompts_of(*[[(user, 40), (10 * user + post, 8)] for user in (1, 2) for post in (1, 2, 3)])
"""Two users of 10 profile blocks of 4 tokens with three posts of 2 blocks each."""


def test_keeping_suffixes_crowds_out_what_others_need() -> None:
    stores = {suffix: PrefixStore(ContentTree(USERS, 4), 20, suffix=suffix) for suffix in ("keep", "discard")}
    hits = {suffix: [serve(store, i) for i in (0, 3, 1, 4, 2, 5)] for suffix, store in stores.items()}
    assert hits == {"keep": [0, 0, 32, 32, 32, 32], "discard": [0, 0, 40, 40, 40, 40]}


def test_a_prompt_enters_head_first_as_far_as_it_fits() -> None:
    store = PrefixStore(ContentTree(prompts_of([(1, 40)], [(1, 40)], [(2, 12)]), 4), 6)
    assert serve(store, 0) == 0
    assert store.hit_tokens(1, 40) == 24
    serve(store, 2)
    assert store.hit_tokens(1, 40) == 12


def test_an_empty_store_hits_nothing() -> None:
    store = PrefixStore(ContentTree(USERS, 4), 0)
    assert [serve(store, i) for i in range(6)] == [0] * 6


def offloading(blocks: int = 4, cpu_blocks: int = 100) -> PrefixStore:
    """Prompts of 10 blocks; a block takes 100 ns to come from CPU memory, a transfer 7 ns more."""
    cpu = CpuMemory(blocks=cpu_blocks, bytes_per_block=200, bytes_per_s=2 * 10**9, latency_ns=7)
    trace = prompts_of([(1, 40)], [(1, 40)], [(2, 8)], [(3, 40)], [(1, 20)])
    return PrefixStore(ContentTree(trace, 4), blocks, suffix="offload", cpu=cpu)


def test_a_hit_goes_on_in_cpu_memory_and_waits_for_it() -> None:
    store = offloading()
    assert serve(store, 0) == 0
    assert store.stall_ns == 0
    assert store.start(1, 40, 50) == 36
    assert store.stall_ns == 7 + 5 * 100


@pytest.mark.parametrize(("begun", "stall"), [(50, 507), (0, 457), (-457, 0), (-1000, 0)])
def test_prefetching_shortens_the_wait(begun: int, stall: int) -> None:
    store = offloading()
    serve(store, 0)
    store.prefetch(1, 40, begun)
    store.prefetch(1, 40, 49)
    assert store.start(1, 40, 50) == 36
    assert store.stall_ns == stall


def test_what_was_evicted_since_prefetching_is_brought_too() -> None:
    """Blocks 4 to 9 are on their way until 507; block 2 and 3 leave the GPU meanwhile and come after them."""
    store = offloading()
    serve(store, 0)
    store.prefetch(1, 40, 0)
    serve(store, 2)
    assert store.start(1, 40, 300) == 36
    assert store.stall_ns == 507 - 300 + 7 + 2 * 100


def test_what_came_to_the_gpu_since_prefetching_is_not_waited_for() -> None:
    store = offloading(10)
    serve(store, 0)
    serve(store, 3)
    store.prefetch(1, 40, 0)
    serve(store, 0)
    store.stall_ns = 0
    assert store.start(1, 40, 10) == 36
    assert store.stall_ns == 0


def test_what_came_to_the_cpu_since_prefetching_is_brought_too() -> None:
    """Block 4 arrives at 107, blocks 5 to 8 after it."""
    store = offloading()
    serve(store, 4)
    store.prefetch(1, 40, 0)
    serve(store, 0)
    store.stall_ns = 0
    assert store.start(1, 40, 10) == 36
    assert store.stall_ns == 107 - 10 + 7 + 4 * 100


def test_what_was_prefetched_is_useless_once_its_beginning_is_gone() -> None:
    store = offloading(cpu_blocks=10)
    serve(store, 0)
    store.prefetch(1, 40, 0)
    serve(store, 3)
    assert store.hit_tokens(1, 40) == 0
    assert store.start(1, 40, 10) == 0
    assert store.stall_ns == 0


def test_giving_up_a_transfer_is_a_change() -> None:
    store = offloading(cpu_blocks=10)
    serve(store, 0)
    store.watch(1)
    store.prefetch(1, 40, 0)
    store.start(0, 40, 0)
    serve(store, 3)
    store.changes()
    assert store.hit_tokens(1, 40) == 36
    store.prefetch(3, 40, 0)
    assert store.hit_tokens(1, 40) == 16
    assert store.changes() == [1]


def test_only_one_request_is_prefetched() -> None:
    store = offloading()
    serve(store, 0)
    store.prefetch(1, 40, 0)
    store.prefetch(0, 40, 0)
    store.start(1, 40, 1000)
    assert store.stall_ns == 507


def test_transfers_round_up() -> None:
    link = CpuMemory(blocks=1, bytes_per_block=10, bytes_per_s=3 * 10**9, latency_ns=2)
    assert [link.transfer_ns(n) for n in (0, 1, 2, 3)] == [0, 2 + 4, 2 + 7, 2 + 10]


def test_refuses_what_has_to_decode_and_what_is_too_long() -> None:
    store = PrefixStore(ContentTree(prompts_of([(1, 8)], [(2, 9)], outputs=[5, 1]), 4), 3, max_input=8)
    assert store.refusal(0) == (
        "generates 5 tokens, but prefill-only serving keeps no KV to decode with; use the paged pool"
    )
    assert store.refusal(1) == "a prompt of 9 tokens exceeds the maximum input length of 8"


OFFLOAD = {
    "regime": "store",
    "blocks": 3,
    "suffix": "offload",
    "cpu_blocks": 5,
    "bytes_per_block": 2,
    "pcie_bytes_per_s": 9,
}


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({}, BlockPool),
        ({"blocks": 2}, BlockPool),
        ({"prefix_cache": False}, NullCache),
        ({"prefix_cache": False, "max_input": 5}, BlockPool),
        ({"prefix_cache": False, "blocks": 100}, BlockPool),
        ({"regime": "store", "blocks": 0}, PrefixStore),
        ({"regime": "store", "blocks": 3, "suffix": "discard"}, PrefixStore),
        (OFFLOAD, PrefixStore),
    ],
)
def test_builds_what_is_described(fields: dict, kind: type) -> None:
    memory = Memory(**fields)
    cache = memory.build(USERS)
    assert type(cache) is kind
    assert Memory(**json.loads(json.dumps(memory.to_dict()))) == memory
    tree = ContentTree(USERS, 16)
    if kind is not NullCache:
        assert memory.build(USERS, tree).tree is tree


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"blocks": 0}, "blocks is 0, but a pool needs at least 2: vLLM never gives out one of them"),
        ({"blocks": 1}, "blocks is 1, but a pool needs at least 2: vLLM never gives out one of them"),
        ({"block_size": 0}, "block_size is 0, but a block has at least 1 token"),
        ({"max_input": 0}, "max_input is 0, but a prompt has at least 1 token"),
        ({"regime": "stor"}, "unknown regime stor; did you mean store? (regimes: pool, store)"),
        ({"suffix": "disc"}, "unknown suffix disc; did you mean discard? (suffixes: keep, discard, offload)"),
        ({"suffix": "discard"}, "suffix=discard is for regime=store; a pool keeps what fits"),
        ({"regime": "store"}, "a store needs its size in blocks, 0 for none"),
        ({"regime": "store", "blocks": -1}, "blocks is -1, but a store has at least 0"),
        (
            {"regime": "store", "blocks": 1, "prefix_cache": False},
            "a store is a prefix cache; say blocks=0 instead of prefix_cache=False",
        ),
        (OFFLOAD | {"cpu_blocks": 0}, "suffix=offload needs cpu_blocks, at least 1"),
        (OFFLOAD | {"pcie_bytes_per_s": 0}, "suffix=offload needs pcie_bytes_per_s, at least 1"),
        (OFFLOAD | {"pcie_latency_ns": -1}, "pcie_latency_ns is -1, but must be at least 0"),
    ],
)
def test_says_what_cannot_be_built(fields: dict, sentence: str) -> None:
    with pytest.raises(MemoryConfigError) as error:
        Memory(**fields)
    assert str(error.value) == sentence


def test_the_tree_must_be_of_the_same_trace() -> None:
    with pytest.raises(MemoryConfigError, match="the content tree is of trace trace in blocks of 4 tokens, not of"):
        Memory().build(USERS, ContentTree(USERS, 4))


def test_offloading_needs_no_gpu_store() -> None:
    store = offloading(0)
    assert [serve(store, i) for i in (0, 1)] == [0, 36]
    assert store.stall_ns == 7 + 9 * 100
