"""Orderings by prefill work that misjudge each request's work, by a factor that stays with the request."""

from __future__ import annotations

from fractions import Fraction
from typing import Annotated

from annotated_types import Ge, Le
from pydantic import FiniteFloat

from costmodels.erring import LEVELS, PPM, mixed, noise_levels
from policies import Ordering, RequestView, register
from policies.units import NS, ns_from_ms

Sigma = Annotated[float, Ge(0), Le(5)]


def misjudged(tokens: int, sigma: float, draw: int, number: int) -> int:
    """Return millionths of the tokens that request ``number`` is taken for: log-normal, of the right median."""
    return tokens * noise_levels(round(sigma * PPM))[mixed(draw, number) * LEVELS >> 64]


@register
class ErringSrjf(Ordering):
    """Shortest job first by misjudged uncached tokens, as they are now, aged by lam tokens per second."""

    name = "erring-srjf"
    source = "srjf-calibrated of this project, with an error; sigma=0,lam=0 orders as srjf-static does without a cache"
    cache_aware = True

    sigma: Sigma = 0.0
    """Standard deviation of the logarithm of what work is misjudged by."""
    lam: Annotated[FiniteFloat, Ge(0)] = 0.0
    """How many tokens of work a second of waiting outweighs."""
    draw: Annotated[int, Ge(0)] = 0
    """Which errors: another number draws others."""

    def __post_init__(self) -> None:
        weight = Fraction(str(self.lam)) * PPM
        self._scale, self._arrival = NS * weight.denominator, weight.numerator

    def key(self, request: RequestView) -> int:
        work = misjudged(request.uncached_tokens, self.sigma, self.draw, request.number)
        return work * self._scale + self._arrival * request.arrival_ns


@register
class ErringQoServe(Ordering):
    """QoServe's order with each request's work misjudged: arrival plus TTFT objective plus ``alpha`` per token."""

    name = "erring-qoserve"
    source = "qoserve of this project, with an error"
    cache_aware = True

    sigma: Sigma = 0.0
    """Standard deviation of the logarithm of what work is misjudged by."""
    alpha: Annotated[FiniteFloat, Ge(0)] = 8.0
    """Milliseconds that an uncached token weighs."""
    draw: Annotated[int, Ge(0)] = 0
    """Which errors: another number draws others."""

    def __post_init__(self) -> None:
        self._alpha_ns = ns_from_ms(self.alpha)

    def key(self, request: RequestView) -> int:
        work = misjudged(request.uncached_tokens, self.sigma, self.draw, request.number)
        return (request.arrival_ns + (request.slo_ttft_ns or 0)) * PPM + self._alpha_ns * work
