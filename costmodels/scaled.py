"""A cost model on a machine that is faster or slower throughout."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from costmodels.base import CostModel, CostModelError

MOST = 10_000


@dataclass(frozen=True)
class ScaledCost(CostModel):
    """Every step takes ``factor`` times what another model says, rounded up.

    For machines whose speed has changed since they were measured. The factor counts to a millionth.

    Raises:
        CostModelError: if the factor is not a positive number, or too large for steps to fit a 64-bit clock.
    """

    base: CostModel
    factor: float

    def __post_init__(self) -> None:
        if not 0 < self.factor <= MOST:
            raise CostModelError(
                f"a cost model cannot be scaled by {self.factor}, only by a positive number of at most {MOST:,}"
            )
        object.__setattr__(self, "name", f"{self.base.name} x {self.factor:.4g}")
        millionths = max(round(self.factor * 10**6), 1)
        object.__setattr__(self, "_millionths", millionths)

    def step_ns(
        self,
        n_decode: int,
        decode_context: int,
        decode_context_max: int,
        n_prefill: int,
        prefill_tokens: int,
        prefill_pairs: int,
    ) -> int:
        whole = self.base.step_ns(
            n_decode, decode_context, decode_context_max, n_prefill, prefill_tokens, prefill_pairs
        )
        return -(-whole * self._millionths // 10**6)  # type: ignore[attr-defined,no-any-return]

    def at_quantile(self, quantile: float) -> CostModel:
        return replace(self, base=self.base.at_quantile(quantile))

    def stages(self) -> tuple[CostModel, ...]:
        stages = self.base.stages()
        return (self,) if len(stages) == 1 else tuple(replace(self, base=stage) for stage in stages)

    def to_dict(self) -> dict[str, Any]:
        return {"kind": "scaled", "model": self.base.to_dict(), "factor": self.factor}
