"""A store of whole prefixes, the least recently used of which make room, each from its end."""

from __future__ import annotations

from collections import OrderedDict

from sim.blocks import PrefixTable, Stretch
from sim.content import ContentNode, ContentTree


class StoredStretch(Stretch):
    """A stretch and how far running requests have pinned it."""

    __slots__ = ("pins",)

    def __init__(self, node: ContentNode | None, lo: int, hi: int, owner: int) -> None:
        super().__init__(node, lo, hi, owner)
        self.pins: list[int] = []

    @property
    def pinned(self) -> int:
        """The block up to which it must stay."""
        return max(self.pins, default=self.lo)


class PrefixLru(PrefixTable[StoredStretch]):
    """At most ``capacity`` blocks without copies, in the order of their last use, a prompt's tail before its head.

    The same requests use all blocks of a stretch, at the same times, so the order is one of stretches.
    """

    def __init__(self, tree: ContentTree, capacity: int) -> None:
        super().__init__(tree, StoredStretch)
        self.capacity = capacity
        self.stored = 0
        self.pinned = 0
        self._by_use: OrderedDict[StoredStretch, None] = OrderedDict()
        self._all_own = tree.trace.segments is None

    def pin(self, index: int, blocks: int) -> None:
        """Keep the leading ``blocks`` of a request, which must be present, until it is unpinned."""
        for at in self._using(index, blocks):
            before = at.pinned
            at.pins.append(min(at.hi, blocks))
            self.pinned += at.pinned - before

    def unpin(self, index: int, blocks: int) -> None:
        """Undo :meth:`pin`."""
        for at in self._using(index, blocks):
            before = at.pinned
            at.pins.remove(min(at.hi, blocks))
            self.pinned -= before - at.pinned

    def enter(self, index: int, blocks: int) -> None:
        """Make the leading ``blocks`` of a request present and most recent, as far as they fit beside pinned ones."""
        using = self._using(index, blocks)
        others = self.pinned
        for at in using:
            others -= at.pinned - at.lo
        fitting = min(blocks, self.capacity - others)
        for at in reversed(using):
            end = max(at.lo, min(at.hi, fitting))
            if end > at.lo:
                self._by_use[at] = None
                self._by_use.move_to_end(at)
            if at.depth < end:
                self._resize(at, end)
        self._make_room()

    def _using(self, index: int, blocks: int) -> list[StoredStretch]:
        if self._all_own:
            return [self.own(index, self.tree.full[index])] if blocks else []
        return [at for at in self.path(index) if at.lo < blocks]

    def _resize(self, at: StoredStretch, depth: int) -> None:
        self.stored += depth - at.depth
        at.depth = depth
        if depth == at.lo:
            del self._by_use[at]
        if at.watchers:
            self._changed[at] = None

    def _make_room(self) -> None:
        excess = self.stored - self.capacity
        leaving = []
        if excess > 0:
            for at in self._by_use:
                going = min(excess, at.depth - at.pinned)
                if going:
                    leaving.append((at, at.depth - going))
                    excess -= going
                    if not excess:
                        break
        for at, depth in leaving:
            self._resize(at, depth)
