"""A machine that changes while a run lasts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from costmodels.base import CostModel


@dataclass
class DriftingCost(CostModel):
    """``before`` for so many steps, then ``after``, like after a driver update.

    It counts the steps that it is asked for, and so is for one run without stretches (``simulate(stretch=False)``).
    """

    before: CostModel
    after: CostModel
    steps: int
    name: str = "drifting"
    _taken: int = field(default=0, init=False)

    def step_ns(
        self,
        n_decode: int,
        decode_context: int,
        decode_context_max: int,
        n_prefill: int,
        prefill_tokens: int,
        prefill_pairs: int,
    ) -> int:
        self._taken += 1
        model = self.before if self._taken <= self.steps else self.after
        return model.step_ns(n_decode, decode_context, decode_context_max, n_prefill, prefill_tokens, prefill_pairs)

    def to_dict(self) -> dict[str, Any]:
        return {"kind": "drifting", "before": self.before.to_dict(), "after": self.after.to_dict(), "steps": self.steps}
