"""Shortest remaining job first, by prefill work seen at arrival or by work as it is now."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Annotated

from annotated_types import Ge

from policies.base import Ordering
from policies.registry import register
from policies.units import NS
from policies.views import RequestView


@register
class SrjfStatic(Ordering):
    """Shortest job first by uncached tokens as seen at arrival; never looked at again."""

    name = "srjf-static"
    source = "PrefillOnly §6.2 (the baseline without calibration)"
    key_at_arrival = True

    def key(self, request: RequestView) -> int:
        return request.uncached_tokens


@register
class SrjfCalibrated(Ordering):
    """Shortest job first by uncached tokens as they are now, aged by lam tokens per second of waiting."""

    name = "srjf-calibrated"
    source = "PrefillOnly §6.3, Algorithm 1"
    cache_aware = True

    lam: Annotated[float, Ge(0)] = 500.0
    """Fairness λ in tokens per second: how much work a second of waiting outweighs.

    inf is fcfs; under any finite λ simultaneous arrivals still go by work."""

    def __post_init__(self) -> None:
        # work - lam * (now - arrival) sorts like work + lam * arrival; the fraction makes both exact integers.
        self._fcfs = math.isinf(self.lam)
        weight = Fraction(0) if self._fcfs else Fraction(str(self.lam))
        self._work, self._arrival = NS * weight.denominator, weight.numerator

    def key(self, request: RequestView) -> int:
        if self._fcfs:
            return request.arrival_ns
        return request.uncached_tokens * self._work + self._arrival * request.arrival_ns
