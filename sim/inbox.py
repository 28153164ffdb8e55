"""The requests that a router sends to one replica."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable

import simpy

from policies.views import RequestView
from sim.least import FAR

NEVER = RequestView(-1, FAR, 1)
"""Stands for the next request while none is known."""


class Inbox:
    """Requests on their way to one replica, and those that are there; both sides read it on the same clock.

    Iterating gives the requests in the order in which they are due, :data:`NEVER` while there is none; ``due`` is when
    the request given last is there.
    """

    def __init__(
        self,
        env: simpy.Environment,
        send_on: Callable[[RequestView, int], bool],
        decided: Callable[[], None],
    ) -> None:
        self.due = FAR
        self.closed = False
        """Nothing more will come."""
        self.send_on = send_on
        """Give a request to another replica at a time; ``False`` where all have had it."""
        self._decided = decided
        self._in_hand = False
        self.backlog = 0
        """Prefill tokens of the requests that are here or on their way, as weighed when they were sent."""
        self.requests = 0
        """How many those are."""
        self._env = env
        self._coming: list[tuple[int, int, RequestView]] = []
        self._sent = 0
        self._weights: dict[int, int] = {}
        self._left: list[tuple[int, int]] = []
        self._awake = env.event()

    def __iter__(self) -> Inbox:
        return self

    def __next__(self) -> RequestView:
        # Asking for another means that the one before has been let in, or not.
        if self._in_hand:
            self._in_hand = False
            self._decided()
        if not self._coming:
            self.due = FAR
            return NEVER
        self.due, _, view = heapq.heappop(self._coming)
        self._in_hand = True
        return view

    def put(self, view: RequestView, at: int, weight: int) -> None:
        """Send a request that arrives ``at`` a time and is ``weight`` tokens of work."""
        heapq.heappush(self._coming, (at, self._sent, view))
        self._sent += 1
        self._weights[view.number] = weight
        self.backlog += weight
        self.requests += 1
        self._wake()

    def close(self) -> None:
        """Say that nothing more will come."""
        self.closed = True
        self._wake()

    def wait(self) -> simpy.Event:
        """Return an event that happens when something was put in, or with the close."""
        if self._awake.triggered:
            self._awake = self._env.event()
        return self._awake

    def left(self, at: int, requests: Iterable[int]) -> None:
        """Note that requests are gone ``at`` a time, which may be later than the environment's."""
        for request in requests:
            heapq.heappush(self._left, (at, request))

    def settle(self, now: int) -> list[int]:
        """Bring ``backlog`` and ``requests`` up to date, and return who has gone by ``now``."""
        gone = []
        while self._left and self._left[0][0] <= now:
            _, request = heapq.heappop(self._left)
            self.backlog -= self._weights.pop(request)
            self.requests -= 1
            gone.append(request)
        return gone

    def _wake(self) -> None:
        if not self._awake.triggered:
            self._awake.succeed()
