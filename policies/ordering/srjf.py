"""Shortest remaining job first, by prefill work seen at arrival or by work as it is now."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Annotated, Literal

from annotated_types import Ge, Le

from costmodels.base import CostModel
from costmodels.jct import LONGEST_INPUT, SLOPE_LONGEST, jct_model, ns_per_token
from policies.base import Ordering, PolicyError
from policies.registry import register
from policies.units import NS
from policies.views import RequestView

Estimator = Literal["tokens", "linear", "attention", "perfect"]


def _believed(ordering: str, predictor: CostModel | None) -> CostModel:
    if predictor is None:
        raise PolicyError(f"{ordering} needs a cost model to estimate times from; jct=tokens does without")
    return predictor


def _unfitted(n_input: int, n_cached: int) -> int:
    raise PolicyError("an ordering by estimated times has no keys before its reset with a cost model to fit")


@register
class SrjfStatic(Ordering):
    """Shortest job first by uncached tokens or estimated time as seen at arrival; never looked at again."""

    name = "srjf-static"
    source = "PrefillOnly §6.2 (the baseline without calibration)"
    key_at_arrival = True

    jct: Estimator = "tokens"
    """What counts as work: uncached tokens, or the time that a linear fit, one with attention's term, or the cost model
    itself estimates."""
    longest: Annotated[int, Ge(1000), Le(LONGEST_INPUT)] = SLOPE_LONGEST
    """Longest input in tokens of the profile that a time is fitted to: the maximum input length in the paper."""

    def __post_init__(self) -> None:
        self.needs_predictor = self.jct != "tokens"  # type: ignore[misc]
        self._ns: Callable[[int, int], int] | None = _unfitted if self.needs_predictor else None

    def reset(self, predictor: CostModel | None) -> None:
        if self.needs_predictor:
            self._ns = jct_model(self.jct, _believed(self.name, predictor), self.longest).ns

    def key(self, request: RequestView) -> int:
        if self._ns is None:
            return request.uncached_tokens
        return self._ns(request.prompt_tokens + request.generated_tokens, request.cached_tokens)


@register
class SrjfCalibrated(Ordering):
    """Shortest job first by uncached tokens or estimated time as they are now, aged by lam tokens per second."""

    name = "srjf-calibrated"
    source = "PrefillOnly §6.3, Algorithm 1"
    cache_aware = True

    lam: Annotated[float, Ge(0)] = 500.0
    """Fairness λ in tokens per second: how much work a second of waiting outweighs.

    inf is fcfs; under any finite λ simultaneous arrivals still go by work."""
    jct: Estimator = "tokens"
    """What counts as work: uncached tokens, or the time that a linear fit, one with attention's term, or the cost model
    itself estimates. A time is outweighed by lam times what a token takes."""
    longest: Annotated[int, Ge(1000), Le(LONGEST_INPUT)] = SLOPE_LONGEST
    """Longest input in tokens of the profile that a time is fitted to: the maximum input length in the paper."""

    def __post_init__(self) -> None:
        self.needs_predictor = self.jct != "tokens"  # type: ignore[misc]
        self._ns: Callable[[int, int], int] | None = _unfitted if self.needs_predictor else None
        self._weigh(1)

    def _weigh(self, unit: int) -> None:
        """Turn λ into integers: work - lam * (now - arrival) sorts like work + lam * arrival, here times a constant."""
        if math.isinf(self.lam):
            self._scale, self._arrival = 0, 1
        else:
            weight = Fraction(str(self.lam)) * unit
            self._scale, self._arrival = NS * weight.denominator, weight.numerator

    def reset(self, predictor: CostModel | None) -> None:
        if self.needs_predictor:
            believed = _believed(self.name, predictor)
            self._ns = jct_model(self.jct, believed, self.longest).ns
            self._weigh(ns_per_token(believed, self.longest))

    def key(self, request: RequestView) -> int:
        # By position, which is faster: every request that a cache event touches comes here.
        n_input, n_cached = request[2] + request[4], request[3]
        work = n_input - n_cached if self._ns is None else self._ns(n_input, n_cached)
        return work * self._scale + self._arrival * request[1]
