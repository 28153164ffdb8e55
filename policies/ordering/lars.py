"""Least relative slack first: slack by the length of the request."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import lru_cache
from typing import Annotated, Literal

from annotated_types import Ge, Gt, Le
from pydantic import FiniteFloat

from costmodels.base import CostModel
from costmodels.jct import LONGEST_INPUT, SLOPE_LONGEST, jct_model
from policies.base import Ordering, PolicyError
from policies.registry import register
from policies.units import ns_from_ms
from policies.views import RequestView

REMEMBERED = 1 << 14
"""Most requests whose estimates are kept."""


def _unfitted(request: RequestView) -> tuple[int, int]:
    raise PolicyError("lars cannot choose before its reset with a cost model to estimate times from")


@register
class Lars(Ordering):
    """Length-aware relative slack: the least of (deadline - now - prefill left) / (time from arrival to deadline).

    A deadline is the TTFT objective, but no nearer than ``stretch`` times the request's own prefill. Ratios change with
    the clock, so there is no key, and each choice looks at all that wait. As everywhere here a prefill that has
    started goes on; Medha also interrupts it.
    """

    name = "lars"
    source = "Medha (arXiv 2409.17264); its slack fraction as in Vajra, project-vajra"
    cache_aware = True
    needs_predictor = True

    ttft: Annotated[float, Gt(0)] | None = None
    """TTFT objective in ms; without it the request's own, else that of --slo, else ``stretch`` alone decides."""
    stretch: Annotated[FiniteFloat, Ge(1)] = 1.0
    """Least deadline as a multiple of the time that the whole prompt would take alone."""
    jct: Literal["linear", "attention", "perfect"] = "linear"
    """What estimates a prefill's time: a linear fit, one with attention's term, or the cost model itself."""
    longest: Annotated[int, Ge(1000), Le(LONGEST_INPUT)] = SLOPE_LONGEST
    """Longest input in tokens of the profile that a time is fitted to."""

    def __post_init__(self) -> None:
        self._ttft_ns = None if self.ttft is None else ns_from_ms(self.ttft)
        # As it was typed: 1.1 times 10 is 11, not a hair more.
        self._stretch = Fraction(str(self.stretch))
        self._terms: Callable[[RequestView], tuple[int, int]] = _unfitted

    def reset(self, predictor: CostModel | None) -> None:
        if predictor is None:
            raise PolicyError("lars needs a cost model to estimate times from")
        ns = jct_model(self.jct, predictor, self.longest).ns

        def terms(request: RequestView) -> tuple[int, int]:
            """Return the latest time to start, and what the slack until then is relative to."""
            ttft_ns = request.slo_ttft_ns if self._ttft_ns is None else self._ttft_ns
            alone = ns(request.prompt_tokens, 0)
            least = -(-alone * self._stretch.numerator // self._stretch.denominator)
            allowed = max(1, least, ttft_ns or 0)
            left = ns(request.prompt_tokens + request.generated_tokens, request.cached_tokens)
            return request.arrival_ns + allowed - left, allowed

        # Every choice asks about all that wait, of whom few have changed since the last one.
        self._terms = lru_cache(maxsize=REMEMBERED)(terms)

    def choose(self, waiting: Sequence[RequestView], now_ns: int) -> RequestView:
        best = waiting[0]
        latest, allowed = self._terms(best)
        slack = latest - now_ns
        for request in waiting:
            latest, its_allowed = self._terms(request)
            if (latest - now_ns) * allowed < slack * its_allowed:
                best, slack, allowed = request, latest - now_ns, its_allowed
        return best
