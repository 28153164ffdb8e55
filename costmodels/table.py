"""SLOWeave's lookup table (§5.1): step times by decode batch, cached context and prefill tokens."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from costmodels.base import CostModel, CostModelError

AXES = ("batches", "contexts", "chunks", "depths")

LOOKUPS = ("interpolate", "upper")

MAX_NS = 10**12

SHIFT = 12
"""Places between two knots are counted in 2**-12, rounded up."""

ONE = 1 << SHIFT

MOST_CELLS = (1 << 18) - 1


@dataclass(frozen=True)
class TableCost(CostModel):
    """A grid of step times over decode batch, cached context of decodes, prefill tokens and the prefill's own context.

    The first three are the paper's key; a context counts for at least ``longest`` times the longest, for a few long
    sequences take as long as more of them. The fourth, ``depths``, is what the prefill had computed before
    (see :func:`costmodels.nnls.prefill_context`). ``lookup`` says what is read between knots: ``upper``, the safe one,
    takes the next larger knot of each axis; ``interpolate`` is linear on the simplex of a cell that the step lies in,
    which keeps a rising table rising. Below the first knot it is the first; each unit beyond the last costs
    ``beyond_ns`` of its axis on top.

    ``cells`` has one array of times for each quantile, as ``"0.5"``, the last axis running fastest. ``step_ns`` reads
    the first; others are for :meth:`at_quantile`.

    Raises:
        CostModelError: if knots do not rise, or cells are not whole numbers that rise along each axis.
    """

    name: str = "table"
    batches: tuple[int, ...] = (0,)
    contexts: tuple[int, ...] = (0,)
    chunks: tuple[int, ...] = (0,)
    depths: tuple[int, ...] = (0,)
    cells: tuple[tuple[str, tuple[int, ...]], ...] = (("0.5", (1,)),)
    beyond_ns: tuple[int, ...] = (0, 0, 0, 0)
    longest: int = 0
    lookup: str = "interpolate"
    source: str = ""
    """Where the times are from."""
    _plan: tuple[tuple[tuple[int, ...], tuple[int, ...], int, int, int], ...] = field(
        init=False, repr=False, compare=False
    )
    """Each axis: its knots, how wide it is interpolated below each (0: not), the last, the price beyond it, and how far
    apart its neighbours lie in ``cells``."""
    _fast: tuple[Any, ...] = field(init=False, repr=False, compare=False)
    """What :meth:`step_ns` reads, in its order: short axes looked up value by value, long ones by bisection."""
    _strides: tuple[int, ...] = field(init=False, repr=False, compare=False)
    """How far apart neighbours lie in ``cells``, by axis counted from 1."""

    def __post_init__(self) -> None:
        shape = tuple(len(_knots(self.name, axis, getattr(self, axis))) for axis in AXES)
        if self.lookup not in LOOKUPS:
            raise CostModelError(f"cost model {self.name}: lookup is {self.lookup!r}; it must be interpolate or upper")
        if len(self.beyond_ns) != len(AXES) or any(type(v) is not int or not 0 <= v <= MAX_NS for v in self.beyond_ns):
            raise CostModelError(
                f"cost model {self.name}: beyond_ns must be {len(AXES)} whole numbers from 0 to 10**12, a price for "
                f"each of {', '.join(AXES)}"
            )
        if type(self.longest) is not int or not 0 <= self.longest <= 1 << 20:
            raise CostModelError(f"cost model {self.name}: longest is {self.longest!r}; it must be a whole number")
        if not self.cells:
            raise CostModelError(f"cost model {self.name}: cells are missing")
        for quantile, cells in self.cells:
            _check_cells(self.name, quantile, cells, shape)
        strides = [int(np.prod(shape[k + 1 :])) for k in range(len(shape))]
        plan = tuple(
            (getattr(self, axis), _spans(getattr(self, axis), self.lookup), getattr(self, axis)[-1], price, stride)
            for axis, price, stride in zip(AXES, self.beyond_ns, strides, strict=True)
        )
        object.__setattr__(self, "_plan", plan)
        batches, contexts, chunks, depths = plan
        fast = (*_dense(1, *batches), *_sparse(*contexts), *_dense(3, *chunks), *_sparse(*depths))
        object.__setattr__(self, "_fast", fast)
        object.__setattr__(self, "_strides", (0, *strides))

    def step_ns(
        self,
        n_decode: int,
        decode_context: int,
        decode_context_max: int,
        n_prefill: int,
        prefill_tokens: int,
        prefill_pairs: int,
    ) -> int:
        # Unrolled by axis: a loop over the four takes twice as long.
        (
            batches, last_batch, batch_end, batch_price,
            contexts, context_spans, last_context, context_end, context_price, context_stride,
            chunks, last_chunk, chunk_end, chunk_price,
            depths, depth_spans, last_depth, depth_end, depth_price, depth_stride,
        ) = self._fast  # fmt: skip
        if self.longest * decode_context_max > decode_context:
            decode_context = self.longest * decode_context_max
        over: int = 0
        # Eight times how far below its knot each axis is, out of ONE, plus the axis, counted from 1: small numbers,
        # which sort by distance.
        q = r = s = 0
        if n_decode < last_batch:
            at, p = batches[n_decode]
        else:
            at, p = batch_end, 0
            over = batch_price * (n_decode - last_batch)
        if decode_context < last_context:
            k = bisect_left(contexts, decode_context)
            at += k * context_stride
            high = contexts[k]
            if high != decode_context and context_spans[k]:
                q = ((high - decode_context) << SHIFT) // context_spans[k] * 8 + 2
        else:
            at += context_end
            over += context_price * (decode_context - last_context)
        if prefill_tokens:
            if prefill_tokens < last_chunk:
                k, r = chunks[prefill_tokens]
                at += k
            else:
                at += chunk_end
                over += chunk_price * (prefill_tokens - last_chunk)
            depth = (2 * prefill_pairs // prefill_tokens - prefill_tokens - 1) >> 1
            if depth < last_depth:
                k = bisect_left(depths, depth)
                at += k * depth_stride
                high = depths[k]
                if high != depth and depth_spans[k]:
                    s = ((high - depth) << SHIFT) // depth_spans[k] * 8 + 4
            else:
                at += depth_end
                over += depth_price * (depth - last_depth)
        # From the corner above all to the one below all, along the axis that is farthest below its knot first.
        cells = self.cells[0][1]
        # A sorting network, for a call of sorted takes longer.
        if p < q:
            p, q = q, p
        if r < s:
            r, s = s, r
        if p < r:
            p, r = r, p
        if q < s:
            q, s = s, q
        if q < r:
            q, r = r, q
        strides = self._strides
        corner = cells[at]
        at -= strides[p & 7]
        one = cells[at]
        at -= strides[q & 7]
        two = cells[at]
        at -= strides[r & 7]
        three = cells[at]
        t: int = (
            (corner << SHIFT)
            - (p >> 3) * (corner - one)
            - (q >> 3) * (one - two)
            - (r >> 3) * (two - three)
            - (s >> 3) * (three - cells[at - strides[s & 7]])
        )
        return -(-t >> SHIFT) + over

    def decode_run_ns(
        self, n_decode: int, decode_context: int, decode_context_max: int, steps: int
    ) -> NDArray[np.int64]:
        more = np.arange(steps, dtype=np.int64)
        features = np.zeros((steps, len(AXES)), dtype=np.int64)
        features[:, 0] = n_decode
        features[:, 1] = np.maximum(decode_context + n_decode * more, self.longest * (decode_context_max + more))
        return -(-self.fine_ns(features) >> SHIFT)

    def fine_ns(self, features: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return times in 2**-12 ns, shape (rows,), of rows of the four features that are the table's axes."""
        rows = len(features)
        at, over = np.zeros(rows, dtype=np.int64), np.zeros(rows, dtype=np.int64)
        below = np.zeros((rows, len(AXES)), dtype=np.int64)
        strides = np.array([stride for *_, stride in self._plan])
        for axis, (knots, _, last, price, stride) in enumerate(self._plan):
            edges, x = np.array(knots), features[:, axis]
            over += price * np.maximum(x - last, 0)
            k = np.minimum(np.searchsorted(edges, x), len(edges) - 1)
            at += k * stride
            if self.lookup == "interpolate" and len(edges) > 1:
                before = np.maximum(k, 1) - 1
                lower = np.where(k > 0, np.maximum(edges[k] - x, 0), 0)
                below[:, axis] = (lower << SHIFT) // (edges[np.maximum(k, 1)] - edges[before])
        cells = np.array(self.cells[0][1])
        order = np.argsort(-below, axis=1, kind="stable")
        here = cells[at]
        t = (here + over) << SHIFT
        for place in range(len(AXES)):
            along = order[:, place]
            share = below[np.arange(rows), along]
            at = at - np.where(share > 0, strides[along], 0)
            there = cells[at]
            t -= share * (here - there)
            here = there
        return np.asarray(t)

    def at_quantile(self, quantile: float) -> TableCost:
        for known, cells in self.cells:
            if known == repr(quantile):
                return replace(self, cells=((known, cells),))
        names = ", ".join(q for q, _ in self.cells)
        raise CostModelError(f"cost model {self.name} has no quantile {quantile!r} in its cells, only {names}")

    def to_dict(self) -> dict[str, Any]:
        return {
            "kind": "table",
            "name": self.name,
            **{axis: list(getattr(self, axis)) for axis in AXES},
            "cells_ns": {quantile: list(cells) for quantile, cells in self.cells},
            "beyond_ns": list(self.beyond_ns),
            "longest": self.longest,
            "lookup": self.lookup,
            "source": self.source,
        }


Axis = tuple[int, ...]


def _dense(axis: int, knots: Axis, spans: Axis, last: int, price: int, stride: int) -> tuple[Any, ...]:
    """Return, for each value below the last knot, where it lies in the cells and how far below its knot."""
    if last > MOST_PLACES:
        return _Places(axis, knots, spans, stride), last, (len(knots) - 1) * stride, price
    places = _Places(axis, knots, spans, stride)
    return tuple(places[value] for value in range(last)), last, (len(knots) - 1) * stride, price


MOST_PLACES = 1 << 16
"""Longer axes are not laid out value by value."""


class _Places:
    def __init__(self, axis: int, knots: Axis, spans: Axis, stride: int) -> None:
        self._axis = axis
        self._knots, self._spans, self._stride = knots, spans, stride

    def __getitem__(self, value: int) -> tuple[int, int]:
        k = bisect_left(self._knots, value)
        below, span = (self._knots[k] - value) << SHIFT, self._spans[k]
        return k * self._stride, below // span * 8 + self._axis if below and span else 0


def _sparse(knots: Axis, spans: Axis, last: int, price: int, stride: int) -> tuple[Any, ...]:
    return knots, spans, last, (len(knots) - 1) * stride, price, stride


def _spans(knots: tuple[int, ...], lookup: str) -> tuple[int, ...]:
    return (0, *(b - a if lookup == "interpolate" else 0 for a, b in pairwise(knots)))


def _knots(name: str, axis: str, knots: tuple[int, ...]) -> tuple[int, ...]:
    whole = all(type(k) is int and 0 <= k <= 1 << 42 for k in knots)
    if not knots or not whole or any(a >= b for a, b in pairwise(knots)):
        raise CostModelError(f"cost model {name}: {axis} must be whole numbers that rise, the first at least 0")
    return knots


def _check_cells(name: str, quantile: str, cells: tuple[int, ...], shape: tuple[int, ...]) -> None:
    if np.prod(shape) > MOST_CELLS:
        raise CostModelError(
            f"cost model {name}: a table has at most {MOST_CELLS} cells, this one {int(np.prod(shape))}"
        )
    if len(cells) != int(np.prod(shape)) or any(type(v) is not int or not 0 < v <= MAX_NS for v in cells):
        raise CostModelError(
            f"cost model {name}: the cells of {quantile} must be {' x '.join(map(str, shape))} whole numbers of "
            "nanoseconds from 1 to 10**12"
        )
    grid = np.array(cells, dtype=np.int64).reshape(shape)
    for axis, along in enumerate(AXES):
        if (np.diff(grid, axis=axis) < 0).any():
            raise CostModelError(f"cost model {name}: cells of {quantile} fall along {along}; no step may get shorter")
