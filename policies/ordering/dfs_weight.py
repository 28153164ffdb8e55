"""Depth first through shared prefixes, the busiest branch first."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

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
        branch = _busiest([r for r in waiting if r.cached_tokens], _branch)
        if not branch:
            return waiting[0]
        if branch[0].tenant is not None:
            branch = _busiest(branch, _session) or branch
        return branch[0]


def _branch(request: RequestView) -> Hashable:
    """Return what hangs under the root: the tenant, or the session of a request without one."""
    return request.session if request.tenant is None else ("tenant", request.tenant)


def _session(request: RequestView) -> Hashable:
    return request.session


def _busiest(requests: list[RequestView], name_of: Callable[[RequestView], Hashable]) -> list[RequestView]:
    """Return the requests under the name that most have, the oldest's of several; none where nobody has one."""
    branches: dict[Hashable, list[RequestView]] = {}
    for request in requests:
        name = name_of(request)
        if name is not None:
            branches.setdefault(name, []).append(request)
    return max(branches.values(), key=len, default=[])
