"""A lane for short requests and one for long ones."""

from __future__ import annotations

from typing import Annotated

from annotated_types import Ge

from policies.base import Ordering
from policies.registry import register
from policies.units import ns_from_ms
from policies.views import RequestView


@register
class TwoLane(Ordering):
    """Short requests before long ones, each lane first come first served, until a long one has waited too long.

    A long request is passed only by short ones that arrive at most ``wait`` after it, so it queues as if it had come
    that much later: a key without a clock.
    """

    name = "two-lane"
    source = (
        "LAPS (arXiv 2601.11589) and vllm-ascend's ShortRequestFirst, without waiting to fill a batch of short ones"
    )
    cache_aware = True

    short: Annotated[int, Ge(1)] = 1024
    """Most uncached tokens of a short request."""
    wait: Annotated[float, Ge(0)] = 10_000.0
    """How long after its arrival, in ms, a long request can still be passed; inf: always, so that it may starve."""

    def __post_init__(self) -> None:
        self._wait_ns = ns_from_ms(self.wait)

    def key(self, request: RequestView) -> int:
        return request.arrival_ns + (self._wait_ns if request.uncached_tokens > self.short else 0)
