"""Steps composed from the times of kernels: what a step of an engine would take, without an engine."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from costmodels.base import CostModelError
from costmodels.grids import FloatArray
from costmodels.hardware import LlmShape
from costmodels.profile import FEATURES, Profile

IntArray = NDArray[np.int64]

DECODES = (0, 1, 2, 4, 8, 16, 32, 64, 96, 128, 192, 256)

CONTEXTS = (64, 256, 1024, 2048, 4096, 8192)

CHUNKS = (0, 16, 64, 128, 256, 512, 1024, 1536, 2048, 4096)

PREFILL_CONTEXTS = (0, 512, 2048, 8192)

MOST_KV_TOKENS = 1 << 18
"""Decodes that hold more tokens together fit no GPU that is meant here."""


class KernelError(CostModelError):
    """Kernel tables that cannot be read or used so; the message says what is wrong and what would be right."""


@dataclass(frozen=True, eq=False)
class Steps:
    """Shapes of steps, each array of shape (steps,); the features of :class:`costmodels.base.CostModel`.

    Prefills of a step are alike: ``chunk`` tokens each, after ``prefill_context`` tokens that are computed already,
    as many query-key pairs together as the feature says. Decodes are alike too: ``mean_context`` tokens each.
    """

    n_decode: IntArray
    decode_context: IntArray
    decode_context_max: IntArray
    n_prefill: IntArray
    prefill_tokens: IntArray
    prefill_pairs: IntArray

    @classmethod
    def of(cls, features: NDArray[Any] | Steps) -> Steps:
        """Return the steps of an array of features, shape (steps, 6)."""
        if isinstance(features, Steps):
            return features
        table = np.asarray(features, dtype=np.int64).reshape(-1, len(FEATURES))
        return cls(*table.T)

    def __len__(self) -> int:
        return len(self.n_decode)

    @cached_property
    def tokens(self) -> IntArray:
        """Tokens that the layers work on."""
        return self.n_decode + self.prefill_tokens

    @cached_property
    def sequences(self) -> IntArray:
        """Sequences that the head and the sampler work on."""
        return self.n_decode + self.n_prefill

    @cached_property
    def mean_context(self) -> FloatArray:
        """Tokens that a decode reads, on average; 0 without decodes."""
        return np.asarray(self.decode_context / np.maximum(self.n_decode, 1))

    @cached_property
    def chunk(self) -> FloatArray:
        """Tokens of a prefill, on average; 0 without prefills."""
        return np.asarray(self.prefill_tokens / np.maximum(self.n_prefill, 1))

    @cached_property
    def prefill_context(self) -> FloatArray:
        """Tokens that are computed before a prefill's chunk, such that the pairs add up."""
        return context_of(self.chunk, self.prefill_pairs / np.maximum(self.n_prefill, 1))


def context_of(chunk: FloatArray, pairs: FloatArray) -> FloatArray:
    """Return the context after which ``chunk`` tokens have ``pairs`` query-key pairs; 0 without tokens."""
    return np.asarray(np.maximum(pairs / np.maximum(chunk, 1) - (chunk + 1) / 2, 0.0) * (chunk > 0))


@dataclass(frozen=True, eq=False, kw_only=True)
class KernelSource(ABC):
    """Where kernel times come from, for one model on one device.

    A step takes ``layers * (dense + attention)`` + all-reduces + embedding, head and sampler once + ``host_ns``.
    """

    device: str
    llm: LlmShape
    tp: int = 1
    engine: str = "vllm"
    engine_version: str = "unknown"
    host_ns: int = 0
    """What the host adds to each step."""
    estimated: bool = False
    """Whether the times come from specifications; the device's name then says so too."""
    about: dict[str, Any] = field(default_factory=dict)
    """Where the numbers are from, for the provenance of profiles."""

    @abstractmethod
    def gpu_ns(self, steps: Steps) -> FloatArray:
        """Return what the GPU works on each step, in nanoseconds, shape (steps,)."""

    def measured(self, steps: Steps) -> list[tuple[str, NDArray[Any], float]]:
        """Return the quantities that a table is read at, with their names and the most that was measured."""
        return []

    def duration_ns(self, features: NDArray[Any] | Steps) -> IntArray:
        """Return how long steps take, in whole nanoseconds, shape (steps,), of features of shape (steps, 6)."""
        times = self.gpu_ns(Steps.of(features)) + self.host_ns
        return np.maximum(np.ceil(times), 1).astype(np.int64)

    def outside(self, features: NDArray[Any] | Steps) -> str | None:
        """Return one sentence on the steps that are outside what was measured; None if there are none."""
        steps = Steps.of(features)
        beyond, says = np.zeros(len(steps), dtype=np.bool_), []
        for name, values, most in self.measured(steps):
            if (values > most).any():
                beyond |= values > most
                says.append(f"{name} up to {np.max(values):,.0f} (measured to {most:,.0f})")
        if not says:
            return None
        return (
            f"{int(beyond.sum())} of {len(steps)} steps are outside what was measured, where times grow with the "
            f"work: {'; '.join(says)}"
        )


def step_grid(
    decodes: Iterable[int] = DECODES,
    contexts: Iterable[int] = CONTEXTS,
    chunks: Iterable[int] = CHUNKS,
    prefill_contexts: Iterable[int] = PREFILL_CONTEXTS,
    most_kv_tokens: int = MOST_KV_TOKENS,
) -> IntArray:
    """Return the features of a grid of decode-only, prefill-only and mixed steps, shape (steps, 6), in order.

    Decodes hold ``contexts`` tokens each; one prefill computes ``chunks`` tokens after ``prefill_contexts``.

    Raises:
        KernelError: if there is no step.
    """
    rows = {
        (n, n * context * (n > 0), context * (n > 0), int(c > 0), c, c * before + c * (c + 1) // 2)
        for n in decodes
        for context in contexts
        for c in chunks
        for before in prefill_contexts
        if n + c and n * context <= most_kv_tokens
    }
    if not rows:
        raise KernelError("the grid has no steps; it needs decodes or prefill chunks that are not 0")
    return np.array(sorted(rows), dtype=np.int64)


def compose_profile(source: KernelSource, features: NDArray[Any] | None = None) -> Profile:
    """Return the profile table of the steps that ``source`` composes, one row each; the same every time.

    Args:
        source: Kernel tables, or a roofline.
        features: Shapes of steps, shape (steps, 6); by default those of :func:`step_grid`.

    Raises:
        ProfileError: if the steps are not a profile, see :class:`costmodels.profile.Profile`.
    """
    grid = step_grid() if features is None else np.asarray(features, dtype=np.int64)
    llm = source.llm
    frame = pd.DataFrame(
        {
            "device": source.device,
            "model": llm.name,
            "dtype": "bf16" if llm.linear_bytes == 2 else "fp8",
            "tensor_parallel": source.tp,
            "engine": source.engine,
            "engine_version": source.engine_version,
            **dict(zip(FEATURES, grid.T, strict=True)),
            "duration_ns": source.duration_ns(grid),
            "repeat": 0,
            "host_ns": source.host_ns,
        }
    )
    outside = source.outside(grid)
    provenance = {
        "composed": True,
        "estimated": source.estimated,
        "host_ns": source.host_ns,
        **source.about,
        "notes": [*source.about.get("notes", []), *([outside] if outside else [])],
    }
    return Profile(frame, provenance, f"{source.device} {llm.name} TP {source.tp}")
