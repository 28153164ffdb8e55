"""Who runs and which blocks that takes: vLLM's running list, decodes counted by the step in which they need a block."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import accumulate
from typing import NamedTuple

from policies.views import RequestView
from sim.kvcache import KVCache
from sim.least import FAR

ENDING = 0
"""The outputs of a victim whose last token is on its way, so that it needs none any more."""


class Victim(NamedTuple):
    """A request that was preempted, without its blocks."""

    view: RequestView
    decoded: int | None
    """Outputs since its prefill ended, at least 1; ``None`` for one in the middle of its prefill; or :data:`ENDING`."""


class Paging:
    """The running requests of an engine with block-granular KV memory.

    ``goals[i]`` and ``computed[i]`` are the engine's own lists: the tokens that request ``i`` prefills in all, and how
    many of them are computed. A decoding request takes a new block in every ``block_size``-th step, so counting the
    requests of each residue tells what a step takes, whatever the batch. Where a step is decided while the one before
    it runs (``ahead``), the newest token of a decoding request is not known yet, nor is the content of the block that
    it fills.
    """

    def __init__(self, cache: KVCache, goals: list[int], computed: list[int], ahead: bool = False) -> None:
        self._ahead = ahead
        # By request whose last token is on its way, how many tokens it has computed.
        self._ending: dict[int, int] = {}
        self.cache, self.goals, self.computed = cache, goals, computed
        self.block = cache.block_size
        self.crossing = [0] * self.block
        """Decoding requests that need a block in steps of this residue."""
        self.running: dict[int, RequestView] = {}
        """In the order of admission, which is the order of a batch."""
        self._begin: dict[int, int] = {}
        self._admissions = 0
        self._order: dict[int, int] = {}

    def admit(self, view: RequestView) -> None:
        """Enter a request that starts its prefill at the end of the running list."""
        self.running[view.number] = view
        self._order[view.number] = self._admissions
        self._admissions += 1

    def join(self, index: int, step: int) -> None:
        """Let a running request decode from ``step`` on."""
        self._begin[index] = step
        self.crossing[(step - self.goals[index]) % self.block] += 1

    def end(self, indices: list[int], step: int) -> None:
        """Let requests decode no more in ``step``, for their last token is on its way; they still hold their blocks."""
        for index in indices:
            self._ending[index] = self._decoded(index, step)
            self._stop_decoding(index)

    def leave(self, indices: list[int]) -> list[int]:
        """Take requests out that have finished, and return them in batch order; their blocks are the cache's business.

        Nobody can preempt them any more, even if their batch is still on its way through a pipeline.
        """
        for index in indices:
            self._take_out(index)
        return sorted(indices, key=self._order.pop)

    def _take_out(self, index: int) -> None:
        del self.running[index]
        self._ending.pop(index, None)
        self._stop_decoding(index)

    def _decoded(self, index: int, step: int) -> int:
        """Return how many tokens a request that has ended its prefill has computed before ``step``."""
        begin = self._begin.get(index)
        return self.goals[index] + (0 if begin is None else step - begin)

    def _stop_decoding(self, index: int) -> None:
        if (begin := self._begin.pop(index, None)) is not None:
            self.crossing[(begin - self.goals[index]) % self.block] -= 1

    def steps_that_fit(self, step: int, most: int) -> tuple[int, int]:
        """Return how many of the next ``most`` decode-only steps find their blocks, and the blocks they take."""
        free, crossing, block = self.cache.free, self.crossing, self.block
        per_round = len(self._begin)
        rounds = min(free // per_round, most // block)
        taken, steps = rounds * per_round, rounds * block
        while steps < most and taken + crossing[(step + steps) % block] <= free:
            taken += crossing[(step + steps) % block]
            steps += 1
        return steps, taken

    def take_run(self, step: int, steps: int) -> list[int]:
        """Take what the next ``steps`` decode-only steps need, and return the blocks in use after each of them."""
        first = step % self.block
        one_round = self.crossing[first:] + self.crossing[:first]
        used = self.cache.capacity - self.cache.free
        in_use = list(accumulate((one_round * -(-steps // self.block))[:steps], initial=used))
        self.cache.take(in_use[-1] - used)
        return in_use[1:]

    def plan(self, prefilling: Iterable[RequestView], tokens: int, cap: int | None) -> dict[int, int]:
        """Return how many tokens started prefills will have computed, by request, when ``tokens`` are handed out.

        They are served in order, each with at most ``cap``; those that get none are missing.
        """
        plan: dict[int, int] = {}
        for view in prefilling:
            if tokens <= 0:
                break
            i = view.number
            before = self.computed[i]
            c = min(self.goals[i] - before, tokens, FAR if cap is None else cap)
            plan[i] = before + c
            tokens -= c
        return plan

    def squeeze(self, step: int, chunks: Mapping[int, int]) -> list[Victim]:
        """Find the blocks of a step that needs more than are free, as vLLM does.

        In the order of the batch each running request takes its blocks; while they are not free, the last running
        request is preempted, until that is the one that asks.

        Args:
            step: the step to be run.
            chunks: by started prefill, how many tokens it will have computed; those missing here get none.

        Returns:
            The preempted requests, first victim first, out of the running list.
        """
        cache, victims = self.cache, []
        for index in list(self.running):
            if index not in self.running:
                break
            begin = self._begin.get(index)
            if begin is not None:
                need = 0 if (step - begin + self.goals[index]) % self.block else 1
            elif index in chunks:
                need = cache.missing(index, chunks[index])
            else:
                continue
            while need > cache.free:
                victims.append(self._preempt(next(reversed(self.running)), step))
                if index not in self.running:
                    return victims
            if begin is None:
                cache.extend(index, chunks[index])
            else:
                cache.take(need)
        return victims

    def _preempt(self, index: int, step: int) -> Victim:
        view, cache, goal = self.running[index], self.cache, self.goals[index]
        begin, computed = self._begin.get(index), self._ending.get(index)
        decoded = None if computed is None else ENDING
        if begin is not None:
            computed, decoded = goal + step - begin, 1 + step - begin
        self._take_out(index)
        del self._order[index]
        if computed is None:
            cache.finish(index, self.computed[index])
        elif self._ahead:
            cache.finish(index, computed, max(goal, computed - 1))
        else:
            cache.finish(index, computed)
        return Victim(view, decoded)
