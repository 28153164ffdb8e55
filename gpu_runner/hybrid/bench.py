"""Measures prefills of the hybrid engine: so many new tokens after so many cached ones."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from gpu_runner.nvml import EnergyMeter
from gpu_runner.profiling.bench import CellError, Facts, Sample
from gpu_runner.profiling.grid import Axes, Capacity, Cell, preset
from gpu_runner.profiling.stepped import POWER_S
from gpu_runner.profiling.vllm_steps import lasting
from gpu_runner.settings import KEY
from policies.units import NS

if TYPE_CHECKING:
    from gpu_runner.hybrid.engine import HybridEngine


def prefill_axes(grid: str, capacity: Capacity) -> Axes:
    """Return the axes of a named grid without decodes, one prompt at a time.

    Raises:
        ProfileError: if there is no such grid.
    """
    axes = preset(grid, capacity)
    return replace(axes, decodes=(0,), prompts=(1,), prefill_tokens=tuple(n for n in axes.prefill_tokens if n))


class HybridBench:
    """Steps of a :class:`gpu_runner.hybrid.engine.HybridEngine` as a replay has them, queue and answer included.

    Args:
        engine: idle; its policy is of no account, for one request waits at a time.
        meter: of energy, if there is one.
        seed: of the token ids.
    """

    def __init__(self, engine: HybridEngine, meter: EnergyMeter | None = None, seed: int = 0) -> None:
        self._engine = engine
        self._meter = meter
        self._rng = np.random.default_rng(seed)
        self._context: list[int] = []

    @property
    def capacity(self) -> Capacity:
        """What the engine can hold."""
        longest = self._engine.max_model_len
        return Capacity(1, longest, longest - 1, self._engine.runner.store.capacity, self._engine.runner.block_size)

    def facts(self) -> Facts:
        """Say what is measured."""
        found = self._engine.provenance()
        return Facts(
            setting={
                "device": found["device"],
                "model": Path(self._engine.options.model).name,
                "dtype": found["dtype"],
                "tensor_parallel": 1,
                "engine": "hybrid",
                "engine_version": f"torch {found['torch']}",
            },
            key={k: lasting(v) for k, v in found.items() if k not in ("device", "dtype")},
        )

    def why_not(self, cell: Cell) -> str | None:
        """Say why a cell does not fit; ``None`` if it does."""
        of = self.capacity
        if cell.n_decode:
            return "has decodes, but the hybrid engine prefills only"
        if cell.prompts > 1:
            return "has several prompts, but the hybrid engine prefills one at a time"
        if cell.prefill_context + cell.prefill_tokens >= of.max_model_len:
            return f"needs more than {of.max_model_len} tokens in a request (max_model_len)"
        if cell.prefill_context > of.kv_blocks * of.block_size:
            return f"needs more than the prefix store's {of.kv_blocks} blocks"
        return None

    def measure(self, cell: Cell) -> Sample:
        """Run one prefill of the cell; see :meth:`gpu_runner.profiling.bench.Bench.measure`."""
        self._remember(cell.prefill_context)
        self._prefill(cell)
        step = self._engine.scheduler.last
        assert step is not None
        wanted = cell.prefill_tokens * cell.prefill_context + cell.prefill_tokens * (cell.prefill_tokens + 1) // 2
        if (step.prefill_tokens, step.prefill_pairs) != (cell.prefill_tokens, wanted):
            raise CellError(f"{cell}: the engine prefilled {step.prefill_tokens} tokens instead")
        return Sample(step.features, step.end - step.decided, None)

    def power_mw(self, cell: Cell) -> int | None:
        """Return the mean power of such prefills in a row; see :meth:`gpu_runner.profiling.bench.Bench.power_mw`."""
        if self._meter is None:
            return None
        self._remember(cell.prefill_context)
        clock = self._engine.scheduler.clock
        first, begin = self._meter.read_mj(), clock()
        while clock() - begin < POWER_S * NS:
            self._prefill(cell)
        return round((self._meter.read_mj() - first) * NS / (clock() - begin))

    def _remember(self, tokens: int) -> None:
        """Have a context of so many tokens in the store, and be the one used last."""
        if not tokens:
            return
        if len(self._context) < tokens:
            self._context += self._ids(tokens - len(self._context))
        if self._engine.runner.cached_tokens([*self._context[:tokens], 0]) < tokens:
            self._serve([*self._context[:tokens], 0], tokens)

    def _prefill(self, cell: Cell) -> None:
        depth = cell.prefill_context
        self._serve([*self._context[:depth], *self._ids(cell.prefill_tokens)], depth)

    def _serve(self, ids: list[int], keep: int) -> None:
        """Serve a prompt; where suffixes are discarded, its first ``keep`` tokens stay."""
        self._engine.add("profile", ids, extra_args={f"{KEY}_keep_tokens": keep} if keep else None)
        while self._engine.busy:
            self._engine.step()

    def _ids(self, count: int) -> list[int]:
        ids: list[int] = self._rng.integers(0, self._engine.vocab, count).tolist()
        return ids
