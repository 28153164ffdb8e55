"""The requests that decode, counted: when each finishes, the largest context and the tightest deadline."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping

from policies.views import RequestView
from sim.least import FAR, LeastActive


class Decoding:
    """Heaps over decoding requests, which leave by the step in which they finish, or all at once when preempted.

    ``totals[i]`` are the prompt and output tokens of request ``i``.
    """

    def __init__(self, totals: list[int]) -> None:
        self._totals = totals
        self.size = len(totals)
        # Finish step * requests + request: one integer sorts by step, then by arrival.
        self.finishes = [FAR * (self.size + 1)]
        # A decoding request's context is what it prefilled plus the steps since then, so "step of the token that ended
        # its prefill - tokens prefilled" orders contexts for as long as it decodes; likewise all wait since the same
        # last token.
        self.tallest = LeastActive()
        self.tightest = LeastActive()

    def entries(self) -> Iterator[tuple[int, int]]:
        """Yield the step in which each request finishes, and its number."""
        return (divmod(entry, self.size) for entry in self.finishes if entry < FAR)

    def drop(
        self, gone: set[int], running: Mapping[int, RequestView], deadline_of: Callable[[RequestView], int | None]
    ) -> None:
        """Take preempted requests out, and count those that are left anew."""
        self.finishes[:] = [e for e in self.finishes if e >= FAR or e % self.size not in gone]
        heapq.heapify(self.finishes)
        self.tallest.clear()
        self.tightest.clear()
        for last, i in self.entries():
            self.tallest.add(last + 1 - self._totals[i], last)
            allowed = deadline_of(running[i])
            if allowed is not None:
                self.tightest.add(allowed, last)
