"""Cost models for tests."""

from __future__ import annotations

from dataclasses import dataclass
from math import isqrt
from typing import Any

from costmodels import CostModel, LinearCost


@dataclass(frozen=True)
class GrowingCost(CostModel):
    """Monotone in every feature and linear in none; inherits everything but the step itself."""

    name: str = "growing"
    base: int = 7
    batch: int = 1
    context: int = 2
    tallest: int = 3
    tokens: int = 2
    pairs: int = 3

    def step_ns(
        self,
        n_decode: int,
        decode_context: int,
        decode_context_max: int,
        n_prefill: int,
        prefill_tokens: int,
        prefill_pairs: int,
    ) -> int:
        return (
            self.base
            + self.batch * n_decode**2
            + self.context * isqrt(decode_context)
            + decode_context_max // self.tallest
            + 4 * n_prefill
            + self.tokens * prefill_tokens
            + self.pairs * isqrt(prefill_pairs)
        )

    def to_dict(self) -> dict[str, Any]:
        return {"kind": self.name}


PAPER = LinearCost()
"""SLOWeave §4.1."""


def prefill_only(per_token: int = 1) -> LinearCost:
    """Return the cost whose steps without decodes last exactly their prefill tokens times ``per_token``."""
    return LinearCost(step=0, decode=1, per_decode=0, prefill=0, per_token=per_token)
