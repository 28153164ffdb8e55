"""An engine with vLLM's order of serving, token budget and prefix cache, whose steps take a known time."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from costmodels.base import CostModel
from costmodels.linear import LinearCost
from gpu_runner.profiling.bench import Facts, Ran, Span, features
from gpu_runner.profiling.grid import Capacity

SETTING = {
    "device": "toy",
    "model": "tiny",
    "dtype": "float32",
    "tensor_parallel": 1,
    "engine": "fake",
    "engine_version": "1",
}

CAPACITY = Capacity(max_num_seqs=40, max_model_len=2048, max_step_tokens=512, kv_blocks=4000, block_size=16)


@dataclass
class Live:
    ids: list[int]
    outputs: int
    computed: int = 0
    made: int = 0
    blocks: list[int] = field(default_factory=list)
    """A hash of each full block of the prompt and all before it."""


@dataclass
class FakeSteps:
    """Time passes only in steps; ``noise`` turns a step's true duration and its number into the one that is seen."""

    capacity: Capacity = CAPACITY
    cost: CostModel = field(default_factory=LinearCost)
    noise: Callable[[int, int], int] = lambda ns, number: ns
    key: dict[str, object] = field(default_factory=lambda: {"kv_blocks": 4000})
    forgets: int | None = None
    """The prefix cache is lost once, before this step."""
    watts: int = 100
    now_ns: int = 0
    mj: float = 0.0
    steps: int = 0

    def __post_init__(self) -> None:
        self.waiting: dict[str, Live] = {}
        self.running: dict[str, Live] = {}
        self.cached: set[int] = set()
        self.cleared = 0

    def facts(self) -> Facts:
        return Facts(SETTING, self.key)

    def add(self, name: str, ids: Sequence[int], output_tokens: int) -> None:
        assert len(ids) + output_tokens <= self.capacity.max_model_len
        live = Live(list(ids), output_tokens)
        written = array("q", ids).tobytes()
        size, block = self.capacity.block_size * array("q").itemsize, 0
        for end in range(size, len(written) + 1, size):
            block = hash((block, written[end - size : end]))
            live.blocks.append(block)
        self.waiting[name] = live

    def drop(self, names: Sequence[str]) -> None:
        for name in names:
            self.waiting.pop(name, None)
            self.running.pop(name, None)

    def clear_cache(self) -> None:
        assert not self.running
        self.cached.clear()
        self.cleared += 1

    def step(self, budget: int) -> Ran:
        assert 0 < budget <= self.capacity.max_step_tokens
        if self.steps == self.forgets:
            self.cached.clear()
        spans = []
        for name, live in [*self.running.items(), *self.waiting.items()]:
            if budget == 0 or (name in self.waiting and len(self.running) == self.capacity.max_num_seqs):
                break
            if name in self.waiting:
                live.computed = self.hit(live)
                self.running[name] = self.waiting.pop(name)
            tokens = min(len(live.ids) + live.made - live.computed, budget)
            spans.append(Span(live.computed, tokens, live.computed >= len(live.ids)))
            size = self.capacity.block_size
            self.cached.update(live.blocks[live.computed // size : (live.computed + tokens) // size])
            live.computed += tokens
            budget -= tokens
            live.made += live.computed == len(live.ids) + live.made
        if not spans:
            return Ran((), 0, None)
        self.running = {name: live for name, live in self.running.items() if live.made < live.outputs}
        self.steps += 1
        took = self.noise(self.cost.step_ns(*features(spans)), self.steps)
        self.now_ns += took
        self.mj += self.watts * took / 1e6
        return Ran(tuple(spans), took, took // 10)

    def hit(self, live: Live) -> int:
        size = self.capacity.block_size
        found = 0
        while found < (len(live.ids) - 1) // size and live.blocks[found] in self.cached:
            found += 1
        return found * size

    def read_mj(self) -> int:
        return int(self.mj)

    def clock(self) -> float:
        return self.now_ns / 1e9


def noisy(seed: int, spread: float) -> Callable[[int, int], int]:
    """Return a noise of so much relative standard deviation."""
    rng = np.random.default_rng(seed)
    return lambda ns, number: max(round(ns * (1 + spread * rng.standard_normal())), 20_000)
