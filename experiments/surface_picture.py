"""Goodput over TTFT and TPOT objectives: means over seeds with intervals, who is best where, as contours and CSV."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy import special

from experiments.output import wrapped
from experiments.pareto import Case, points
from experiments.plotting import BLUE, GREEN, ORANGE, PURPLE, RED, SKY, WIDE, new_figure, save_figure
from experiments.surface import surface
from experiments.tables import Rows
from policies.units import MS
from traces.schema import IntArray

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FloatArray = NDArray[np.float64]

COLOURS = (BLUE, RED, GREEN, ORANGE, PURPLE, SKY, "black", "0.5")

MOST_COLUMNS, MOST_ROWS = 4, 4
"""Policies and points that are drawn; the CSV file has all."""

LEVELS = 9


@dataclass(frozen=True)
class Surfaces:
    """One policy's surfaces at one point."""

    case: Case
    goodput: FloatArray
    """Shape (seeds, ttft, tpot), requests per second."""
    attainment: FloatArray
    """Likewise, shares."""

    @property
    def mean(self) -> FloatArray:
        """Goodput, mean over seeds."""
        result: FloatArray = self.goodput.mean(axis=0)
        return result


def surfaces(cases: Sequence[Case], ttft_ns: IntArray, tpot_ns: IntArray) -> list[Surfaces]:
    """Return the surfaces of every case over the same objectives."""
    found = []
    for case in cases:
        runs = [surface(run, ttft_ns, tpot_ns) for run in case.requests]
        found.append(Surfaces(case, np.stack([r.goodput for r in runs]), np.stack([r.attainment for r in runs])))
    return found


def half_width(per_seed: FloatArray, confidence: float = 0.95) -> FloatArray | None:
    """Return half the t-interval of the mean over the first axis; ``None`` for one seed."""
    n = len(per_seed)
    if n < 2:
        return None
    half: FloatArray = special.stdtrit(n - 1, (1 + confidence) / 2) * per_seed.std(axis=0, ddof=1) / np.sqrt(n)
    return half


def best(found: Sequence[Surfaces], confidence: float = 0.95) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return who has most goodput at each pair of objectives, and whether that is sure, both of shape (ttft, tpot).

    It is sure where the paired interval against each of the others excludes zero. Policies that did not run on the same
    traces are never sure of anything.
    """
    means = np.stack([s.mean for s in found])
    winner = means.argmax(axis=0)
    sure = np.full(winner.shape, len(found) > 1)
    hashes = [[run.trace_hash for run in s.case.group.runs] for s in found]
    for i, mine in enumerate(found):
        for j, other in enumerate(found):
            if i == j:
                continue
            shared = [(a, hashes[j].index(h)) for a, h in enumerate(hashes[i]) if h in hashes[j]]
            told = np.zeros(winner.shape, dtype=bool)
            if len(shared) > 1:
                rows, columns = map(list, zip(*shared, strict=True))
                difference = mine.goodput[rows] - other.goodput[columns]
                half = half_width(difference, confidence)
                told = difference.mean(axis=0) > (0.0 if half is None else half)
            sure &= (winner != i) | told
    return winner, sure


def surface_rows(found: Sequence[Surfaces], ttft_ns: IntArray, tpot_ns: IntArray) -> Rows:
    """Return one row per policy, point and pair of objectives."""
    rows: Rows = []
    for s in found:
        trace, at = s.case.place
        half = half_width(s.goodput)
        for i, ttft in enumerate(ttft_ns.tolist()):
            for j, tpot in enumerate(tpot_ns.tolist()):
                mean = float(s.mean[i, j])
                rows.append(
                    {
                        "trace": trace,
                        "point": at,
                        "policy": s.case.policy,
                        "ttft_ms": ttft / MS,
                        "tpot_ms": tpot / MS,
                        "seeds": len(s.goodput),
                        "attainment": float(s.attainment[:, i, j].mean()),
                        "goodput": mean,
                        "goodput_lo": None if half is None else mean - float(half[i, j]),
                        "goodput_hi": None if half is None else mean + float(half[i, j]),
                    }
                )
    return rows


def write_surfaces(cases: Sequence[Case], ttft_ns: IntArray, tpot_ns: IntArray, folder: Path) -> list[Path]:
    """Write ``surface.png``, ``surface.pdf`` and ``surface.csv``.

    Raises:
        OSError: if they cannot be written.
    """
    found = surfaces(cases, ttft_ns, tpot_ns)
    rows = surface_rows(found, ttft_ns, tpot_ns)
    shown = list(points(cases).items())[:MOST_ROWS]
    lines = [[s for s in found if s.case.place == place][:MOST_COLUMNS] for place, _ in shown]
    flat = len(tpot_ns) < 2 or len(ttft_ns) < 2
    columns = 1 if flat else max(map(len, lines)) + 1
    with new_figure(WIDE, 0.7 + 2.1 * len(lines)) as figure:
        axes = figure.subplots(len(lines), columns, squeeze=False, sharex=True, sharey=not flat)
        top = max((float(s.mean.max()) for s in found), default=0.0) or 1.0
        for row, ((_, at), _), own in zip(axes, shown, lines, strict=True):
            if flat:
                _lines(row[0], own, ttft_ns, tpot_ns)
            else:
                for axis, s in zip(row, own, strict=False):
                    drawn = _contours(axis, s, ttft_ns, tpot_ns, top)
                for axis in row[len(own) : -1]:
                    axis.axis("off")
                _best(row[-1], own, ttft_ns, tpot_ns)
                row[0].set_ylabel(f"{at}\nTTFT objective (ms)" if at else "TTFT objective (ms)")
            if at and flat:
                row[0].set_title(at, fontsize=8)
        if not flat:
            figure.colorbar(drawn, ax=axes[:, :-1], label="goodput (requests/s)", pad=0.01, aspect=30, format="%.3g")
            for axis in axes[-1]:
                axis.set_xlabel("TPOT objective (ms)")
        trace = shown[0][0][0]
        figure.suptitle(f"{trace}: goodput at any objectives, mean of {_seeds(found)}; +: those asked for")
        return save_figure(figure, folder, "surface", rows)


def _seeds(found: Sequence[Surfaces]) -> str:
    counts = sorted({len(s.goodput) for s in found})
    return f"{' or '.join(map(str, counts))} seed{'s' if counts != [1] else ''}"


def _contours(axis: Axes, s: Surfaces, ttft_ns: IntArray, tpot_ns: IntArray, top: float) -> Any:
    x, y = tpot_ns / MS, ttft_ns / MS
    levels = np.linspace(0, top, LEVELS)
    drawn = axis.contourf(x, y, s.mean, levels=levels, cmap="cividis")
    # Levels that no value reaches would be warned about.
    inner = [v for v in levels[1:-1:2] if float(s.mean.min()) < v < float(s.mean.max())]
    if inner:
        lines = axis.contour(x, y, s.mean, levels=inner, colors="white", linewidths=0.6)
        axis.clabel(lines, fmt="%.3g", fontsize=6)
    _scales(axis)
    _own(axis, s.case)
    axis.set_title(wrapped(s.case.policy), fontsize=8)
    return drawn


def _best(axis: Axes, own: Sequence[Surfaces], ttft_ns: IntArray, tpot_ns: IntArray) -> None:
    """Draw who is best where; grey where nobody is for sure."""
    from matplotlib.colors import ListedColormap
    from matplotlib.patches import Patch

    winner, sure = best(own)
    shown = np.where(sure, winner, len(own))
    colours = [*COLOURS[: len(own)], "0.8"]
    axis.pcolormesh(
        tpot_ns / MS,
        ttft_ns / MS,
        shown,
        cmap=ListedColormap(colours),
        vmin=-0.5,
        vmax=len(own) + 0.5,
        shading="nearest",
    )
    _scales(axis)
    axis.set_title("surely most goodput", fontsize=8)
    names = [*(s.case.policy for s in own), "unclear"]
    handles = [
        Patch(color=c, label=n) for k, (c, n) in enumerate(zip(colours, names, strict=True)) if (shown == k).any()
    ]
    axis.legend(handles=handles, fontsize=6, loc="lower right", frameon=True, framealpha=0.9)


def _scales(axis: Axes) -> None:
    from matplotlib.ticker import LogLocator, NullFormatter

    axis.set(xscale="log", yscale="log")
    axis.grid(False)
    for one in (axis.xaxis, axis.yaxis):
        one.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        one.set_major_formatter("{x:,g}")
        one.set_minor_formatter(NullFormatter())


def _own(axis: Axes, case: Case) -> None:
    """Mark the objectives by which the policies are judged."""
    ttft, tpot = case.objectives.ttft, case.objectives.tpot_p99
    if ttft is not None and tpot is not None:
        axis.plot(tpot / MS, ttft / MS, "+", color="white", markersize=9, markeredgewidth=2)


def _lines(axis: Axes, own: Sequence[Surfaces], ttft_ns: IntArray, tpot_ns: IntArray) -> None:
    """Draw goodput along the only kind of objective that varies."""
    by_ttft = len(ttft_ns) > 1
    x = (ttft_ns if by_ttft else tpot_ns) / MS
    for k, s in enumerate(own):
        half = half_width(s.goodput)
        y = s.mean[:, 0] if by_ttft else s.mean[0]
        axis.plot(x, y, "-", color=COLOURS[k % len(COLOURS)], label=s.case.policy)
        if half is not None:
            h = half[:, 0] if by_ttft else half[0]
            axis.fill_between(x, y - h, y + h, color=COLOURS[k % len(COLOURS)], alpha=0.18, linewidth=0)
    axis.set_xscale("log")
    axis.xaxis.set_major_formatter("{x:g}")
    axis.set_ylim(bottom=0)
    axis.set_xlabel(f"{'TTFT' if by_ttft else 'TPOT'} objective (ms)")
    axis.set_ylabel("goodput (requests/s)")
    axis.legend(fontsize=7)
