"""Tables of measured times: read between their points, and past their ends by a declared rule."""

from __future__ import annotations

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
    """Times over the product of several axes, log-log between points: powers of the quantities are exact.

    An axis may start at 0; from there to its first positive point the logarithm of the time is linear in the
    quantity. Between points the time lies between those of the corners. Below an axis the time is that of its first
    point; past its last it grows with the quantity. Points that nobody measured (NaN) grow so with the last axis,
    from the last point measured.

    Raises:
        ValueError: if axes and times do not match, axes do not rise, or a row starts with NaN.
    """

    axes: tuple[FloatArray, ...]
    time: FloatArray
    """Shape (points of the first axis, ..., points of the last axis), positive or NaN."""
    log: FloatArray = field(init=False)
    """Logarithms of the times, without gaps."""

    def __post_init__(self) -> None:
        if self.time.shape != tuple(len(a) for a in self.axes):
            raise ValueError(
                f"times of shape {self.time.shape} do not fit axes of {[len(a) for a in self.axes]} points"
            )
        if any(np.any(np.diff(a) <= 0) or a[0] < 0 or a[-1] <= 0 for a in self.axes):
            raise ValueError("the axes of a grid must rise from 0 or more")
        filled = self.time.copy()
        for i in range(1, filled.shape[-1]):
            missing = np.isnan(filled[..., i])
            grown = filled[..., i - 1] * (self.axes[-1][i] / max(self.axes[-1][i - 1], 1.0))
            filled[..., i] = np.where(missing, grown, filled[..., i])
        if not np.all(filled > 0):
            raise ValueError("a grid's times must be positive, and the first of each row must be known")
        object.__setattr__(self, "log", np.log(filled))

    def __call__(self, *at: ArrayLike) -> FloatArray:
        """Return the times at one array for each axis, broadcast against each other."""
        points = np.broadcast_arrays(*(np.asarray(a, dtype=np.float64) for a in at))
        below, share = [], []
        beyond = np.ones(points[0].shape)
        for axis, x in zip(self.axes, points, strict=True):
            beyond = beyond * np.maximum(x / axis[-1], 1.0)
            place, nodes = _spread(x, axis), _spread(axis, axis)
            i = np.clip(np.searchsorted(nodes, place, side="right") - 1, 0, max(len(axis) - 2, 0))
            step = nodes[np.minimum(i + 1, len(axis) - 1)] - nodes[i]
            below.append(i)
            share.append(np.clip((place - nodes[i]) / np.where(step > 0, step, 1.0), 0.0, 1.0))
        log = np.zeros(points[0].shape)
        for corner in np.ndindex(*(2,) * len(self.axes)):
            weight = np.ones(points[0].shape)
            index = []
            for up, i, s, axis in zip(corner, below, share, self.axes, strict=True):
                weight = weight * (s if up else 1 - s)
                index.append(np.minimum(i + up, len(axis) - 1))
            log = log + weight * self.log[tuple(index)]
        return np.asarray(np.exp(log) * beyond)


def _spread(x: FloatArray, axis: FloatArray) -> FloatArray:
    """Return where ``x`` lies: octaves above the first positive point, and the share of it below."""
    first = axis[axis > 0][0]
    ratio = x / first
    return np.asarray(np.where(ratio >= 1, 1 + np.log2(np.maximum(ratio, 1.0)), ratio))
