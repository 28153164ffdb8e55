"""The hybrid engine without a model: a slow prefix store in lists, and a clock on which prefills take drawn times."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gpu_runner.hybrid.scheduler import Ended, HybridScheduler, Prompt, Served, block_hashes
from gpu_runner.hybrid.scoring import Answer, Question
from gpu_runner.settings import Settings, Wishes
from tests.gpu_runner.fake_engine import VirtualClock

Duration = Callable[[int, int], int]
"""From cached and new tokens to nanoseconds."""


class SlowStore:
    """Whole beginnings of prompts in a list, the least recently used first."""

    def __init__(self, capacity: int, size: int) -> None:
        self.capacity, self.size = capacity, size
        self.stored: list[tuple[int, ...]] = []

    def beginnings(self, ids: Sequence[int], tokens: int) -> list[tuple[int, ...]]:
        return [tuple(ids[:end]) for end in range(self.size, tokens + 1, self.size)]

    def hit(self, ids: Sequence[int]) -> int:
        found = 0
        for block in self.beginnings(ids, len(ids) - 1):
            if block not in self.stored:
                break
            found += self.size
        return found

    def enter(self, ids: Sequence[int], keep: int) -> bool:
        used = self.beginnings(ids, max(keep, self.hit(ids)))[: self.capacity]
        others = [b for b in self.stored if b not in used]
        self.stored = others + used[::-1]
        excess = max(0, len(self.stored) - self.capacity)
        del self.stored[:excess]
        return bool(excess)


class FakeRunner:
    def __init__(self, clock: VirtualClock, blocks: int, size: int, duration: Duration) -> None:
        self.clock, self.duration, self.block_size = clock, duration, size
        self.store = SlowStore(blocks, size)
        self.served: list[tuple[int, ...]] = []
        self.fail_on: int | None = None

    @property
    def blocks(self) -> int:
        return len(self.store.stored)

    def cached_tokens(self, ids: Sequence[int]) -> int:
        return self.store.hit(ids)

    def serve(self, ids: Sequence[int], keep: int, question: Question) -> Served:
        if len(self.served) == self.fail_on:
            self.fail_on = None
            raise RuntimeError("out of memory")
        hit = self.store.hit(ids)
        self.clock.time_ns += self.duration(hit, len(ids) - hit)
        evicted = self.store.enter(ids, keep)
        self.served.append(tuple(ids))
        stored = max(hit, sum(self.block_size for b in self.store.beginnings(ids, keep) if b in self.store.stored))
        return Served(hit, stored, evicted, Answer(0, {0: 1.0}, {0: 0.0}, hit))


class FakeHybrid:
    """What a replay needs of the hybrid engine."""

    vocab = 1 << 30

    def __init__(
        self,
        settings: Settings,
        *,
        blocks: int = 64,
        size: int = 4,
        duration: Duration = lambda hit, new: 1000 * new + 10 * hit,
        max_model_len: int = 10**6,
    ) -> None:
        self.max_model_len = max_model_len
        self.virtual = VirtualClock()
        self.runner = FakeRunner(self.virtual, blocks, size, duration)
        self.scheduler = HybridScheduler(settings, self.runner, self.virtual)
        self.keep_tokens: dict[str, int] = {}
        self.ended: list[Ended] = []

    @property
    def busy(self) -> bool:
        return self.scheduler.busy

    def add(
        self,
        request_id: str,
        ids: Sequence[int],
        max_tokens: int,
        arrival_ns: int | None = None,
        extra_args: Mapping[str, Any] | None = None,
    ) -> None:
        assert max_tokens == 1
        wishes = Wishes.of(extra_args)
        if request_id in self.keep_tokens:
            wishes = Wishes(keep_tokens=self.keep_tokens[request_id])
        arrival = self.virtual.time_ns if arrival_ns is None else arrival_ns
        hashes = block_hashes(ids, self.runner.block_size)
        self.scheduler.add(Prompt(request_id, ids, arrival, wishes, Question(), hashes))

    def step(self) -> list[str]:
        ended = self.scheduler.step()
        self.ended += ended
        return [end.request_id for end in ended]
