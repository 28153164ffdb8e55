"""How requests leave a replica: at the end of their last step, which may still be in flight when it is counted."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from sim.inbox import Inbox
from sim.kvcache import KVCache
from sim.paging import ENDING, Paging, Victim


class Departures:
    """Gives back what finished requests hold: blocks, places in the running list, and their weight on the router.

    Where steps are decided ``ahead``, a request keeps all this, and its seat, until its last token is there. A batch on
    its way through a pipeline keeps its blocks and that weight, no more. ``totals[i]`` are the prompt and output tokens
    of request ``i``. The lists of requests that are handed in belong to the departures from then on.
    """

    def __init__(
        self, totals: list[int], cache: KVCache, paging: Paging | None, inbox: Inbox | None, ahead: bool
    ) -> None:
        self._totals, self._cache, self._paging, self._inbox, self._ahead = totals, cache, paging, inbox, ahead
        self.in_flight: deque[tuple[int, list[int]]] = deque()
        """Requests that have finished in batches under way, with the time when these end, in order."""

    def leave(self, at: int, leaving: list[int]) -> None:
        """Let requests go that have finished ``at`` a time."""
        self._tell(at, leaving)
        if self._paging is not None:
            leaving = self._paging.leave(leaving)
        self._give_back(leaving)

    def leave_later(self, at: int, leaving: list[int], step: int) -> int:
        """Let requests go when the batch of their last token ends ``at`` a time; ``step`` is the next one.

        Returns:
            How many seats they keep until then.
        """
        self._tell(at, leaving)
        seats = 0
        if self._ahead:
            seats = len(leaving)
            if self._paging is not None:
                self._paging.end(leaving, step)
        elif self._paging is not None:
            leaving = self._paging.leave(leaving)
        self.in_flight.append((at, leaving))
        return seats

    def leave_next(self) -> int:
        """Let the requests of the next batch in flight go, which has ended; return how many seats that frees."""
        _, leaving = self.in_flight.popleft()
        if self._ahead and self._paging is not None:
            leaving = self._paging.leave(leaving)
        self._give_back(leaving)
        return len(leaving) if self._ahead else 0

    def hurry(self, victims: Iterable[Victim]) -> int:
        """Let preempted requests whose last token is in flight hold nothing any more; return how many there are."""
        ending = {view.number for view, decoded in victims if decoded == ENDING}
        if ending:
            at, leaving = self.in_flight[-1]
            self.in_flight[-1] = (at, [i for i in leaving if i not in ending])
        return len(ending)

    def _tell(self, at: int, leaving: Iterable[int]) -> None:
        # At once, though it may be later: to a router, who finishes at the time of an arrival has gone.
        if self._inbox is not None:
            self._inbox.left(at, leaving)

    def _give_back(self, leaving: Iterable[int]) -> None:
        if self._cache.tracks:
            for i in leaving:
                self._cache.finish(i, self._totals[i] - 1)
