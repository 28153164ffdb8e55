"""Prefill without chunking."""

from __future__ import annotations

from policies.base import Chunking
from policies.registry import register
from policies.views import BatchView, Grant


@register
class Full(Chunking):
    """Everything that is left of one prefill, in one step."""

    name = "full"
    source = "SLOWeave §4.2 (Full); PrefillOnly §6 (one request at a time)"

    def grant(self, batch: BatchView) -> Grant:
        return Grant(batch.candidates[0].remaining)
