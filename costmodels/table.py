"""SLOWeave's lookup table (§5.1): step times by decode batch, cached context and prefill tokens."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import ceil
from typing import Any

import numpy as np
from numpy.typing import NDArray

from costmodels.base import CostModel, CostModelError

AXES = ("batches", "contexts", "chunks", "depths")

LOOKUPS = ("interpolate", "upper")

MAX_NS = 10**12

SHIFT = 12
"""Places between two knots are counted in 2**-12, rounded up: so a time and a place fit a double exactly."""

ONE = 1 << SHIFT

LOW = 18
MASK = (1 << LOW) - 1
"""What a neighbour is away in ``cells`` fits these bits, as a table has fewer cells."""


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
    _exact: tuple[float, ...] = field(init=False, repr=False, compare=False)
    """The cells as doubles, in which all sums below 2**53 are exact, and faster than long integers."""

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
        object.__setattr__(self, "_exact", tuple(map(float, self.cells[0][1])))

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
        first, second, third, fourth = self._plan
        if self.longest * decode_context_max > decode_context:
            decode_context = self.longest * decode_context_max
        at = over = 0
        # How far below its knot each axis is, out of ONE, with the way to the neighbour in the low bits.
        p = q = r = s = 0
        knots, spans, last, price, stride = first
        if n_decode < last:
            k = bisect_left(knots, n_decode)
            at = k * stride
            high = knots[k]
            if high != n_decode and spans[k]:
                p = (((high - n_decode) << SHIFT) // spans[k] << LOW) + stride
        else:
            at = (len(knots) - 1) * stride
            over = price * (n_decode - last)
        knots, spans, last, price, stride = second
        if decode_context < last:
            k = bisect_left(knots, decode_context)
            at += k * stride
            high = knots[k]
            if high != decode_context and spans[k]:
                q = (((high - decode_context) << SHIFT) // spans[k] << LOW) + stride
        else:
            at += (len(knots) - 1) * stride
            over += price * (decode_context - last)
        if prefill_tokens:
            knots, spans, last, price, stride = third
            if prefill_tokens < last:
                k = bisect_left(knots, prefill_tokens)
                at += k * stride
                high = knots[k]
                if high != prefill_tokens and spans[k]:
                    r = (((high - prefill_tokens) << SHIFT) // spans[k] << LOW) + stride
            else:
                at += (len(knots) - 1) * stride
                over += price * (prefill_tokens - last)
            depth = (2 * prefill_pairs // prefill_tokens - prefill_tokens - 1) >> 1
            knots, spans, last, price, stride = fourth
            if depth < last:
                k = bisect_left(knots, depth)
                at += k * stride
                high = knots[k]
                if high != depth and spans[k]:
                    s = (((high - depth) << SHIFT) // spans[k] << LOW) + stride
            else:
                at += (len(knots) - 1) * stride
                over += price * (depth - last)
        cells = self._exact
        here = cells[at]
        t = here * ONE
        for way in sorted((p, q, r, s), reverse=True):
            if not way:
                break
            at -= way & MASK
            there = cells[at]
            t -= (way >> LOW) * (here - there)
            here = there
        return ceil(t / ONE) + over

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


def _spans(knots: tuple[int, ...], lookup: str) -> tuple[int, ...]:
    return (0, *(b - a if lookup == "interpolate" else 0 for a, b in pairwise(knots)))


def _knots(name: str, axis: str, knots: tuple[int, ...]) -> tuple[int, ...]:
    whole = all(type(k) is int and 0 <= k <= 1 << 42 for k in knots)
    if not knots or not whole or any(a >= b for a, b in pairwise(knots)):
        raise CostModelError(f"cost model {name}: {axis} must be whole numbers that rise, the first at least 0")
    return knots


def _check_cells(name: str, quantile: str, cells: tuple[int, ...], shape: tuple[int, ...]) -> None:
    if np.prod(shape) > MASK:
        raise CostModelError(f"cost model {name}: a table has at most {MASK} cells, this one {int(np.prod(shape))}")
    if len(cells) != int(np.prod(shape)) or any(type(v) is not int or not 0 < v <= MAX_NS for v in cells):
        raise CostModelError(
            f"cost model {name}: the cells of {quantile} must be {' x '.join(map(str, shape))} whole numbers of "
            "nanoseconds from 1 to 10**12"
        )
    grid = np.array(cells, dtype=np.int64).reshape(shape)
    for axis, along in enumerate(AXES):
        if (np.diff(grid, axis=axis) < 0).any():
            raise CostModelError(f"cost model {name}: cells of {quantile} fall along {along}; no step may get shorter")
