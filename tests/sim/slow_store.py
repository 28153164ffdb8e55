"""PrefillOnly's store written naively: one content per block, sets and lists for everything."""

from __future__ import annotations

from dataclasses import dataclass, field

from sim.prefixstore import CpuMemory
from traces import Trace

Content = int
"""The number of a block's content: all tokens up to its end."""


@dataclass
class SlowLru:
    """Contents in the order in which they make room."""

    capacity: int
    order: list[Content] = field(default_factory=list)

    def enter(self, contents: list[Content], pinned: set[Content]) -> None:
        """Make contents present and most recent, head first as far as they fit beside what is pinned."""
        fitting = list(contents)
        while fitting and len(set(fitting) | pinned) > self.capacity:
            fitting.pop()
        others = [c for c in self.order if c not in fitting]
        while len(others) + len(fitting) > self.capacity:
            others.remove(next(c for c in others if c not in pinned))
        self.order = others + fitting[::-1]


@dataclass
class SlowStore:
    """See :class:`sim.prefixstore.PrefixStore`; ``running`` tells what each running request has pinned."""

    trace: Trace
    blocks: int
    block_size: int
    suffix: str = "keep"
    cpu: CpuMemory | None = None
    stall_ns: int = 0
    running: dict[int, set[Content]] = field(default_factory=dict)
    staged: set[Content] = field(default_factory=set)
    staged_for: int = -1
    ready_ns: int = 0
    numbers: dict[tuple, Content] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.gpu_store = SlowLru(self.blocks)
        self.cpu_store = SlowLru(self.cpu.blocks if self.cpu else 0)
        self.contents = [self.full_blocks(i) for i in range(len(self.trace))]

    def full_blocks(self, index: int) -> list[Content]:
        """Return the full blocks of a prompt."""
        prompt = int(self.trace.prompt_tokens[index])
        tokens: list[tuple] = [("own", index, k) for k in range(prompt)]
        if self.trace.segments is not None:
            tokens = [(content, k) for content, n in self.trace.segments.of(index) for k in range(n)]
        ends = range(self.block_size, prompt + 1, self.block_size)
        return [self.numbers.setdefault(tuple(tokens[:end]), len(self.numbers)) for end in ends]

    def pinned(self) -> set[Content]:
        return set().union(*self.running.values())

    def reach(self, index: int, tokens: int) -> tuple[list[Content], list[Content], list[Content]]:
        """Return the blocks found in the GPU's store, those staged, and those to be loaded."""
        staged = self.staged if index == self.staged_for else set()
        found: tuple[list[Content], list[Content], list[Content]] = ([], [], [])
        on_gpu = True
        for content in self.contents[index][: (tokens - 1) // self.block_size]:
            on_gpu = on_gpu and content in self.gpu_store.order
            if on_gpu:
                found[0].append(content)
            elif content in staged:
                found[1].append(content)
            elif content in self.cpu_store.order:
                found[2].append(content)
            else:
                break
        return found

    def hit_tokens(self, index: int, tokens: int) -> int:
        return sum(map(len, self.reach(index, tokens))) * self.block_size

    def start(self, index: int, tokens: int, now: int) -> int:
        hit = self.hit_tokens(index, tokens)
        gpu, staged, loads = self.reach(index, tokens)
        self.running[index] = set(gpu)
        if self.cpu is not None:
            arrived = max(now, self.ready_ns if staged else 0) + self.cpu.transfer_ns(len(loads))
            self.stall_ns += arrived - now
        if index == self.staged_for:
            self.staged_for = -1
        return hit

    def finish(self, index: int) -> None:
        self.running.pop(index)
        contents = self.contents[index]
        if self.suffix == "offload":
            self.cpu_store.enter(contents, set())
        if self.suffix == "discard":
            contents = [c for c in contents if sum(c in other for other in self.contents) > 1]
            contents = [] if self.trace.segments is None else contents
        self.gpu_store.enter(contents, self.pinned())

    def prefetch(self, index: int, tokens: int, now: int) -> None:
        if self.cpu is None or self.staged_for == index:
            return
        self.staged_for = -1
        _, _, loads = self.reach(index, tokens)
        if loads:
            self.staged, self.staged_for = set(loads), index
            self.ready_ns = now + self.cpu.transfer_ns(len(loads))
