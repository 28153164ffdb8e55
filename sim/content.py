"""What the prompts of a trace have in common, as a static tree over blocks."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from traces.schema import IntArray, Segments, Trace


class ContentNode:
    """A longest stretch of blocks that the same requests begin with."""

    __slots__ = ("hi", "lo", "number", "parent", "requests")

    def __init__(self, number: int, lo: int, hi: int, parent: ContentNode | None) -> None:
        self.number = number
        """Position among the nodes of the tree."""
        self.lo = lo
        """First block, counted from the start of the prompt."""
        self.hi = hi
        """One after the last block."""
        self.parent = parent
        """The stretch before it; ``None`` where it begins the prompt."""
        self.requests = 0
        """How many requests of the trace have these blocks in their prompts."""


class ContentTree:
    """A radix tree over the full blocks of all prompts of a trace; several caches may share one.

    A block stands for all tokens up to its end, so equal content at different positions never meets. A prompt's partial
    last block and what comes after it belong to its request alone and are not in the tree. Without segments every
    prompt is unlike every other, and the tree is empty.

    Args:
        trace: the requests.
        block_size: tokens of a block, at least 1.
    """

    def __init__(self, trace: Trace, block_size: int) -> None:
        self.trace = trace
        self.block_size = block_size
        self.nodes: list[ContentNode] = []
        self.full: list[int] = (trace.prompt_tokens // block_size).tolist()
        """Full blocks of each prompt."""
        self._deepest: list[ContentNode | None] = [None] * len(trace)
        self._paths: list[tuple[ContentNode, ...] | None] = [None] * len(trace)
        if trace.segments is not None and len(trace):
            order, common = _neighbours(trace.segments)
            self._grow(order, (common // block_size).tolist())

    def shared_end(self, index: int) -> int:
        """Return how many leading blocks of a request the tree describes; later ones are its own."""
        deepest = self._deepest[index]
        return 0 if deepest is None else deepest.hi

    def path(self, index: int) -> tuple[ContentNode, ...]:
        """Return the nodes of a request's prompt from its start."""
        path = self._paths[index]
        if path is None:
            found = []
            node = self._deepest[index]
            while node is not None:
                found.append(node)
                node = node.parent
            path = self._paths[index] = tuple(reversed(found))
        return path

    def _node(self, lo: int, hi: int, parent: ContentNode | None) -> ContentNode:
        node = ContentNode(len(self.nodes), lo, hi, parent)
        self.nodes.append(node)
        return node

    def _grow(self, order: list[int], common: list[int]) -> None:
        # Requests in the order of their content: each shares the most with its neighbour, so it branches off the
        # path of the one before.
        path: list[ContentNode] = []
        for i, shared in zip(order, common, strict=True):
            while path and path[-1].lo >= shared:
                path.pop()
            if path and path[-1].hi > shared:
                rest = path[-1]
                path[-1] = rest.parent = self._node(rest.lo, shared, rest.parent)
                rest.lo = shared
            if self.full[i] > shared:
                path.append(self._node(shared, self.full[i], path[-1] if path else None))
            if path:
                self._deepest[i] = path[-1]
                path[-1].requests += 1
        for node in sorted(self.nodes, key=lambda n: -n.lo):
            if node.parent is not None:
                node.parent.requests += node.requests


def _neighbours(segments: Segments) -> tuple[list[int], IntArray]:
    """Return the requests in the order of their content, and the tokens that each has in common with the one before.

    Sorting by (id, tokens) of each segment puts requests with a common beginning next to each other: a shorter use of
    an id comes before the longer ones that it is a prefix of.
    """
    offsets, ids, tokens = segments.offsets, segments.ids, segments.tokens
    _, dense = np.unique(ids, return_inverse=True)
    _, ranks = np.unique(dense * (int(tokens.max()) + 1) + tokens, return_inverse=True)
    text, bounds = ranks.astype(">u4").tobytes(), (4 * offsets).tolist()
    keys = [text[lo:hi] for lo, hi in pairwise(bounds)]
    order = sorted(range(len(keys)), key=keys.__getitem__)

    rows = np.array(order)
    counts = np.diff(offsets)[rows]
    before, after = offsets[rows[:-1]], offsets[rows[1:]]
    pairs = np.minimum(counts[:-1], counts[1:])
    common = np.zeros(len(rows), dtype=np.int64)
    if len(pairs):
        at = _first_difference(ranks, before, after, pairs)
        ends = np.concatenate([[0], np.cumsum(tokens)])
        common[1:] = ends[before + at] - ends[before]
        differ = np.flatnonzero(at < pairs)
        a, b = (before + at)[differ], (after + at)[differ]
        common[1 + differ] += np.where(ids[a] == ids[b], np.minimum(tokens[a], tokens[b]), 0)
    return order, common


def _first_difference(values: NDArray[np.intp], a: IntArray, b: IntArray, counts: IntArray) -> IntArray:
    """Return for each pair of rows, ``counts`` values from ``a`` and from ``b`` on, where they first differ."""
    starts = np.cumsum(counts) - counts
    within = np.arange(int(counts.sum())) - np.repeat(starts, counts)
    equal = values[np.repeat(a, counts) + within] == values[np.repeat(b, counts) + within]
    found: IntArray = np.minimum.reduceat(np.where(equal, np.repeat(counts, counts), within), starts)
    return found
