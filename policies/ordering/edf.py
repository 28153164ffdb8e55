"""Earliest TTFT deadline first."""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated

from annotated_types import Gt

from costmodels.base import CostModel
from policies.base import Ordering, PolicyError
from policies.registry import register
from policies.units import FOREVER_NS, ns_from_ms
from policies.views import RequestView, ServiceClass


@register
class Edf(Ordering):
    """Earliest deadline first: arrival plus the TTFT objective; requests without one go last."""

    name = "edf"
    source = "SLOWeave §3.5 (earliest TTFT deadline as queue discipline)"

    ttft: Annotated[float, Gt(0)] | None = None
    """TTFT objective in ms; without it the request's own, else that of --slo."""

    def __post_init__(self) -> None:
        self._ttft_ns = None if self.ttft is None else ns_from_ms(self.ttft)

    def check_objectives(self, classes: Collection[ServiceClass], predictor: CostModel | None) -> None:
        if self.ttft is None and classes and all(c.slo_ttft_ns is None for c in classes):
            raise PolicyError("edf has no TTFT objective to order by: give --slo ttft:MS, or edf:ttft=MS")

    def key(self, request: RequestView) -> int:
        ttft_ns = request.slo_ttft_ns if self._ttft_ns is None else self._ttft_ns
        return request.arrival_ns + (FOREVER_NS if ttft_ns is None else ttft_ns)
