"""Longest cached prefix first."""

from __future__ import annotations

from policies.base import Ordering
from policies.registry import register
from policies.views import RequestView


@register
class Lpm(Ordering):
    """Longest prefix match: most cached tokens as they are now go first; nobody ages, so the unlucky may starve."""

    name = "lpm"
    source = "SGLang's lpm, without its fallback to fcfs over 128 waiting"
    cache_aware = True

    def key(self, request: RequestView) -> int:
        return -request.cached_tokens
