"""What prefix caches have in common: which leading blocks of a prompt are present, and who wants to hear of changes."""

from __future__ import annotations

from typing import Generic, TypeVar

from sim.content import ContentNode, ContentTree


class Stretch:
    """A stretch of content in one cache: a node of the tree, or what a single request goes on with.

    A block is never present without those before it, so one number tells which are.
    """

    __slots__ = ("depth", "hi", "lo", "owner", "shared", "watchers")

    def __init__(self, node: ContentNode | None, lo: int, hi: int, owner: int) -> None:
        self.lo = lo
        self.hi = hi
        self.depth = lo
        """Blocks from ``lo`` to here are present."""
        self.owner = owner
        """The request whose own stretch this is, -1 for a node of the tree."""
        self.shared = node is not None and node.requests > 1
        """Whether at least two requests of the trace have these blocks in their prompts."""
        self.watchers: dict[int, None] = {}


StretchType = TypeVar("StretchType", bound=Stretch)


class PrefixTable(Generic[StretchType]):
    """The stretches of one cache over a content tree, made when first asked for, and the requests that watch them."""

    def __init__(self, tree: ContentTree, stretch: type[StretchType]) -> None:
        self.tree = tree
        self.block_size = tree.block_size
        self._stretch = stretch
        self._nodes: list[StretchType | None] = [None] * len(tree.nodes)
        self._paths: list[tuple[StretchType, ...] | None] = [None] * len(tree.trace)
        self._own: dict[int, StretchType] = {}
        self._changed: dict[StretchType, None] = {}

    def path(self, index: int) -> tuple[StretchType, ...]:
        """Return the stretches of a prompt that the tree describes, from its start."""
        path = self._paths[index]
        if path is None:
            path = self._paths[index] = tuple([self._at(node) for node in self.tree.path(index)])
        return path

    def own(self, index: int, hi: int) -> StretchType:
        """Return the stretch, up to block ``hi``, of what a request has for itself."""
        own = self._own.get(index)
        if own is None:
            own = self._own[index] = self._stretch(None, self.tree.shared_end(index), hi, index)
        return own

    def depth(self, index: int) -> int:
        """Return how many leading blocks of a request are present."""
        depth = 0
        for at in self._paths[index] or self.path(index):
            depth = at.depth
            if depth < at.hi:
                return depth
        own = self._own.get(index)
        return depth if own is None else own.depth

    def watch(self, index: int) -> None:
        """See :meth:`sim.kvcache.KVCache.watch`."""
        for at in self._watchable(index):
            at.watchers[index] = None

    def unwatch(self, index: int) -> None:
        """See :meth:`sim.kvcache.KVCache.unwatch`."""
        for at in self._watchable(index):
            at.watchers.pop(index, None)

    def changes(self) -> list[int]:
        """See :meth:`sim.kvcache.KVCache.changes`."""
        if not self._changed:
            return []
        found: dict[int, None] = {}
        for at in self._changed:
            found.update(at.watchers)
        self._changed.clear()
        return list(found)

    def _watchable(self, index: int) -> list[StretchType]:
        own = self._own.get(index)
        return [*self.path(index), *(() if own is None else (own,))]

    def _at(self, node: ContentNode) -> StretchType:
        at = self._nodes[node.number]
        if at is None:
            at = self._nodes[node.number] = self._stretch(node, node.lo, node.hi, -1)
        return at


def too_long(prompt: int, max_input: int | None) -> str | None:
    """Say that a prompt exceeds the maximum input length, ``None`` where it does not."""
    if max_input is None or prompt <= max_input:
        return None
    return f"a prompt of {prompt} tokens exceeds the maximum input length of {max_input}"
