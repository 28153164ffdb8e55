"""What is run on a GPU: the hybrid engine with a model of known shape and random weights, and how large all is."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from costmodels.hardware import LlmShape, gpu_names, load_gpu, load_llm
from costmodels.memory import CHUNK, RESERVED_BYTES, UTILISATION
from gpu_runner.hybrid.engine import HybridEngine
from gpu_runner.hybrid.errors import HybridError
from gpu_runner.hybrid.mil import Measured
from gpu_runner.hybrid.models import build_model
from gpu_runner.hybrid.options import HybridOptions
from gpu_runner.hybrid.prefill import Prefiller
from gpu_runner.hybrid.prefixstore import PrefixStore
from gpu_runner.settings import Settings

BLOCK = 16


@dataclass(frozen=True)
class Sizes:
    """How large everything is, in tokens.

    Attributes:
        shape: of the model.
        prompts: whose logits are compared.
        chunks: that they are compared with.
        speed: the prompt that throughput is measured with.
        chunked: chunk of chunked prefill (the paper's 512).
        chunk: of hybrid prefill otherwise, and of chunked prefill's maximum input length.
        peaks: prompts whose memory is measured, rising; a straight line through the last two that fit gives the rest,
            so that with two of them hybrid prefilling must be at its most in attention, not in a chunk.
        tokens: new tokens of the JCT grid.
        contexts: cached tokens of the JCT grid.
        longest: prompt of the JCT grid.
        room: bytes beside the weights where there is no GPU to say so.
        card: a smaller GPU that a larger one can stand in for, ``None`` for none.
    """

    shape: LlmShape
    prompts: tuple[int, ...]
    chunks: tuple[int, ...]
    speed: int
    chunked: int
    chunk: int
    peaks: tuple[int, ...]
    tokens: tuple[int, ...]
    contexts: tuple[int, ...]
    longest: int
    room: int
    card: str | None


def full() -> Sizes:
    """Llama-3.1-8B, prompts up to 60,000 tokens."""
    return Sizes(
        shape=load_llm("llama-3.1-8b"),
        prompts=(3000, 1000),
        chunks=(512, 2048),
        speed=20_000,
        chunked=512,
        chunk=CHUNK,
        peaks=(8192, 16_384, 32_768, 40_960),
        tokens=(512, 2000, 5000, 10_000, 20_000, 40_000, 60_000),
        contexts=(0, 4992, 10_000, 20_000, 40_000),
        longest=60_000,
        room=0,
        card="l4",
    )


def small() -> Sizes:
    """The same at a size for which seconds on a CPU are enough."""
    return Sizes(
        shape=LlmShape("small", layers=2, hidden=64, intermediate=96, heads=4, kv_heads=2, head_dim=16, vocab=512),
        prompts=(90,),
        chunks=(16, 64),
        speed=160,
        chunked=32,
        chunk=64,
        peaks=(128, 448, 512),
        tokens=(20, 80, 160),
        contexts=(0, 32, 96),
        longest=300,
        room=2**19,
        card=None,
    )


class Subject:
    """The engine, and what the parts of the run ask of it.

    Args:
        sizes: of everything.
        folder: a new folder for the model's configuration.
        device: ``auto``, ``cpu`` or ``cuda``.

    Raises:
        HybridError: if two layers do not fit the GPU.
    """

    def __init__(self, sizes: Sizes, folder: Path, device: str = "auto", seed: int = 0) -> None:
        self.sizes = sizes
        self.seed = seed
        layers = layers_that_fit(sizes, _gpu_room(device))
        self.shape = replace(sizes.shape, layers=layers)
        fewer = "" if layers == sizes.shape.layers else f"-{layers}-layers"
        model = folder / f"{sizes.shape.name}{fewer}"
        build_model("llama", self.shape, device="meta").config.save_pretrained(model)
        options = HybridOptions(
            str(model),
            dtype="bfloat16",
            load_format="dummy",
            device=device,
            max_model_len=sizes.longest + 1,
            blocks=0,
            chunk=sizes.chunk,
            seed=seed,
        )
        self.engine = HybridEngine(options, Settings(policy="fcfs+full", discard=True, prometheus=False))
        self.config = self.engine.config
        self._rate: float | None = None

    @property
    def prefiller(self) -> Prefiller:
        """The model, with chunks of ``sizes.chunk``."""
        return self.engine.runner.prefiller

    @property
    def device(self) -> Any:
        """Where it is."""
        return self.prefiller.device

    @property
    def on_gpu(self) -> bool:
        """Whether there is an allocator to ask."""
        return bool(self.device.type == "cuda")

    def ids(self, count: int, seed: int = 0) -> Any:
        """Return random token ids on the device, [count]."""
        made = torch.randint(0, self.shape.vocab, (count,), generator=torch.Generator().manual_seed(seed))
        return made.to(self.device)

    def hold(self, tokens: int) -> None:
        """Give the prefix store room for so many tokens, and forget what it had."""
        shape = self.engine.runner.store.shape
        self.engine.runner.store = PrefixStore(shape, 0)
        self.free()
        self.engine.runner.store = PrefixStore(shape, tokens // BLOCK, str(self.device))

    def free(self) -> None:
        """Give back what nobody uses."""
        gc.collect()
        if self.on_gpu:
            torch.cuda.empty_cache()

    def timed(self, run: Callable[[], Any]) -> tuple[float, float]:
        """Run something; return its seconds, and those until the host had started all of it."""
        self._wait()
        begin = time.perf_counter()
        run()
        launched = time.perf_counter()
        self._wait()
        return time.perf_counter() - begin, launched - begin

    def expected_s(self, tokens: int, context: int = 0) -> float:
        """Return about how long a prefill takes, from one that is measured once and the operations of both."""
        if self._rate is None:
            ids = self.ids(self.sizes.speed)
            self.prefiller.prefill(ids)
            seconds, _ = self.timed(lambda: self.prefiller.prefill(ids))
            self._rate = self._operations(self.sizes.speed, 0) / seconds
        return self._operations(tokens, context) / self._rate

    def rooms(self) -> dict[str, int]:
        """Return the bytes beside the weights: of this device, and of the smaller GPU that it stands in for."""
        if not self.on_gpu:
            return {"this": self.sizes.room}
        total = torch.cuda.get_device_properties(self.device).total_memory
        totals = {"this": total}
        if self.sizes.card is not None:
            totals[self.sizes.card] = load_gpu(self.sizes.card).memory_bytes
        weights = sum({t.data_ptr(): t.nbytes for t in self._weights()}.values())
        rooms = {name: _usable(bytes_) - weights for name, bytes_ in totals.items() if bytes_ <= total}
        return {name: room for name, room in rooms.items() if room > 0}

    def card(self) -> str | None:
        """Return the data sheet of this GPU, by name; ``None`` where there is none."""
        if not self.on_gpu:
            return None
        words = torch.cuda.get_device_name(self.device).lower().replace("-", " ").split()
        total = torch.cuda.get_device_properties(self.device).total_memory
        fitting = [name for name in gpu_names() if name.split("-")[0] in words]
        near = [name for name in fitting if abs(load_gpu(name).memory_bytes / total - 1) < 0.1]
        forms = [name for name in near if name.split("-")[-1] in words]
        # Cards are sold in forms that the driver does not name; SXM is what it leaves unsaid.
        return next(iter(forms or [n for n in near if n.endswith("sxm")] or near), None)

    def _weights(self) -> list[Any]:
        return [*self.prefiller.weights.values(), self.prefiller.head.weight]

    def _operations(self, tokens: int, context: int) -> float:
        pairs = tokens * context + tokens * (tokens + 1) / 2
        attention = 4 * self.shape.layers * self.shape.heads * self.shape.head_dim * pairs
        return 2 * self.shape.linear_parameters * tokens + attention

    def _wait(self) -> None:
        if self.on_gpu:
            torch.cuda.synchronize(self.device)


def layers_that_fit(sizes: Sizes, room: int | None) -> int:
    """Return how many layers fit beside the longest prompt and the stored contexts, or beside the speed prompt's KV.

    Args:
        sizes: of everything.
        room: bytes for all of it; ``None`` for as many as needed.

    Raises:
        HybridError: if two do not fit.
    """
    shape = sizes.shape
    if room is None:
        return shape.layers
    measured = Measured(shape, chunk=sizes.chunk)
    longest = measured.trace("hybrid", sizes.longest).peak
    paged = measured.trace("paged", sizes.speed).peak
    kv = shape.kv_bytes_per_token_and_layer
    for layers in range(shape.layers, 1, -1):
        weights = replace(shape, layers=layers).weight_bytes
        stored = longest + sizes.longest * kv + max(sizes.contexts) * kv * layers
        if weights + max(stored, paged + sizes.speed * kv * (layers - 2)) <= room:
            return layers
    raise HybridError(f"two layers of {shape.name} do not fit this GPU: {room / 2**30:.1f} GiB can be used")


def _gpu_room(device: str) -> int | None:
    if device == "cpu" or not torch.cuda.is_available():
        return None
    return _usable(torch.cuda.mem_get_info()[0])


def _usable(total: int) -> int:
    return int(total * UTILISATION) - RESERVED_BYTES
