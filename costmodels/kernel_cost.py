"""A cost model that reads kernel tables at every step, for the cost that an engine charges."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from costmodels.base import CostModel
from costmodels.kernels import KernelSource, Steps


class KernelCost(CostModel):
    """What ``source`` composes for a step, warned of once where it is outside what was measured.

    Measured times fall here and there as work grows, and so do this model's: it is a true cost for simulations, and
    not what a policy should search for the largest chunk with. Fit an estimator to a composed profile for that.
    """

    def __init__(self, source: KernelSource) -> None:
        self.source = source
        self.name = f"kernels of {source.llm.name} on {source.device}"
        self._warned = False
        self._one: Callable[[tuple[int, ...]], int] = lru_cache(1 << 16)(self._compose)

    def step_ns(
        self,
        n_decode: int,
        decode_context: int,
        decode_context_max: int,
        n_prefill: int,
        prefill_tokens: int,
        prefill_pairs: int,
    ) -> int:
        return self._one(
            (n_decode, decode_context, decode_context_max, n_prefill, prefill_tokens, prefill_pairs),
        )

    def _compose(self, step: tuple[int, ...]) -> int:
        return int(self._durations(np.array([step], dtype=np.int64))[0])

    def _durations(self, features: NDArray[np.int64]) -> NDArray[np.int64]:
        steps = Steps.of(features)
        if not self._warned:
            outside = self.source.outside(steps)
            if outside is not None:
                self._warned = True
                warnings.warn(f"cost model {self.name}: {outside}", stacklevel=4)
        return self.source.duration_ns(steps)

    def decode_run_ns(
        self, n_decode: int, decode_context: int, decode_context_max: int, steps: int
    ) -> NDArray[np.int64]:
        j = np.arange(steps, dtype=np.int64)
        features = np.zeros((steps, 6), dtype=np.int64)
        features[:, 0], features[:, 1], features[:, 2] = n_decode, decode_context + j * n_decode, decode_context_max + j
        return self._durations(features)

    def to_dict(self) -> dict[str, Any]:
        return {"kind": "kernels", "name": self.name, "host_ns": self.source.host_ns, **self.source.about}
