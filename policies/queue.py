"""The waiting queue in a policy's order, shared by both hosts."""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Iterator

from policies.base import Ordering
from policies.views import RequestView


class PolicyQueue:
    """Waiting requests; :meth:`peek` and :meth:`pop` give the one that the ordering wants next.

    Requests put back by :meth:`push_front` (preempted ones) come before all others, last in first out, as in
    vLLM. With a key ordering an operation costs O(log n); with a ``choose`` ordering peeking looks at all.
    """

    def __init__(self, ordering: Ordering) -> None:
        self._ordering = ordering
        self._key = ordering.key
        self._keyed = type(ordering).choose is Ordering.choose
        self._front: deque[RequestView] = deque()
        self._heap: list[tuple[int, int, int, RequestView]] = []
        self._live: dict[int, RequestView] = {}
        self._chosen: tuple[int, RequestView] | None = None

    def __len__(self) -> int:
        return len(self._front) + len(self._live)

    def __iter__(self) -> Iterator[RequestView]:
        yield from self._front
        yield from sorted(self._live.values(), key=lambda r: (r.arrival_ns, r.number))

    def add(self, request: RequestView) -> None:
        """Enter a request, or replace its view and read its key again (after a cache event)."""
        self._live[request.number] = request
        self._chosen = None
        if self._keyed:
            heapq.heappush(self._heap, (self._key(request), request.arrival_ns, request.number, request))

    def push_front(self, request: RequestView) -> None:
        """Put a preempted request before all others."""
        self._front.appendleft(request)

    def peek(self, now_ns: int) -> RequestView:
        """Return the next request; the queue must not be empty."""
        if self._front:
            return self._front[0]
        if self._keyed:
            heap, live = self._heap, self._live
            # An entry whose view was replaced since is stale.
            while live.get(heap[0][2]) is not heap[0][3]:
                heapq.heappop(heap)
            return heap[0][3]
        if self._chosen is None or self._chosen[0] != now_ns:
            self._chosen = (now_ns, self._ordering.choose(list(self), now_ns))
        return self._chosen[1]

    def pop(self, now_ns: int) -> RequestView:
        """Remove and return the next request."""
        if self._front:
            return self._front.popleft()
        request = self.peek(now_ns)
        if self._keyed:
            heapq.heappop(self._heap)
        del self._live[request.number]
        self._chosen = None
        return request

    def remove(self, index: int) -> None:
        """Take a request out wherever it is, as when its client goes away."""
        if self._live.pop(index, None) is None:
            self._front = deque(r for r in self._front if r.number != index)
        self._chosen = None

    def first(self, n: int, now_ns: int) -> list[RequestView]:
        """Return the next ``n`` requests in order, fewer where fewer wait; only ``n = 1`` is fast."""
        if n == 1:
            return [self.peek(now_ns)] if len(self) else []
        taken = list(itertools.islice(self._front, n))
        rest = sorted(self._live.values(), key=lambda r: (r.arrival_ns, r.number))
        while rest and len(taken) < n:
            taken.append(self._ordering.choose(rest, now_ns))
            rest.remove(taken[-1])
        return taken
