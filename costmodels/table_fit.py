"""Fills SLOWeave's lookup table from a profile."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from costmodels.base import CostModelError
from costmodels.estimator import Matrix, StepEstimator, prefill_contexts
from costmodels.gridfill import cell_quantile, lattice, nearest_knots, read_lattice, spread
from costmodels.nnls_fit import NnlsEstimator
from costmodels.prefill import FS
from costmodels.table import AXES, LOOKUPS, MAX_NS, ONE, TableCost


class TableEstimator(StepEstimator):
    """Fills :class:`costmodels.table.TableCost` with medians and P99s, then cumulative maxima along each axis.

    Rows are gathered by decode batch, mean context of a decode, prefill tokens and the prefill's context, the axes of a
    measurement grid. A cell has the quantile of its rows' ratios to a non-negative closed form
    (:class:`costmodels.nnls_fit.NnlsEstimator`), an empty one the mean of its neighbours'. That surface is read at the
    table's own knots, over the sum of the contexts. After ``fit``: ``filled_`` cells that had rows;
    ``repaired_``, entries of feasible steps that the cumulative maximum along the chunk axis raised (SLOWeave §5.1),
    and ``repaired_other_`` along the other axes.

    Args:
        lookup: ``interpolate`` between knots, or ``upper``, the safe one.
        longest: a context counts for at least so many times the longest.
        most_knots: per axis; where a profile has more different values, so many are spread over their logarithms.
    """

    def __init__(self, lookup: str = "interpolate", longest: int = 4, most_knots: int = 20) -> None:
        self.lookup = lookup
        self.longest = longest
        self.most_knots = most_knots

    def _learn(self, steps: Matrix, ns: Matrix) -> None:
        if self.lookup not in LOOKUPS:
            raise CostModelError(f"TableEstimator: lookup is {self.lookup!r}; it must be interpolate or upper")
        if type(self.most_knots) is not int or self.most_knots < 3:
            raise CostModelError(f"TableEstimator: most_knots is {self.most_knots!r}; it must be at least 3")
        closed = NnlsEstimator().fit(steps, ns)
        natural = _natural(steps)
        axes = [lattice(column, self.most_knots) for column in natural.T]
        shape = tuple(map(len, axes))
        cell = np.ravel_multi_index(tuple(nearest_knots(a, c) for a, c in zip(axes, natural.T, strict=True)), shape)
        self.knots_ = tuple(_whole(lattice(c, self.most_knots)) for c in self._key(steps).T)
        corners, feasible, beyond = _corners(self.knots_, axes, closed.coef_, self.longest)
        at_corners, base = _natural(corners), closed.predict(corners) + beyond
        ratio = ns / closed.predict(steps)
        self.filled_ = len(np.unique(cell))
        self.cells_: dict[str, NDArray[np.int64]] = {}
        for quantile, level in (("0.5", 0.5), ("0.99", 0.99)):
            known = spread(np.log(cell_quantile(cell, ratio, level, shape)))
            times = np.exp(read_lattice(known, axes, at_corners)) * base
            self.cells_[quantile] = self._rising(times, feasible, quantile)
        if (self.cells_["0.5"] == self.cells_["0.99"]).all():
            del self.cells_["0.99"]
        grid = self.cells_["0.5"]
        self.beyond_ = tuple(_last_slope(grid, axis, knots) for axis, knots in enumerate(self.knots_))

    def _key(self, steps: Matrix) -> Matrix:
        """Return the four features that are the table's axes."""
        n, total, longest, _, tokens, _ = steps.T
        return np.column_stack([n, np.maximum(total, self.longest * longest), tokens, prefill_contexts(steps)])

    def _rising(self, times: Matrix, feasible: NDArray[np.bool_], quantile: str) -> NDArray[np.int64]:
        shape = tuple(map(len, self.knots_))
        grid = np.ceil(np.clip(times, 1, MAX_NS)).astype(np.int64).reshape(shape)
        along = np.maximum.accumulate(grid, axis=2)
        others = along
        for axis in (0, 1, 3):
            others = np.maximum.accumulate(others, axis=axis)
        if quantile == "0.5":
            possible = feasible.reshape(shape)
            self.repaired_ = int(np.count_nonzero((along > grid) & possible))
            self.repaired_other_ = int(np.count_nonzero((others > along) & possible))
        return np.asarray(others)

    def _predict(self, steps: Matrix) -> Matrix:
        fine = self.compile("table").fine_ns(np.ceil(self._key(steps)).astype(np.int64))
        return np.asarray(fine / ONE)

    def compile(self, name: str, source: str = "") -> TableCost:
        return TableCost(
            name=name,
            **dict(zip(AXES, self.knots_, strict=True)),
            cells=tuple((q, tuple(grid.ravel().tolist())) for q, grid in self.cells_.items()),
            beyond_ns=self.beyond_,
            longest=self.longest,
            lookup=self.lookup,
            source=source,
        )


def _natural(steps: Matrix) -> Matrix:
    """Return decode batch, mean context of a decode, prefill tokens and context of a prefill."""
    n, total, tokens = steps[:, 0], steps[:, 1], steps[:, 4]
    return np.column_stack([n, total / np.maximum(n, 1), tokens, prefill_contexts(steps)])


def _corners(
    knots: tuple[tuple[int, ...], ...], axes: list[Matrix], price: dict[str, int], longest: int
) -> tuple[Matrix, NDArray[np.bool_], Matrix]:
    """Return the steps at the table's corners, which of them can be, and what is beyond those profiled, in ns.

    A corner that no step can reach, or none was profiled near, is moved to the nearest that one can.
    """
    n, total, tokens, depth = (g.ravel().astype(np.float64) for g in np.meshgrid(*knots, indexing="ij"))
    share = np.maximum(n, max(longest, 1))
    deepest = share * axes[1][-1] * (n > 0)
    reached = np.clip(total, np.minimum(share, deepest), deepest)
    context = reached / share * n
    pairs = tokens * depth + tokens * (tokens + 1) / 2
    steps = np.column_stack([n, context, np.ceil(context / np.maximum(n, 1)), tokens > 0, tokens, pairs])
    feasible = ((n == 0) | (reached == total)) & ((tokens > 0) | (depth == 0)) & (n + tokens > 0)
    more = np.maximum(total - deepest, 0) * price["context_fs"] * (n > 0)
    return steps, feasible, more / FS


def _whole(values: Matrix) -> tuple[int, ...]:
    return tuple(int(v) for v in np.unique([0, *np.ceil(values)]))


def _last_slope(grid: NDArray[np.int64], axis: int, knots: tuple[int, ...]) -> int:
    if len(knots) < 2:
        return 0
    last, before = np.take(grid, -1, axis=axis), np.take(grid, -2, axis=axis)
    return int(-(-(last - before).max() // (knots[-1] - knots[-2])))
