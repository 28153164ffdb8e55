"""Scattered values on a lattice: gathered by cell, spread to empty cells, read in between."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

SWEEPS = 400
"""Of averaging neighbours into empty cells; enough for a lattice that is so many cells across."""


def lattice(values: NDArray[np.float64], most: int) -> NDArray[np.float64]:
    """Return the different values, or ``most`` that are spread over their logarithms where there are more."""
    found = np.unique(values)
    if len(found) > most:
        least = max(1.0, found[found > 0].min())
        found = np.unique([found[0], *np.rint(np.geomspace(least, found[-1], most - 1)), found[-1]])
    return np.asarray(found)


def nearest_knots(knots: NDArray[np.float64], values: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the index of the nearest knot, by ratio; 0 is near nothing but itself."""
    at = np.minimum(np.searchsorted(knots, values), len(knots) - 1)
    below = np.maximum(at - 1, 0)
    nearer = (values < knots[at]) & (knots[below] > 0) & (values * values < knots[below] * knots[at])
    return np.where(nearer, below, at)


def cell_quantile(
    cell: NDArray[np.int64], values: NDArray[np.float64], level: float, shape: tuple[int, ...]
) -> NDArray[np.float64]:
    """Return the quantile of each cell's values, the next larger one where it lies between two; NaN where none."""
    order = np.lexsort((values, cell))
    found, first, count = np.unique(cell[order], return_index=True, return_counts=True)
    out = np.full(int(np.prod(shape)), np.nan)
    out[found] = values[order][first + np.ceil(level * (count - 1)).astype(np.int64)]
    return out.reshape(shape)


def spread(grid: NDArray[np.float64]) -> NDArray[np.float64]:
    """Fill each empty cell with the mean of its neighbours', from the filled ones outwards."""
    known = ~np.isnan(grid)
    filled = np.where(known, grid, 0.0)
    for _ in range(SWEEPS):
        if known.all():
            break
        total, count = np.zeros(grid.shape), np.zeros(grid.shape)
        for axis, size in enumerate(grid.shape):
            for to, of in ((slice(1, size), slice(0, size - 1)), (slice(0, size - 1), slice(1, size))):
                here, there = [slice(None)] * grid.ndim, [slice(None)] * grid.ndim
                here[axis], there[axis] = to, of
                total[tuple(here)] += np.where(known, filled, 0.0)[tuple(there)]
                count[tuple(here)] += known[tuple(there)]
        reached = ~known & (count > 0)
        filled[reached] = total[reached] / count[reached]
        known |= reached
    return filled


def read_lattice(
    grid: NDArray[np.float64], axes: list[NDArray[np.float64]], points: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return multilinear interpolation over the logarithms of the axes, shape (points,); beyond them, their ends."""
    corners: list[tuple[tuple[NDArray[np.int64], NDArray[np.float64]], ...]] = []
    for knots, values in zip(axes, points.T, strict=True):
        x = np.clip(values, knots[0], knots[-1])
        hi = np.minimum(np.searchsorted(knots, x), len(knots) - 1)
        lo = np.maximum(hi - 1, 0)
        scale = np.log1p(knots)
        wide = scale[hi] - scale[lo]
        below = np.where(wide > 0, (scale[hi] - np.log1p(x)) / np.where(wide > 0, wide, 1), 0.0)
        corners.append(((hi, 1 - below), (lo, below)))
    out = np.zeros(len(points))
    for choice in np.ndindex(*(2,) * len(axes)):
        picked = [corners[axis][side] for axis, side in enumerate(choice)]
        weight = np.prod([w for _, w in picked], axis=0)
        out += weight * grid[tuple(at for at, _ in picked)]
    return out
