"""The linear cost model of SLOWeave §4.1, in integer nanoseconds."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from costmodels.base import CostModel, CostModelError

COEFFICIENTS = ("step", "decode", "per_decode", "prefill", "per_token")

MAX_NS = 10**12
"""Largest coefficient, 1,000 s: a step of a million tokens still fits a 64-bit clock."""


@dataclass(frozen=True)
class LinearCost(CostModel):
    """``step + [n > 0](decode + per_decode * n) + [c > 0](prefill + per_token * c)`` nanoseconds.

    Integer coefficients make ``T(4, 1355) = 10 ms`` hold exactly, which doubles miss, and give
    :meth:`max_chunk` in closed form.

    Raises:
        CostModelError: if a coefficient is not a whole number of nanoseconds from 0 to ``MAX_NS``, a step would take
            no time, or the quantiles do not rise.
    """

    name: str = "linear"
    step: int = 350_000
    decode: int = 900_000
    per_decode: int = 55_000
    prefill: int = 400_000
    per_token: int = 6_000
    residual_quantiles: dict[str, int] = field(default_factory=dict, hash=False)
    """Nanoseconds to add for a quantile of the step time, keyed like ``"0.99"``."""
    source: str = ""
    """Where the coefficients are from."""

    def __post_init__(self) -> None:
        for coefficient in COEFFICIENTS:
            value = getattr(self, coefficient)
            if type(value) is not int or not 0 <= value <= MAX_NS:
                raise CostModelError(
                    f"cost model {self.name}: {coefficient}_ns is {value!r}; it must be a whole number of "
                    "nanoseconds from 0 to 10**12"
                )
        if self.step + self.prefill + self.per_token == 0 or self.step + self.decode + self.per_decode == 0:
            raise CostModelError(f"cost model {self.name}: a step would take no time")
        self._check_quantiles()

    def _check_quantiles(self) -> None:
        for quantile, extra in self.residual_quantiles.items():
            if not _is_quantile(quantile):
                raise CostModelError(
                    f"cost model {self.name}: the residual quantile {quantile!r} must be a decimal between 0 and 1 in "
                    'its shortest form, like "0.99"'
                )
            if type(extra) is not int or not 0 <= extra <= MAX_NS:
                raise CostModelError(
                    f"cost model {self.name}: the residual quantile {quantile} is {extra!r}; it must be a whole number "
                    "of nanoseconds from 0 to 10**12"
                )
        rising = sorted(self.residual_quantiles.items(), key=lambda q: float(q[0]))
        for (low, less), (high, more) in pairwise(rising):
            if less > more:
                raise CostModelError(f"cost model {self.name}: the residual quantile {high} is below {low}'s")

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
        if not self.residual_quantiles:
            return super().at_quantile(quantile)  # type: ignore[return-value]
        try:
            extra = self.residual_quantiles[repr(quantile)]
        except KeyError:
            known = ", ".join(sorted(self.residual_quantiles, key=float))
            raise CostModelError(
                f"cost model {self.name} has no quantile {quantile!r} of its residuals, only {known}"
            ) from None
        return replace(self, step=self.step + extra, residual_quantiles={})

    def to_dict(self) -> dict[str, Any]:
        return {
            "kind": "linear",
            "name": self.name,
            "step_ns": self.step,
            "decode_ns": self.decode,
            "per_decode_ns": self.per_decode,
            "prefill_ns": self.prefill,
            "per_token_ns": self.per_token,
            "residual_quantiles_ns": dict(self.residual_quantiles),
            "source": self.source,
        }


def _is_quantile(text: object) -> bool:
    try:
        return isinstance(text, str) and 0 < float(text) < 1 and repr(float(text)) == text
    except ValueError:
        return False
