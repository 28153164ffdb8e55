"""The maximum input length of a model on a GPU that is not there: the executor's own code on tensors without memory."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from dataclasses import dataclass

import torch

from costmodels.hardware import Gpu, LlmShape
from costmodels.memory import CHUNK, MemoryModel
from gpu_runner.hybrid.baselines import chunked_prefill, whole_prefill
from gpu_runner.hybrid.errors import HybridError
from gpu_runner.hybrid.execute import PLAIN, Switches
from gpu_runner.hybrid.memory import Trace, measure
from gpu_runner.hybrid.models import build_model
from gpu_runner.hybrid.prefill import Prefiller

KEEPS_ALL_KV = ("paged", "chunked")
SWITCHES: dict[str, Callable[[int], Switches]] = {
    "discard": lambda chunk: PLAIN,
    "hybrid-chunking": lambda chunk: Switches(chunk, preallocate=False, in_place=False),
    "hybrid-preallocation": lambda chunk: Switches(chunk, in_place=False),
    "hybrid": Switches,
}
"""How the executor runs in the modes of ``costmodels.memory`` that keep no KV."""

MODES = (*KEEPS_ALL_KV, *SWITCHES)


@dataclass(frozen=True)
class Measured:
    """One model, run for its memory only; all of a model's layers are alike, so that a few of them tell.

    Args:
        llm: its shape.
        architecture: which of ``models.ARCHITECTURES``.
        chunk: tokens at once, where there are chunks.
        layers: how many are run; what the others' weights and kept KV take is added.

    Raises:
        HybridError: if fewer than two layers are to be run.
    """

    llm: LlmShape
    architecture: str = "llama"
    chunk: int = CHUNK
    layers: int = 2

    def __post_init__(self) -> None:
        if not 2 <= self.layers <= self.llm.layers:
            raise HybridError(
                f"layers is {self.layers}; it must lie between 2 and {self.llm.layers}, those of the model"
            )

    def trace(self, mode: str, tokens: int) -> Trace:
        """Return what a prefill of ``tokens`` takes beside the weights, with ``layers`` layers.

        Raises:
            HybridError: if the mode is unknown.
        """
        if mode not in MODES:
            raise HybridError(f"unknown mode {mode!r} (modes: {', '.join(MODES)})")
        prefiller = self._prefiller
        ids = torch.zeros(tokens, dtype=torch.long, device="meta")
        if mode == "paged":
            return measure(lambda: whole_prefill(prefiller, ids), ids.device)
        if mode == "chunked":
            return measure(lambda: chunked_prefill(prefiller, ids, self.chunk), ids.device)
        switched = prefiller.with_switches(SWITCHES[mode](self.chunk))
        return measure(lambda: switched.prefill(ids), ids.device)

    def peak_bytes(self, mode: str, tokens: int) -> int:
        """Return what a prefill of ``tokens`` takes beside the weights, with all layers."""
        others = (self.llm.layers - self.layers) * self.llm.kv_bytes_per_token_and_layer
        return self.trace(mode, tokens).peak + tokens * others * (mode in KEEPS_ALL_KV)

    @functools.cached_property
    def weight_bytes(self) -> int:
        """Bytes of all weights and buffers."""
        few = [_bytes(build_model(self.architecture, self.llm, layers=n, device="meta")) for n in (1, 2)]
        return few[0] + (self.llm.layers - 1) * (few[1] - few[0])

    def max_input_length(self, mode: str, gpu: Gpu, step: int = 16) -> int:
        """Return the most tokens, a multiple of ``step``, that fit beside the weights on ``gpu``.

        What may be used of its memory is as in ``costmodels.memory``.

        Raises:
            costmodels.hardware.HardwareError: if the weights do not fit.
        """
        return step * most(lambda n: self.peak_bytes(mode, n * step), self.room_bytes(gpu))

    def room_bytes(self, gpu: Gpu) -> int:
        """Return what the weights leave of the memory of ``gpu`` that may be used.

        Raises:
            costmodels.hardware.HardwareError: if the weights do not fit.
        """
        return MemoryModel(self.llm, gpu).usable_bytes - self.weight_bytes

    @functools.cached_property
    def _prefiller(self) -> Prefiller:
        return Prefiller(build_model(self.architecture, self.llm, layers=self.layers, device="meta"))


def most(peak: Callable[[int], int], room: int) -> int:
    """Return the largest n with ``peak(n) <= room``, 0 if there is none; ``peak`` must not fall.

    It is bisection that tries first where a straight line through the last two points reaches ``room``.
    """
    if peak(1) > room:
        return 0
    low, high = 1, 0
    points = [(1, 0)]
    for tries in itertools.count():
        if tries < 2:
            guess = 512 * (tries + 1)
        elif tries % 4 == 1:
            guess = (low + high) // 2 if high else 4 * low
        else:
            (a, at_a), (b, at_b) = points[-2:]
            guess = b + (room - at_b) * (b - a) // (at_b - at_a) if at_a != at_b else low + 1
        guess = max(low + 1, min(guess, high - 1 if high else guess))
        value = peak(guess)
        points.append((guess, value))
        low, high = (guess, high) if value <= room else (low, guess)
        if high == low + 1:
            return low
    raise AssertionError


def _bytes(model: torch.nn.Module) -> int:
    tensors = {id(t): t for t in (*model.parameters(), *model.buffers())}
    return sum(t.nbytes for t in tensors.values())
