"""The waiting queue in a policy's order, shared by both hosts."""

from __future__ import annotations

import copy
import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from heapq import heapify, heappop, heappush
from operator import itemgetter
from typing import Any

from policies.base import Ordering, PolicyError, QueueObserver
from policies.views import RequestView

Entry = Any
"""Key, arrival, number, view: a tuple, or once there are updates a list, which can be put out of force.

The view of a stale entry, its request updated or taken out, is ``()``, which sorts before every view: a stale entry
may have the key of its successor. The key is too low where the request's has grown since; see ``_renew``."""

LEAST_MERGED, MERGED_AT = 64, 4
"""A heap of more than 64 entries and a fourth of the run is merged: at most five entries are moved for each added."""

_KEY, _ARRIVAL = itemgetter(0), itemgetter(1, 2)

_view = partial(tuple.__new__, RequestView)  # made without the detour through the class's own constructor


class PolicyQueue:
    """Waiting requests; :meth:`peek` and :meth:`pop` give the one that the ordering wants next.

    Requests put back by :meth:`push_front` (preempted ones) come before all others, last in first out, as in
    vLLM. With a key ordering an operation costs O(log n), and O(1) while requests are added in the order of their
    keys; an update costs O(1) where the key does not fall, and O(log n) later if that is still so when its turn
    comes. All this is amortised. With a ``choose`` ordering peeking looks at all.
    """

    __slots__ = (
        "_chosen",
        "_fresh",
        "_front",
        "_heap",
        "_key",
        "_keyed",
        "_observer",
        "_ordering",
        "_plain",
        "_run",
        "_stale",
        "_where",
        "size",
    )

    def __init__(self, ordering: Ordering) -> None:
        self._ordering = ordering
        self._key = ordering.key
        self._keyed = type(ordering).choose is Ordering.choose
        self._observer = ordering if isinstance(ordering, QueueObserver) else None
        self._front: deque[RequestView] = deque()
        # Entries in ascending order, a heap of those added out of order since they were last merged, and those added
        # since anybody asked for the next: many of them are sorted at once.
        self._run: deque[Entry] = deque()
        self._heap: list[Entry] = []
        self._fresh: list[Entry] = []
        # The entries in force by request: kept where entries go stale, so from the first update or removal on.
        self._where: dict[int, Entry] | None = None if self._keyed else {}
        self._stale = 0
        self._chosen: tuple[int, Entry] | None = None
        # Keys, nobody at the front, nothing ever stale and nobody to tell: the head is the lesser of two entries.
        self._plain = self._keyed and self._observer is None
        self.size = 0
        """How many requests wait; the same as ``len``, without a call."""

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[RequestView]:
        yield from self._front
        yield from (entry[3] for entry in self._by_arrival())

    def _by_arrival(self) -> list[Entry]:
        live = [e for e in itertools.chain(self._run, self._heap, self._fresh) if e[3]]
        return sorted(live, key=_ARRIVAL)

    def add(self, request: RequestView) -> None:
        """Enter a request that does not wait yet."""
        self.size += 1
        if self._observer is not None:
            self._observer.entered(request)
        entry: Entry
        if self._where is None:
            entry = (self._key(request), request[1], request[0], request)
        else:
            self._chosen = None
            entry = [self._key(request) if self._keyed else 0, request[1], request[0], request]
            self._where[request[0]] = entry
        run, fresh = self._run, self._fresh
        if fresh or (run and entry < run[-1]):
            fresh.append(entry)
        else:
            run.append(entry)

    def _settle(self) -> None:
        """Give the fresh entries a place: few in the heap, many in the run."""
        run, heap, fresh = self._run, self._heap, self._fresh
        if len(heap) + len(fresh) <= LEAST_MERGED + len(run) // MERGED_AT:
            for entry in fresh:
                heappush(heap, entry)
        elif len(run) + len(heap) > len(fresh):
            self._merge(fresh)
        else:
            fresh += run
            fresh += heap
            heap.clear()
            run.clear()
            # Two stable sorts by numbers, for comparing whole entries follows several pointers each time.
            fresh.sort(key=_ARRIVAL)
            fresh.sort(key=_KEY)
            run.extend(fresh)
        fresh.clear()

    def _push(self, key: int, request: RequestView) -> None:
        entry = [key, request[1], request[0], request]
        self._entries()[request[0]] = entry
        run, heap = self._run, self._heap
        if not run or run[-1] < entry:
            run.append(entry)
        else:
            heappush(heap, entry)
            if len(heap) > LEAST_MERGED + len(run) // MERGED_AT:
                self._merge()

    def _merge(self, more: Iterable[Entry] = ()) -> None:
        """Sort the heap and others into the run: taking from a deep heap costs several times what sorting does."""
        ordered = [*self._run, *self._heap, *more]
        ordered.sort()
        # In place, for whoever looks for the next entry holds both.
        self._heap.clear()
        self._run.clear()
        self._run.extend(ordered)

    def update(self, request: RequestView) -> None:
        """Replace the view of a waiting request and read its key again, as after a cache event."""
        entry = self._entries().get(request[0])
        if entry is None:
            self._front[self._place_in_front(request[0])] = request
        else:
            self._renew(entry, request)

    def _renew(self, entry: Entry, request: RequestView) -> None:
        self._chosen = None
        key = self._key(request) if self._keyed else 0
        if key < entry[0]:
            self._push(key, request)
            self._drop(entry)
        else:
            # A greater key can wait until the request comes to the head; by then it may have fallen again.
            entry[3] = request

    def reread(self, numbers: Iterable[int], hit_tokens: Callable[[int, int], int]) -> bool:
        """Ask how much of some waiting requests is cached, and update those for which the answer is a new one.

        Args:
            numbers: the requests that cache events have touched.
            hit_tokens: from a request's number and its tokens to prefill to the leading ones that are cached.

        Returns:
            Whether there were any.
        """
        entries = self._entries()
        changed = False
        for number in numbers:
            entry = entries.get(number)
            view = self._front[self._place_in_front(number)] if entry is None else entry[3]
            cached = hit_tokens(number, view[2] + view[4])
            if cached == view[3]:
                continue
            changed = True
            view = _view((*view[:3], cached, *view[4:]))
            if entry is None:
                self._front[self._place_in_front(number)] = view
            else:
                self._renew(entry, view)
        return changed

    def _entries(self) -> dict[int, Entry]:
        if self._where is None:
            self._settle()
            self._run = deque(map(list, self._run))
            self._heap = list(map(list, self._heap))
            self._where = {e[2]: e for e in itertools.chain(self._run, self._heap)}
            self._plain = False
        return self._where

    def _place_in_front(self, number: int) -> int:
        for i, waiting in enumerate(self._front):
            if waiting[0] == number:
                return i
        raise KeyError(f"request {number} does not wait")

    def _drop(self, entry: Entry) -> None:
        """Make an entry stale, and throw the stale ones out once they are the most."""
        entry[3] = ()
        self._stale += 1
        if self._stale > self.size + 64:
            self._run = deque(e for e in self._run if e[3])
            self._heap = [e for e in self._heap if e[3]]
            heapify(self._heap)
            self._fresh = [e for e in self._fresh if e[3]]
            self._stale = 0

    def push_front(self, request: RequestView) -> None:
        """Put a preempted request before all others."""
        self._front.appendleft(request)
        self._plain = False
        self.size += 1

    def peek(self, now_ns: int) -> RequestView:
        """Return the next request; the queue must not be empty."""
        if self._plain:
            if self._fresh:
                self._settle()
            run, heap = self._run, self._heap
            head = run[0] if not heap or (run and run[0] < heap[0]) else heap[0]
        else:
            if self._front:
                return self._front[0]
            head = self._next(now_ns)
        return head[3]  # type: ignore[no-any-return]

    def _next(self, now_ns: int) -> Entry:
        if not self._keyed:
            if self._chosen is None or self._chosen[0] != now_ns:
                entries = self._by_arrival()
                chosen = self._ordering.choose([e[3] for e in entries], now_ns)
                self._chosen = (now_ns, _entry_of(chosen, entries, self._ordering))
            return self._chosen[1]
        if self._fresh:
            self._settle()
        run, heap = self._run, self._heap
        # Each entry is thrown out or renewed once; a key that is never the same twice would go on for ever.
        for _ in range(2 * (len(run) + len(heap)) + 1):
            from_run = not heap or (run and run[0] < heap[0])
            head = run[0] if from_run else heap[0]
            if self._where is None:
                return head
            view = head[3]
            key = self._key(view) if view else 0
            if view and key == head[0]:
                return head
            if from_run:
                run.popleft()
            else:
                heappop(heap)
            if view:
                self._push(key, view)
            else:
                self._stale -= 1
        raise PolicyError(f"ordering {self._ordering.name}: key answers something else for the same request each time")

    def pop(self, now_ns: int) -> RequestView:
        """Remove and return the next request."""
        self.size -= 1
        if self._plain:
            if self._fresh:
                self._settle()
            run, heap = self._run, self._heap
            if not heap or (run and run[0] < heap[0]):
                return run.popleft()[3]  # type: ignore[no-any-return]
            return heappop(heap)[3]  # type: ignore[no-any-return]
        if self._front:
            request = self._front.popleft()
            self._plain = self._keyed and not self._front and self._where is None and self._observer is None
            return request
        entry = self._next(now_ns)
        view: RequestView = entry[3]
        if self._where is not None:
            del self._where[entry[2]]
        self._unlink(entry)
        if self._observer is not None:
            self._observer.taken(view)
        return view

    def _unlink(self, entry: Entry) -> None:
        self._chosen = None
        if self._run and self._run[0] is entry:
            self._run.popleft()
        elif self._heap and self._heap[0] is entry:
            heappop(self._heap)
        else:
            self._drop(entry)

    def remove(self, number: int) -> None:
        """Take a waiting request out wherever it is, as when its client goes away."""
        entry = self._entries().pop(number, None)
        if entry is None:
            del self._front[self._place_in_front(number)]
        else:
            view: RequestView = entry[3]
            self._unlink(entry)
            if self._observer is not None:
                self._observer.withdrawn(view)
        self.size -= 1

    def first(self, n: int, now_ns: int) -> list[RequestView]:
        """Return the next ``n`` requests in order, fewer where fewer wait."""
        if n == 1:
            return [self.peek(now_ns)] if self.size else []
        taken = list(itertools.islice(self._front, n))
        n = min(n, self.size) - len(taken)
        if self._keyed:
            ahead = []
            for _ in range(n):
                ahead.append(self._next(now_ns))
                self._unlink(ahead[-1])
            # Before all others, so the run stays in order.
            self._run.extendleft(reversed(ahead))
            return taken + [e[3] for e in ahead]
        rest = self._by_arrival()
        # What an observer would learn from this, it must not remember.
        observer = copy.deepcopy(self._observer)
        ordering = observer or self._ordering
        for _ in range(n):
            chosen = ordering.choose([e[3] for e in rest], now_ns)
            rest.remove(_entry_of(chosen, rest, ordering))
            taken.append(chosen)
            if observer is not None:
                observer.taken(chosen)
        return taken


def _entry_of(request: RequestView, entries: list[Entry], ordering: Ordering) -> Entry:
    for entry in entries:
        if entry[3] is request:
            return entry
    raise PolicyError(f"ordering {ordering.name}: choose returned {request!r}, which is not one of the waiting")
