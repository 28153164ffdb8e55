"""Depth first through shared prefixes, the busiest branch first."""

from __future__ import annotations

from collections.abc import Sequence

from policies.base import Ordering
from policies.registry import register
from policies.views import RequestView


@register
class DfsWeight(Ordering):
    """Depth first through tenants, then sessions, those with most waiting first: who shares a prefix goes together.

    SGLang walks the radix tree of cached prefixes by the number of waiting requests beneath each node. Views carry no
    content, so the tree here is that of names: a request with a cached prefix hangs under its tenant and session, all
    others under the root, whose turn comes last. A node's children come before its own requests; equals go by arrival.
    Each choice looks at all that wait and counts them anew, as SGLang does for each batch.
    """

    name = "dfs-weight"
    source = "SGLang's dfs-weight (arXiv 2312.07104 §3), over tenant and session in place of the radix tree"
    cache_aware = True

    def choose(self, waiting: Sequence[RequestView], now_ns: int) -> RequestView:
        below = waiting
        for depth in range(2):
            children: dict[tuple[str, str], list[RequestView]] = {}
            for request in below:
                path = _path(request)
                if len(path) > depth:
                    children.setdefault(path[depth], []).append(request)
            if not children:
                break
            below = max(children.values(), key=len)
        return below[0]


def _path(request: RequestView) -> list[tuple[str, str]]:
    if not request.cached_tokens:
        return []
    names = (("tenant", request.tenant), ("session", request.session))
    return [(what, name) for what, name in names if name is not None]
