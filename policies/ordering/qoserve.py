"""QoServe's order: deadlines first while there is room, short requests first when there is not."""

from __future__ import annotations

from typing import Annotated

from annotated_types import Ge
from pydantic import FiniteFloat

from policies.ordering.edf import Edf
from policies.registry import register
from policies.units import ns_from_ms
from policies.views import RequestView


@register
class QoServe(Edf):
    """Arrival plus TTFT objective plus ``alpha`` per uncached token: between edf and shortest remaining prefill first.

    Without QoServe's relegation of requests that cannot meet their deadline any more.
    """

    name = "qoserve"
    source = "QoServe (arXiv 2503.22562, ASPLOS'26), hybrid prioritization"
    cache_aware = True

    alpha: Annotated[FiniteFloat, Ge(0)] = 8.0
    """Milliseconds that an uncached token weighs; 0 is edf."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._alpha_ns = ns_from_ms(self.alpha)

    def key(self, request: RequestView) -> int:
        return super().key(request) + self._alpha_ns * request.uncached_tokens
