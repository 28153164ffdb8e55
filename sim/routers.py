"""Which replica an arriving request is sent to."""

from __future__ import annotations

import difflib
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from typing import ClassVar

from policies.views import RequestView
from sim.content import ContentTree
from sim.inbox import Inbox
from sim.kvcache import KVCache


class ClusterError(ValueError):
    """A cluster that cannot be built."""


class Replica:
    """One replica as a router sees it, at the moment of an arrival."""

    def __init__(self, number: int, inbox: Inbox, cache: KVCache, tree: ContentTree | None) -> None:
        self.number, self.inbox, self._cache, self._tree = number, inbox, cache, tree
        # Requests that are here or on their way, by shared stretch of content.
        self._here: Counter[int] = Counter()

    @property
    def backlog(self) -> int:
        """Prefill tokens of its unfinished requests, as they were when they were sent."""
        return self.inbox.backlog

    def hit_tokens(self, request: RequestView) -> int:
        """Return how many leading tokens of a request its prefix cache holds now."""
        return self._cache.hit_tokens(request.number, request.prompt_tokens)

    def expected_tokens(self, request: RequestView) -> int:
        """Return how many leading tokens it holds now, or will when the requests before this one are done."""
        longest = 0
        if self._tree is not None:
            for node in self._tree.path(request.number):
                if not self._here[node.number]:
                    break
                longest = node.hi * self._tree.block_size
        return max(longest, self.hit_tokens(request))

    def arrive(self, index: int) -> None:
        """Note that a request was sent here."""
        self._count(index, 1)

    def depart(self, index: int) -> None:
        """Note that it is gone."""
        self._count(index, -1)

    def _count(self, index: int, by: int) -> None:
        if self._tree is not None:
            for node in self._tree.path(index):
                self._here[node.number] += by


class Router(ABC):
    """Sends every arrival to a replica; made anew for each run."""

    name: ClassVar[str]

    @abstractmethod
    def choose(self, request: RequestView, replicas: Sequence[Replica]) -> Replica:
        """Return one of ``replicas``, which are all, or those that have not refused the request yet."""


def least_loaded(replicas: Sequence[Replica]) -> Replica:
    """Return the replica with the least backlog, the first of several."""
    return min(replicas, key=lambda r: (r.backlog, r.number))


class RoundRobin(Router):
    """Each request to the next replica."""

    name = "round-robin"

    def __init__(self) -> None:
        self._next = 0

    def choose(self, request: RequestView, replicas: Sequence[Replica]) -> Replica:
        self._next += 1
        return replicas[(self._next - 1) % len(replicas)]


class ByUser(Router):
    """All requests of a user to one replica, users in turn (PrefillOnly §7.1); a request without one is its own."""

    name = "user"

    def __init__(self) -> None:
        self._homes: dict[str, int] = {}
        self._next = 0

    def choose(self, request: RequestView, replicas: Sequence[Replica]) -> Replica:
        user = f"request {request.number}" if request.session is None else f"user {request.session}"
        if user not in self._homes:
            self._homes[user] = self._next
            self._next += 1
        return replicas[self._homes[user] % len(replicas)]


class LeastLoaded(Router):
    """To the replica with the fewest prefill tokens outstanding."""

    name = "least-loaded"

    def choose(self, request: RequestView, replicas: Sequence[Replica]) -> Replica:
        return least_loaded(replicas)


class PrefixAffinity(Router):
    """To the replica that holds the longest prefix of the prompt or has it under way, of several the least loaded."""

    name = "prefix-affinity"

    def choose(self, request: RequestView, replicas: Sequence[Replica]) -> Replica:
        held = [(r.expected_tokens(request), r) for r in replicas]
        longest = max(tokens for tokens, _ in held)
        return least_loaded([r for tokens, r in held if tokens == longest])


ROUTERS: dict[str, type[Router]] = {r.name: r for r in (ByUser, RoundRobin, LeastLoaded, PrefixAffinity)}


def make_router(name: str) -> Router:
    """Return a new router.

    Raises:
        ClusterError: if there is none of that name.
    """
    if name not in ROUTERS:
        near = difflib.get_close_matches(name, ROUTERS, 1, 0.5)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise ClusterError(f"unknown router {name}{hint} (routers: {', '.join(ROUTERS)})")
    return ROUTERS[name]()
