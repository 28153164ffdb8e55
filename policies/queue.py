"""The waiting queue in a policy's order, shared by both hosts."""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Iterator

from policies.base import Ordering, PolicyError
from policies.views import RequestView

Entry = tuple[int, int, int, RequestView]


class PolicyQueue:
    """Waiting requests; :meth:`peek` and :meth:`pop` give the one that the ordering wants next.

    Requests put back by :meth:`push_front` (preempted ones) come before all others, last in first out, as in
    vLLM. With a key ordering an operation costs O(log n), and O(1) while requests are added in the order of their
    keys; with a ``choose`` ordering peeking looks at all.
    """

    __slots__ = ("_chosen", "_current", "_front", "_heap", "_key", "_keyed", "_ordering", "_plain", "_run", "size")

    def __init__(self, ordering: Ordering) -> None:
        self._ordering = ordering
        self._key = ordering.key
        self._keyed = type(ordering).choose is Ordering.choose
        self._front: deque[RequestView] = deque()
        # Entries added in ascending order stay in a plain run; only those out of order need the heap.
        self._run: deque[Entry] = deque()
        self._heap: list[Entry] = []
        # The entries in force of requests that were updated (or None: removed); their other entries are stale.
        self._current: dict[int, Entry | None] = {}
        self._chosen: tuple[int, Entry] | None = None
        # Keys, nobody at the front and nothing stale: the head is the lesser of two entries.
        self._plain = self._keyed
        self.size = 0
        """How many requests wait; the same as ``len``, without a call."""

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[RequestView]:
        yield from self._front
        yield from (entry[3] for entry in self._by_arrival())

    def _is_stale(self, entry: Entry) -> bool:
        return self._current.get(entry[2], entry) is not entry

    def _by_arrival(self) -> list[Entry]:
        live = [e for e in itertools.chain(self._run, self._heap) if not self._is_stale(e)]
        return sorted(live, key=lambda e: e[1:3])

    def add(self, request: RequestView) -> None:
        """Enter a request that does not wait yet."""
        self.size += 1
        number = request[0]
        if self._keyed:
            entry = (self._key(request), request[1], number, request)
        else:
            entry = (0, request[1], number, request)
            self._chosen = None
        if self._current and number in self._current:
            self._current[number] = entry
        run = self._run
        if not run or run[-1] <= entry:
            run.append(entry)
        else:
            heapq.heappush(self._heap, entry)

    def update(self, request: RequestView) -> None:
        """Replace the view of a waiting request and read its key again, as after a cache event."""
        for i, waiting in enumerate(self._front):
            if waiting.number == request.number:
                self._front[i] = request
                return
        self._current[request.number] = None
        self._plain = False
        self._chosen = None
        self.size -= 1
        self.add(request)
        if len(self._run) + len(self._heap) > 2 * self.size + 64:
            self._forget_stale()

    def _forget_stale(self) -> None:
        self._run = deque(sorted(e for e in itertools.chain(self._run, self._heap) if not self._is_stale(e)))
        self._heap = []
        self._current = {}
        self._plain = self._keyed and not self._front

    def push_front(self, request: RequestView) -> None:
        """Put a preempted request before all others."""
        self._front.appendleft(request)
        self._plain = False
        self.size += 1

    def peek(self, now_ns: int) -> RequestView:
        """Return the next request; the queue must not be empty."""
        if self._plain:
            run, heap = self._run, self._heap
            return (run[0] if not heap or (run and run[0] < heap[0]) else heap[0])[3]
        return self._front[0] if self._front else self._next(now_ns)[3]

    def _next(self, now_ns: int) -> Entry:
        run, heap = self._run, self._heap
        if self._current:
            while run and self._is_stale(run[0]):
                run.popleft()
            while heap and self._is_stale(heap[0]):
                heapq.heappop(heap)
        if self._keyed:
            return run[0] if not heap or (run and run[0] < heap[0]) else heap[0]
        if self._chosen is None or self._chosen[0] != now_ns:
            entries = self._by_arrival()
            chosen = self._ordering.choose([e[3] for e in entries], now_ns)
            self._chosen = (now_ns, _entry_of(chosen, entries, self._ordering))
        return self._chosen[1]

    def pop(self, now_ns: int) -> RequestView:
        """Remove and return the next request."""
        self.size -= 1
        if self._plain:
            run, heap = self._run, self._heap
            if not heap or (run and run[0] < heap[0]):
                return run.popleft()[3]
            return heapq.heappop(heap)[3]
        if self._front:
            request = self._front.popleft()
            self._plain = self._keyed and not self._front and not self._current
            return request
        entry = self._next(now_ns)
        if self._run and self._run[0] is entry:
            self._run.popleft()
        elif self._heap and self._heap[0] is entry:
            heapq.heappop(self._heap)
        else:
            self._run = deque(e for e in self._run if e is not entry)
            self._heap = [e for e in self._heap if e is not entry]
            heapq.heapify(self._heap)
        self._chosen = None
        return entry[3]

    def remove(self, number: int) -> None:
        """Take a waiting request out wherever it is, as when its client goes away."""
        kept = [r for r in self._front if r.number != number]
        if len(kept) == len(self._front):
            self._current[number] = None
            self._plain = False
        self._front = deque(kept)
        self._chosen = None
        self.size -= 1

    def first(self, n: int, now_ns: int) -> list[RequestView]:
        """Return the next ``n`` requests in order, fewer where fewer wait; only ``n = 1`` is fast."""
        if n == 1:
            return [self.peek(now_ns)] if self.size else []
        taken = list(itertools.islice(self._front, n))
        rest = self._by_arrival()
        if self._keyed:
            return taken + [e[3] for e in heapq.nsmallest(n - len(taken), rest)]
        while rest and len(taken) < n:
            chosen = self._ordering.choose([e[3] for e in rest], now_ns)
            rest.remove(_entry_of(chosen, rest, self._ordering))
            taken.append(chosen)
        return taken


def _entry_of(request: RequestView, entries: list[Entry], ordering: Ordering) -> Entry:
    for entry in entries:
        if entry[3] is request:
            return entry
    raise PolicyError(f"ordering {ordering.name}: choose returned {request!r}, which is not one of the waiting")
