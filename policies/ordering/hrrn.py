"""Highest response ratio next."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from annotated_types import Ge

from policies.base import Ordering
from policies.registry import register
from policies.views import RequestView


@register
class Hrrn(Ordering):
    """Highest response ratio next: the most time waited per uncached token, so that both old and short go first.

    The ratio of two requests changes with the clock, so there is no key, and each choice looks at all that wait.
    """

    name = "hrrn"
    source = "Brinch Hansen (1971); SGLang's hrrn, which counts processed tokens in place of time"
    cache_aware = True

    most: Annotated[int, Ge(1)] | None = None
    """With more requests waiting than this, first come first served (SGLang: 128); never by default."""

    def choose(self, waiting: Sequence[RequestView], now_ns: int) -> RequestView:
        best = waiting[0]
        if self.most is not None and len(waiting) > self.most:
            return best
        waited, work = now_ns - best.arrival_ns, best.uncached_tokens
        for request in waiting:
            # By position, which is faster: every choice looks at all.
            _, arrival, prompt, cached, generated, *_ = request
            its_wait, its_work = now_ns - arrival, prompt + generated - cached
            # (wait + work) / work orders like wait / work; multiplied out, it stays exact.
            if its_wait * work > waited * its_work:
                best, waited, work = request, its_wait, its_work
        return best
