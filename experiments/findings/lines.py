"""What pictures and paragraphs of several questions share: lines with bands, and counts of signs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from experiments.tables import Rows
from sim.stats import Interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def band(axis: Axes, rows: Rows, x: str, y: str, colour: str, label: str, *, times: float = 1.0, **style: Any) -> None:
    """Draw ``y`` over ``x`` as a line, and its interval, the columns ``y_lo`` and ``y_hi``, as a band.

    Rows without a value are left out; ``times`` 100 draws shares in per cent.
    """
    rows = [row for row in rows if row[y] is not None]
    at = [row[x] for row in rows]
    means, lows, highs = ([times * row[name] for row in rows] for name in (y, f"{y}_lo", f"{y}_hi"))
    axis.plot(at, means, color=colour, label=label, **({"marker": "o", "linestyle": "-"} | style))
    axis.fill_between(at, lows, highs, color=colour, alpha=0.15, linewidth=0)


def signs(differences: Iterable[Interval]) -> tuple[int, int]:
    """Return how many intervals lie above zero, and how many below."""
    known = [(d.lo, d.hi) for d in differences if d.lo is not None and d.hi is not None]
    return sum(lo > 0 for lo, _ in known), sum(hi < 0 for _, hi in known)


def in_words(differences: Iterable[Interval], settings: str = "settings") -> str:
    """Return ``higher in 3 of 8 settings and lower in 1``, by intervals that exclude zero."""
    differences = list(differences)
    above, below = signs(differences)
    return f"higher in {above} of {len(differences)} {settings} and lower in {below}"


def counted(differences: Iterable[Interval]) -> str:
    """Return ``3 / 1``: how many intervals lie above zero, and how many below."""
    above, below = signs(differences)
    return f"{above} / {below}"
