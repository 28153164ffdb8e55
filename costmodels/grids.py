"""Tables of measured times: read between their points, and past their ends by a declared rule."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike, NDArray

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Curve:
    """Times over one quantity, linear between points.

    Below the first point the time is the first point's. Past the last it grows with the quantity: twice the work,
    twice the time.

    Raises:
        ValueError: if there is no point, or the points do not rise.
    """

    x: FloatArray
    """Shape (points,), positive and rising."""
    time: FloatArray
    """Shape (points,)."""

    def __post_init__(self) -> None:
        if not len(self.x) or len(self.x) != len(self.time) or np.any(np.diff(self.x, prepend=0) <= 0):
            raise ValueError("a curve needs points that are positive and rise")

    @property
    def most(self) -> float:
        """The last measured point."""
        return float(self.x[-1])

    def __call__(self, x: ArrayLike) -> FloatArray:
        """Return the times at ``x``, any shape."""
        at = np.asarray(x, dtype=np.float64)
        inside = np.interp(at, self.x, self.time)
        return np.asarray(inside * np.maximum(at / self.x[-1], 1.0))


@dataclass(frozen=True, eq=False)
class Grid:
    """Times over the product of several axes, multilinear between points.

    So ``a + b * decodes * context`` is exact, and no time lies outside those of its cell's corners. Below an axis the
    time is that of its first point; past its last it grows with the quantity. Points that nobody measured (NaN) grow
    so with the last axis, from the last point measured.

    Raises:
        ValueError: if axes and times do not match, axes do not rise, or a row starts with NaN.
    """

    axes: tuple[FloatArray, ...]
    time: FloatArray
    """Shape (points of the first axis, ..., points of the last axis), positive; NaN as given has been filled."""
    _plain: tuple[list[list[float]], list[float]] = field(init=False, repr=False)
    """Axes and times as lists."""

    def __post_init__(self) -> None:
        if self.time.shape != tuple(len(a) for a in self.axes):
            raise ValueError(
                f"times of shape {self.time.shape} do not fit the axes' {[len(a) for a in self.axes]} points"
            )
        if any(np.any(np.diff(a) <= 0) or a[0] < 0 or a[-1] <= 0 for a in self.axes):
            raise ValueError("the axes of a grid must rise from 0 or more")
        filled, last = self.time.copy(), self.axes[-1]
        for i in range(1, filled.shape[-1]):
            grown = filled[..., i - 1] * (last[i] / max(last[i - 1], 1.0))
            filled[..., i] = np.where(np.isnan(filled[..., i]), grown, filled[..., i])
        if not np.all(filled > 0):
            raise ValueError("a grid's times must be positive, and the first of each row must be known")
        object.__setattr__(self, "time", filled)
        object.__setattr__(self, "_plain", ([axis.tolist() for axis in self.axes], filled.ravel().tolist()))

    def __call__(self, *at: ArrayLike) -> FloatArray:
        """Return the times at one array for each axis, broadcast against each other."""
        points = [np.asarray(a, dtype=np.float64) for a in at]
        if any(x.shape != points[0].shape for x in points):
            points = list(np.broadcast_arrays(*points))
        shape = points[0].shape
        if points[0].size == 1:
            return np.full(shape, self._at([x.item() for x in points]))
        # The cell's corners along a first axis of their own, the last axis of the grid fastest.
        beyond, weight, index = np.ones(shape), np.ones((1, *shape)), np.zeros((1, *shape), dtype=np.intp)
        for axis, x in zip(self.axes, points, strict=True):
            last = len(axis) - 1
            beyond = beyond * np.maximum(x / axis[last], 1.0)
            below = np.minimum(np.maximum(axis.searchsorted(x, side="right") - 1, 0), max(last - 1, 0))
            above = np.minimum(below + 1, last)
            start = axis[below]
            width = axis[above] - start
            share = np.minimum(np.maximum((x - start) / np.where(width > 0, width, 1.0), 0.0), 1.0)
            weight = (weight[:, None] * np.array([1 - share, share])).reshape(-1, *shape)
            index = (index[:, None] * (last + 1) + np.array([below, above])).reshape(-1, *shape)
        # Added one after the other, whatever the shape: a batch of steps takes what its steps take.
        return np.asarray(np.add.accumulate(weight * self.time.ravel()[index])[-1] * beyond)

    def _at(self, point: list[float]) -> float:
        """Return the time at one point, digit by digit a batch's, without making arrays of one."""
        axes, times = self._plain
        beyond, corners = 1.0, [(1.0, 0)]
        for axis, x in zip(axes, point, strict=True):
            last = len(axis) - 1
            beyond *= max(x / axis[last], 1.0)
            below = min(max(bisect_right(axis, x) - 1, 0), max(last - 1, 0))
            above = min(below + 1, last)
            width = axis[above] - axis[below]
            share = min(max((x - axis[below]) / (width if width > 0 else 1.0), 0.0), 1.0)
            corners = [
                corner
                for weight, index in corners
                for corner in (
                    (weight * (1 - share), index * (last + 1) + below),
                    (weight * share, index * (last + 1) + above),
                )
            ]
        total = 0.0
        for weight, index in corners:
            total += weight * times[index]
        return total * beyond
