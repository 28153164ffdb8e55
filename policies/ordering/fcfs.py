"""First come, first served."""

from __future__ import annotations

from policies.base import Ordering
from policies.registry import register
from policies.views import RequestView


@register
class Fcfs(Ordering):
    """First come, first served: the earliest arrival goes first."""

    name = "fcfs"
    source = "vLLM's default; SLOWeave §3.2 (oldest first)"

    def key(self, request: RequestView) -> int:
        return request.arrival_ns
