"""Exact steps of an engine with a stock scheduler, a token budget and a prefix cache."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence

import numpy as np

from gpu_runner.nvml import EnergyMeter
from gpu_runner.profiling.bench import CellError, Facts, Sample, Span, StepEngine, features, wanted
from gpu_runner.profiling.grid import Capacity, Cell

TRIES = 3

POWER_S = 1.0
"""Time over which power is averaged: counters of energy move every few tens of milliseconds."""

AHEAD = 32
"""Prompts queued at a time while power is measured, so that the device does not wait for them."""


class SteppedBench:
    """Measures cells on a :class:`gpu_runner.profiling.bench.StepEngine`.

    The decodes of a group of cells are prefilled once. Before each measured step they are dropped and added again:
    all their full blocks are then in the prefix cache, so one step of a token each brings them back to exactly the same
    context. The same step brings prompts to their context from a cached one of the same length. The measured step
    follows at once, with a budget of just its tokens; its own prompt tokens are new to the cache. The batch is compared
    with the wanted one, and all is built again where it differs.

    Args:
        engine: with nothing running.
        vocab: token ids are drawn from 0 to ``vocab - 1``.
        meter: of energy, if there is one.
        seed: of the token ids.
        clock: in seconds, for the time over which power is averaged.
    """

    def __init__(
        self,
        engine: StepEngine,
        vocab: int,
        meter: EnergyMeter | None = None,
        seed: int = 0,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._engine = engine
        self._vocab = vocab
        self._meter = meter
        self._rng = np.random.default_rng(seed)
        self._clock = clock
        self._names = itertools.count()
        self._live: list[str] = []
        self._group: tuple[int, int] | None = None
        self._decodes: list[list[int]] = []
        self._context: list[int] = []

    @property
    def capacity(self) -> Capacity:
        """What the engine can hold."""
        return self._engine.capacity

    def facts(self) -> Facts:
        """Say what is measured."""
        return self._engine.facts()

    def why_not(self, cell: Cell) -> str | None:
        """Say why a cell does not fit the engine; ``None`` if it does."""
        if cell.prompts > 1 and cell.prefill_context:
            return "would need several prompts to reach their context in one step"
        of = self.capacity
        warm_up = cell.n_decode + of.block_size * bool(cell.prefill_context)
        tokens = max(cell.n_decode + cell.prefill_tokens, warm_up)
        longest = max(cell.decode_context + 2, cell.prefill_context + max(cell.chunks, default=0) + 1)
        blocks = cell.n_decode * self._blocks(cell.decode_context + 2)
        blocks += sum(self._blocks(cell.prefill_context + c + 1) for c in cell.chunks)
        for needs, has, what in (
            (cell.n_decode + cell.prompts, of.max_num_seqs, "requests at once (max_num_seqs)"),
            (tokens, of.max_step_tokens, "tokens in a step (max_num_batched_tokens)"),
            (longest, of.max_model_len, "tokens in a request (max_model_len)"),
            (blocks, of.kv_blocks - 1, "KV blocks"),
        ):
            if needs > has:
                return f"needs more than {has} {what}"
        return None

    def measure(self, cell: Cell) -> Sample:
        """Run one step of the cell; see :meth:`gpu_runner.profiling.bench.Bench.measure`."""
        fresh = [self._ids(c) for c in cell.chunks]
        ran: tuple[Span, ...] = ()
        for _ in range(TRIES):
            if self._arrange(cell, fresh, outputs=3):
                step = self._engine.step(cell.n_decode + cell.prefill_tokens)
                ran = tuple(sorted(step.spans))
                self._drop()
                if ran == wanted(cell):
                    return Sample(features(ran), step.duration_ns, step.host_ns)
            self._drop()
            self._group = None
            fresh = [self._ids(c) for c in cell.chunks]
        raise CellError(f"{cell}: the engine ran {features(ran)} instead, {TRIES} times")

    def power_mw(self, cell: Cell) -> int | None:
        """Return the mean power of such steps; see :meth:`gpu_runner.profiling.bench.Bench.power_mw`."""
        if self._meter is None:
            return None
        energy, seconds = 0, 0.0
        while seconds < POWER_S:
            self._drop()
            if self._group != cell[:2]:
                self._build(cell)
            self._remember(cell.prefill_context)
            if not self._arrange(Cell(*cell[:2], 0, 0, 0), [], outputs=self._run_length(cell) + 1):
                raise CellError(f"{cell}: the engine did not bring back the decodes")
            spent, took = self._stretch(cell, POWER_S - seconds)
            energy, seconds = energy + spent, seconds + took
        return round(energy / seconds)

    def _stretch(self, cell: Cell, seconds: float) -> tuple[int, float]:
        """Run steps like the cell's in a row; return mJ and seconds."""
        assert self._meter is not None
        first, begin = self._meter.read_mj(), self._clock()
        took = 0.0
        for i in range(self._run_length(cell)):
            if cell.prompts and i % AHEAD == 0:
                for c in cell.chunks * AHEAD:
                    self._add([*self._context[: cell.prefill_context], *self._ids(c)], 1)
            self._engine.step(cell.n_decode + cell.prefill_tokens)
            took = self._clock() - begin
            if took >= seconds:
                break
        spent = self._meter.read_mj() - first
        self._drop()
        return spent, took

    def _run_length(self, cell: Cell) -> int:
        """Return how many steps in a row the engine has room for."""
        of = self.capacity
        if not cell.n_decode:
            return 10_000
        used = cell.n_decode * self._blocks(cell.decode_context + 2)
        used += sum(self._blocks(cell.prefill_context + c + 1) for c in cell.chunks)
        spare = max(of.kv_blocks - 1 - used, 0) * of.block_size // cell.n_decode
        return max(min(of.max_model_len - cell.decode_context - 2, spare, 10_000), 1)

    def _arrange(self, cell: Cell, fresh: Sequence[list[int]], outputs: int) -> bool:
        """Bring decodes and prompts to where the cell's step starts; say whether that worked."""
        self._drop()
        if self._group != cell[:2]:
            self._build(cell)
        self._remember(cell.prefill_context)
        block = self.capacity.block_size
        for ids in self._decodes:
            self._add(ids, outputs)
        depth = cell.prefill_context
        if depth:
            cached = self._context[: depth - block]
            for ids in fresh:
                self._add([*cached, *self._ids(block), *ids], outputs)
        if cell.n_decode or depth:
            ran = self._engine.step(cell.n_decode + block * bool(depth))
            ready = [Span(cell.decode_context - 1, 1, False)] * cell.n_decode
            ready += [Span(depth - block, block, False)] * bool(depth)
            if sorted(ran.spans) != sorted(ready):
                return False
        if not depth:
            for ids in fresh:
                self._add(ids, outputs)
        return True

    def _build(self, cell: Cell) -> None:
        """Compute the decodes of a group of cells into an empty cache."""
        self._engine.clear_cache()
        self._context = []
        self._decodes = [self._ids(cell.decode_context) for _ in range(cell.n_decode)]
        self._compute(self._decodes)
        self._group = cell[:2]

    def _remember(self, tokens: int) -> None:
        """Have a context of at least so many tokens in the cache."""
        missing = tokens - len(self._context)
        if missing > 0:
            self._context = [*self._context, *self._ids(missing)]
            self._compute([self._context])

    def _compute(self, prompts: Sequence[list[int]]) -> None:
        for ids in prompts:
            self._add(ids, 1)
        while self._engine.step(self.capacity.max_step_tokens).spans:
            pass
        self._drop()

    def _add(self, ids: list[int], outputs: int) -> None:
        name = f"profile-{next(self._names)}"
        self._live.append(name)
        self._engine.add(name, ids, outputs)

    def _drop(self) -> None:
        if self._live:
            self._engine.drop(self._live)
            self._live = []

    def _ids(self, count: int) -> list[int]:
        ids: list[int] = self._rng.integers(0, self._vocab, count).tolist()
        return ids

    def _blocks(self, tokens: int) -> int:
        return -(-tokens // self.capacity.block_size)
