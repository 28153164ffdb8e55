"""Runs of KV blocks of one content, and the list of those that nobody holds."""

from __future__ import annotations

from collections.abc import Iterator

from sim.blocks import Stretch
from sim.content import ContentNode


class Run:
    """Blocks ``lo`` to ``hi`` of a stretch, held by the same requests; they entered the cache together or in turn."""

    __slots__ = ("after", "at", "before", "hi", "holders", "lo", "rest", "turn")

    def __init__(self, at: RunStretch | None, lo: int, hi: int, turn: int, holders: int) -> None:
        self.at = at
        self.lo = lo
        self.hi = hi
        self.turn = turn
        """Which of two copies is the older."""
        self.holders = holders
        self.rest: Run | None = None
        """What was split off its end while it was held."""
        self.before = self.after = self


class RunStretch(Stretch):
    """A stretch and the runs of it that are present, by their first block; copies overlap."""

    __slots__ = ("blocks", "runs")

    def __init__(self, node: ContentNode | None, lo: int, hi: int, owner: int) -> None:
        super().__init__(node, lo, hi, owner)
        self.runs: list[Run] = []
        self.blocks = 0
        """Blocks of all runs, so more than are present where there are copies."""

    def insert(self, run: Run) -> None:
        """Enter a run among the others; ``blocks`` and ``depth`` are the caller's."""
        runs = self.runs
        k = len(runs)
        while k and runs[k - 1].lo > run.lo:
            k -= 1
        runs.insert(k, run)

    def oldest(self, end: int) -> list[tuple[Run, int, int]]:
        """Return which blocks of which runs are the oldest copies of all that is present before block ``end``."""
        end = min(end, self.depth)
        if self.blocks == self.depth - self.lo:
            return [(run, run.lo, min(run.hi, end)) for run in self.runs if run.lo < end]
        found = []
        lo = self.lo
        while lo < end:
            # Whoever holds a later block holds the oldest copy of the one before or an older one, so no copy that
            # begins inside this run is older: the run is the oldest to its end.
            run = min((r for r in self.runs if r.lo <= lo < r.hi), key=lambda r: r.turn)
            found.append((run, lo, min(run.hi, end)))
            lo = run.hi
        return found


class FreeRuns:
    """Runs that nobody holds, in the order in which vLLM takes their blocks: run by run, each from its end."""

    __slots__ = ("_head",)

    def __init__(self) -> None:
        self._head = Run(None, 0, 0, 0, 0)

    def __iter__(self) -> Iterator[Run]:
        run = self._head.after
        while run is not self._head:
            yield run
            run = run.after

    def first(self) -> Run:
        """Return the run whose blocks are taken next; there must be one."""
        return self._head.after

    def remove(self, run: Run) -> None:
        """Take a run out, wherever it is."""
        run.before.after = run.after
        run.after.before = run.before

    def append(self, run: Run) -> None:
        """Enter the run whose blocks are taken last, or join it to the one before if that goes on where it ends."""
        head = self._head
        last, at = head.before, run.at
        if last.at is at and last.lo == run.hi and at is not None and at.blocks == at.depth - at.lo:
            last.lo = run.lo
            at.runs.remove(run)
        else:
            self.insert_after(last, run)

    def insert_after(self, place: Run, run: Run) -> None:
        """Enter a run whose blocks are taken right after those of ``place``."""
        run.before, run.after = place, place.after
        place.after.before = run
        place.after = run
