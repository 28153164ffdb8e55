"""The linear cost model of SLOWeave §4.1, in integer nanoseconds."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from costmodels.base import CostModel, CostModelError


@dataclass(frozen=True)
class LinearCost(CostModel):
    """``step + [n > 0](decode + per_decode * n) + [c > 0](prefill + per_token * c)`` nanoseconds.

    Integer coefficients make ``T(4, 1355) = 10 ms`` hold exactly, which doubles miss, and give
    :meth:`max_chunk` in closed form.
    """

    name: str = "linear"
    step: int = 350_000
    decode: int = 900_000
    per_decode: int = 55_000
    prefill: int = 400_000
    per_token: int = 6_000
    residual_quantiles: dict[str, int] = field(default_factory=dict)
    """Nanoseconds to add for a quantile of the step time, keyed like ``"0.99"``."""

    def __post_init__(self) -> None:
        for coefficient in ("step", "decode", "per_decode", "prefill", "per_token"):
            value = getattr(self, coefficient)
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                raise CostModelError(
                    f"cost model {self.name}: {coefficient} is {value!r}, which must be a whole number of "
                    "nanoseconds, at least 0"
                )
        if self.step + self.prefill + self.per_token == 0 or self.step + self.decode + self.per_decode == 0:
            raise CostModelError(f"cost model {self.name}: a step would take no time")

    def step_ns(
        self,
        n_decode: int,
        decode_context: int,
        decode_context_max: int,
        n_prefill: int,
        prefill_tokens: int,
        prefill_pairs: int,
    ) -> int:
        t = self.step
        if n_decode:
            t += self.decode + self.per_decode * n_decode
        if prefill_tokens:
            t += self.prefill + self.per_token * prefill_tokens
        return t

    def max_chunk(
        self,
        n_decode: int,
        decode_context: int,
        decode_context_max: int,
        context: int,
        limit: int,
        budget_ns: int,
    ) -> int:
        left = budget_ns - self.step - self.prefill
        if n_decode:
            left -= self.decode + self.per_decode * n_decode
        per_token = self.per_token
        if left < per_token:
            return 0
        if not per_token or left >= limit * per_token:
            return limit
        return left // per_token

    def decode_run_ns(
        self, n_decode: int, decode_context: int, decode_context_max: int, steps: int
    ) -> NDArray[np.int64]:
        return np.full(steps, self.step_ns(n_decode, 0, 0, 0, 0, 0), dtype=np.int64)

    def at_quantile(self, quantile: float) -> LinearCost:
        try:
            extra = self.residual_quantiles[f"{quantile:g}"]
        except KeyError:
            return super().at_quantile(quantile)  # type: ignore[return-value]
        return replace(self, step=self.step + extra)

    def to_dict(self) -> dict[str, Any]:
        return {
            "kind": "linear",
            "name": self.name,
            "step_ns": self.step,
            "decode_ns": self.decode,
            "per_decode_ns": self.per_decode,
            "prefill_ns": self.prefill,
            "per_token_ns": self.per_token,
            "residual_quantiles_ns": self.residual_quantiles,
        }
