"""True step times that differ from the predicted ones: bias, noise, overruns, stairs, drift."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import ceil, exp
from statistics import NormalDist
from typing import Any

from costmodels.base import CostModel

_MIX = 0x9E3779B97F4A7C15
_FULL = (1 << 64) - 1
_STANDARD = NormalDist()


@dataclass(frozen=True)
class TrueCost(CostModel):
    """``base`` with prefill tokens rounded up to ``tile``, times ``1 + bias``, times noise, now and then much longer.

    Noise is log-normal with ``sigma``; a share ``overruns`` of the steps takes ``longer`` times as much on top. Both
    are drawn from a hash of the step's features and ``seed``: equal steps take equal time, so that a stretch is the
    same step by step, and no two steps of a run are equal for long, because contexts grow.
    """

    base: CostModel
    name: str = "true"
    bias: float = 0.0
    sigma: float = 0.0
    overruns: float = 0.0
    longer: float = 0.3
    tile: int = 1
    seed: int = 0

    def step_ns(
        self,
        n_decode: int,
        decode_context: int,
        decode_context_max: int,
        n_prefill: int,
        prefill_tokens: int,
        prefill_pairs: int,
    ) -> int:
        in_tiles = prefill_tokens + -prefill_tokens % self.tile
        t = self.base.step_ns(n_decode, decode_context, decode_context_max, n_prefill, in_tiles, prefill_pairs)
        factor = 1 + self.bias
        if self.sigma or self.overruns:
            h = _mixed(self.seed, n_decode, decode_context, decode_context_max, prefill_tokens, prefill_pairs)
            factor *= exp(self.sigma * _STANDARD.inv_cdf(((h >> 11) + 0.5) / (1 << 53)))
            if _mixed(h, 1) < self.overruns * _FULL:
                factor *= 1 + self.longer
        return max(1, ceil(t * factor))

    def to_dict(self) -> dict[str, Any]:
        return {"kind": "true", "base": self.base.to_dict(), "name": self.name, "seed": self.seed}


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


def _mixed(*values: int) -> int:
    """Return 64 well-mixed bits of whole numbers (splitmix64), the same on every machine."""
    h = 0
    for value in values:
        h = (h ^ value) + _MIX & _FULL
        h = (h ^ h >> 30) * 0xBF58476D1CE4E5B9 & _FULL
        h = (h ^ h >> 27) * 0x94D049BB133111EB & _FULL
        h ^= h >> 31
    return h
