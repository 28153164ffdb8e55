"""Small plots as SVG text: no scripts, colours from the page's style sheet, only as many points as can be seen."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

WIDTH, HEIGHT = 360.0, 236.0
LEFT, RIGHT, TOP, BOTTOM = 46.0, 10.0, 12.0, 36.0

SERIES = 8
"""Colours that the style sheet has; further series have them again, dashed."""

HEADROOM = 0.04
"""Share of an axis from zero that is left above its largest value."""

LOG_SPREAD = 30
"""Values that differ by more than this factor are drawn on a logarithmic axis."""

TINY = 1e-300
"""What is smaller has no logarithm of its own, nor has a part of it."""


class Scale:
    """Where the values of an axis lie between two coordinates."""

    def __init__(self, low: float, high: float, log: bool = False) -> None:
        if not log and high <= low:
            low, high = (low - 0.5, low + 0.5) if low else (0.0, 1.0)
        if log and high <= low:
            low, high = low / 2, low * 2
        self.low, self.high, self.log = low, high, log
        self.at: tuple[float, float] = (0.0, 1.0)

    def __call__(self, values: Any) -> Floats:
        """Return coordinates; what lies outside is drawn at the edge."""
        given = np.asarray(values, dtype=np.float64)
        low, high = self.low, self.high
        if self.log:
            given = np.log(np.maximum(given, low))
            low, high = math.log(low), math.log(high)
        share = np.clip((given - low) / (high - low), 0.0, 1.0)
        result: Floats = self.at[0] + share * (self.at[1] - self.at[0])
        return result

    def ticks(self, most: int = 6) -> list[float]:
        """Return round values within."""
        if self.log:
            return self._log_ticks(most)
        raw = max((self.high - self.low) / max(most - 1, 1), TINY)
        size = 10.0 ** math.floor(math.log10(raw))
        step = next(size * f for f in (1, 2, 2.5, 5, 10) if size * f >= raw * 0.999)
        first = math.ceil(self.low / step - 1e-9)
        last = math.floor(self.high / step + 1e-9)
        return [k * step for k in range(first, last + 1)]

    def _log_ticks(self, most: int) -> list[float]:
        decades = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        for factors in ((1, 2, 5), (1,)):
            found = [f * 10.0**d for d in decades for f in factors if self.low <= f * 10.0**d <= self.high]
            if len(found) <= most:
                return found
        every = -(-len(found) // most)
        return found[::every]

    @classmethod
    def of(cls, values: Sequence[Floats], *, zero: bool = False, log: bool | None = None) -> Scale:
        """Return a scale that holds all values.

        Args:
            values: NaN and infinities do not count.
            zero: begin at 0, unless it is logarithmic.
            log: whether it is; by default where positive values spread widely.
        """
        every = np.concatenate([np.asarray(v, dtype=np.float64).ravel() for v in values]) if values else np.empty(0)
        every = every[np.isfinite(every)]
        if not len(every):
            return cls(0.0, 1.0)
        low, high = float(every.min()), float(every.max())
        if log is None:
            log = low > 0 and high > LOG_SPREAD * low
        if log:
            positive = every[every > TINY]
            if len(positive):
                return cls(float(positive.min()), high, True)
        if not zero:
            return cls(low, high)
        return cls(min(low, 0.0), high + HEADROOM * (high - min(low, 0.0)))


class Plot:
    """One set of axes; what is added is drawn in that order, clipped to the axes."""

    def __init__(self, x: Scale, y: Scale, xlabel: str, ylabel: str, what: str) -> None:
        """Make an empty plot.

        Args:
            x: of the horizontal axis; it is fitted to this plot.
            y: of the vertical one.
            xlabel: with its unit.
            ylabel: with its unit.
            what: for those who cannot see it.
        """
        self.x, self.y, self.what = x, y, what
        x.at, y.at = (LEFT, WIDTH - RIGHT), (HEIGHT - BOTTOM, TOP)
        self._labels = (xlabel, ylabel)
        self._parts: list[str] = []
        self._names: list[tuple[str, int]] = []

    def line(self, xs: Any, ys: Any, series: int, *, step: bool = False, thin: bool = False) -> None:
        """Draw a line; of more points than there are columns only each column's first, last, lowest and highest."""
        px, py = self.x(xs), self.y(ys)
        if step and len(px) > 1:
            px, py = np.repeat(px, 2)[1:], np.repeat(py, 2)[:-1]
        kept = thinned(px, py)
        text = "M" + "L".join(f"{_n(a)},{_n(b)}" for a, b in zip(px[kept].tolist(), py[kept].tolist(), strict=True))
        if len(px):
            self._parts.append(f'<path class="l {_series(series)}{" thin" if thin else ""}" d="{text}"/>')

    def band(self, xs: Any, low: Any, high: Any, series: int) -> None:
        """Fill what lies between two lines."""
        px = self.x(xs).tolist()
        there = list(zip(px, self.y(low).tolist(), strict=True))
        back = list(zip(px, self.y(high).tolist(), strict=True))[::-1]
        text = "M" + "L".join(f"{_n(a)},{_n(b)}" for a, b in there + back) + "Z"
        if len(px) > 1:
            self._parts.append(f'<path class="b {_series(series)}" d="{text}"/>')

    def points(self, xs: Any, ys: Any, series: int, *, large: bool = False) -> None:
        """Draw points; those that would cover each other once."""
        grid = 1 if large else 2
        cells = np.unique(np.round(np.column_stack([self.x(xs), self.y(ys)]) * grid).astype(np.int64), axis=0) / grid
        text = "".join(f"M{_n(a)},{_n(b)}h0" for a, b in cells.tolist())
        if len(cells):
            self._parts.append(f'<path class="p {_series(series)}{" large" if large else ""}" d="{text}"/>')

    def rule(self, x: float, name: str = "", series: int | None = None) -> None:
        """Draw a dashed vertical line, with what it says beside it; nothing where it lies outside."""
        if not self.x.low <= x <= self.x.high:
            return
        p = float(self.x(x))
        kind = "rule" if series is None else f"rule l {_series(series)}"
        self._parts.append(f'<path class="{kind}" d="M{_n(p)},{_n(TOP)}V{_n(HEIGHT - BOTTOM)}"/>')
        if name:
            where = f'x="{_n(p - 4)}" text-anchor="end"' if p > WIDTH - 90 else f'x="{_n(p + 4)}"'
            self._parts.append(f'<text class="note" {where} y="{_n(TOP + 9)}">{escape(name)}</text>')

    def box(self, x: float | None, y: float | None, name: str) -> None:
        """Mark the region up to ``x`` and ``y``; ``None`` reaches to the end."""
        right = WIDTH - RIGHT if x is None else float(self.x(x))
        top = TOP if y is None else float(self.y(y))
        width, height = right - LEFT, HEIGHT - BOTTOM - top
        self._parts.append(
            f'<rect class="box" x="{_n(LEFT)}" y="{_n(top)}" width="{_n(width)}" height="{_n(height)}">'
            f"<title>{escape(name)}</title></rect>"
        )

    def name(self, text: str, series: int) -> None:
        """Enter a series into the legend."""
        if (text, series) not in self._names:
            self._names.append((text, series))

    @property
    def legend(self) -> list[tuple[str, str]]:
        """What the series are: class of the style sheet, and name."""
        return [(_series(series), text) for text, series in self._names]

    def __str__(self) -> str:
        """Return the SVG element."""
        xlabel, ylabel = self._labels
        xticks, yticks = self.x.ticks(), self.y.ticks(5)
        lines = [f"M{_n(p)},{_n(TOP)}V{_n(HEIGHT - BOTTOM)}" for p in self.x(xticks).tolist()]
        lines += [f"M{_n(LEFT)},{_n(p)}H{_n(WIDTH - RIGHT)}" for p in self.y(yticks).tolist()]
        texts = [
            f'<text x="{_n(p)}" y="{_n(HEIGHT - BOTTOM + 13)}" text-anchor="{_anchor(p)}">{label}</text>'
            for p, label in zip(self.x(xticks).tolist(), tick_labels(xticks), strict=True)
        ]
        texts += [
            f'<text x="{_n(LEFT - 5)}" y="{_n(p + 3.5)}" text-anchor="end">{label}</text>'
            for p, label in zip(self.y(yticks).tolist(), tick_labels(yticks), strict=True)
        ]
        middle = (TOP + HEIGHT - BOTTOM) / 2
        for place, label in (
            (f'x="{_n((LEFT + WIDTH - RIGHT) / 2)}" y="{_n(HEIGHT - 6)}"', xlabel),
            (f'transform="translate(10,{_n(middle)}) rotate(-90)"', ylabel),
        ):
            texts.append(f'<text {place} text-anchor="middle">{escape(label)}</text>')
        return (
            f'<svg viewBox="0 0 {_n(WIDTH)} {_n(HEIGHT)}" role="img" aria-label="{escape(self.what)}">'
            f'<path class="grid" d="{"".join(lines)}"/>{"".join(self._parts)}{"".join(texts)}</svg>'
        )


def thinned(px: Floats, py: Floats) -> NDArray[np.int64]:
    """Return which points of a line suffice: of each column the first, last, lowest and highest."""
    n = len(px)
    if n <= 4 * WIDTH:
        return np.arange(n)
    column = np.floor(px).astype(np.int64)
    edges = np.flatnonzero(np.diff(column, prepend=column[0] - 1))
    last = np.append(edges[1:], n) - 1
    order = np.lexsort((py, column))
    sorted_edges = np.flatnonzero(np.diff(column[order], prepend=column[order[0]] - 1))
    sorted_last = np.append(sorted_edges[1:], n) - 1
    return np.unique(np.concatenate([edges, last, order[sorted_edges], order[sorted_last]]))


def tick_labels(ticks: Sequence[float]) -> list[str]:
    """Return the numbers of an axis, all with the digits that tell them apart."""
    labels = []
    for tick in ticks:
        if abs(tick) >= 1e6:
            labels.append(f"{tick / 1e6:g}M")
        elif abs(tick) >= 1e4:
            labels.append(f"{tick / 1e3:g}k")
        else:
            labels.append(f"{tick:.6g}")
    return labels


def _series(series: int) -> str:
    return f"s{series % SERIES}" + (" again" if series >= SERIES else "")


def _anchor(p: float) -> str:
    return "end" if p > WIDTH - RIGHT - 8 else "middle"


def _n(value: float) -> str:
    """Return a coordinate to a tenth of a unit, as short as it goes."""
    text = f"{value:.1f}"
    return text[:-2] if text.endswith(".0") else text
