"""Longest prefix first, with every k-th turn to the oldest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from annotated_types import Ge

from costmodels.base import CostModel
from policies.base import QueueObserver
from policies.registry import register
from policies.views import RequestView


@register
class KLpm(QueueObserver):
    """The oldest, then k - 1 times the longest cached prefix, over and over: k = 1 is fcfs, a large k nearly lpm.

    Whose turn it is depends on how many were taken, so there is no key, and each choice looks at all that wait.
    """

    name = "k-lpm"
    source = "LLM query scheduling with prefix reuse and latency constraints (arXiv 2502.04677)"
    cache_aware = True

    k: Annotated[int, Ge(1)] = 4
    """Requests per round, the first of them the oldest."""

    def __post_init__(self) -> None:
        self._turn = 0

    def reset(self, predictor: CostModel | None) -> None:
        self._turn = 0

    def taken(self, request: RequestView) -> None:
        self._turn = (self._turn + 1) % self.k

    def choose(self, waiting: Sequence[RequestView], now_ns: int) -> RequestView:
        if not self._turn:
            return waiting[0]
        return max(waiting, key=lambda r: r.cached_tokens)
