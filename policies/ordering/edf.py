"""Earliest TTFT deadline first."""

from __future__ import annotations

from typing import Annotated

from annotated_types import Gt

from policies.base import Ordering
from policies.registry import register
from policies.views import RequestView

FAR_NS = 1 << 62


@register
class Edf(Ordering):
    """Earliest deadline first: arrival plus the TTFT objective; requests without one go last."""

    name = "edf"
    source = "SLOWeave §3.5 (earliest TTFT deadline as queue discipline)"

    ttft: Annotated[float, Gt(0)] | None = None
    """TTFT objective in ms; without it the request's own, else that of --slo."""

    def key(self, request: RequestView) -> int:
        ttft_ns = request.slo_ttft_ns if self.ttft is None else round(self.ttft * 1_000_000)
        return request.arrival_ns + (FAR_NS if ttft_ns is None else ttft_ns)
