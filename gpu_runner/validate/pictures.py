"""Pictures of validations: drawn on a figure that is given, in whatever style it has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from gpu_runner.validate.ends import FloatArray, Row, Sample
from gpu_runner.validate.sections import NAMES, Picture, figure_name

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MEASURED, SIMULATED, OTHER = "#0072B2", "#D55E00", "#009E73"
"""Okabe and Ito's blue, vermilion and green."""

FIGURE_HEADER = 0.95

ROW_INCHES = 0.22

CLIPPED = 4
"""Errors of more than so many times the widest allowed band are drawn at the edge, with their number."""


def cdf_picture(
    measured: Sequence[Sample],
    simulated: Sequence[Sample],
    times: Sequence[str] = ("ttft", "tpot", "jct"),
    name: str = "cdf",
) -> Picture:
    """Return the distributions of both sides, one panel per time, one line per run."""
    shown = [t for t in times if all(len(s.times.get(t, ())) for s in (*measured, *simulated))]

    def draw(figure: Figure) -> None:
        axes = np.atleast_1d(figure.subplots(1, len(shown), sharey=True))
        for axis, time in zip(axes, shown, strict=True):
            _cdfs(axis, [s.times[time] for s in measured], MEASURED, "-", "measured")
            _cdfs(axis, [s.times[time] for s in simulated], SIMULATED, "--", "simulated")
            largest = max(s.times[time].max() for s in (*measured, *simulated))
            _time_axis(axis, NAMES[time], float(largest))
        axes[0].set_ylabel("share of requests")
        axes[0].set_ylim(0, 1.02)
        axes[-1].legend(loc="lower right")

    repeats = f" Each of {len(measured)} measured repeats has its own line." if len(measured) > 1 else ""
    caption = (
        "Share of requests (of gaps, for ITL) with a time of at most x. Where the dashed line lies to the right of the "
        f"solid one, the simulation is slower than the engine.{repeats}"
    )
    return Picture(name, caption, draw)


def _cdfs(axis: Axes, samples: Sequence[FloatArray], colour: str, style: str, label: str) -> None:
    for k, values in enumerate(samples):
        x = np.sort(values)
        y = np.arange(1, len(x) + 1) / len(x)
        width = 1.6 if len(samples) == 1 else 1.0
        axis.step(x, y, where="post", color=colour, linestyle=style, linewidth=width, label=None if k else label)


def _time_axis(axis: Axes, name: str, largest_ms: float) -> None:
    """Label an axis of milliseconds in the unit that its numbers read best in."""
    in_seconds = largest_ms >= 10_000
    axis.set_xlim(left=0)
    axis.set_xlabel(f"{name} ({'s' if in_seconds else 'ms'})")
    if in_seconds:
        axis.xaxis.set_major_formatter(lambda x, _: f"{x / 1000:g}")


def error_picture(
    rows: Sequence[Row],
    others: Mapping[str, Sequence[Row]] | None = None,
    name: str = "errors",
    label: str = "simulated",
) -> Picture:
    """Return the error of each figure on the band that is allowed, with the engine's own spread.

    Args:
        rows: those that are judged; figures without an error are left out.
        others: further comparisons of the same figures, by name.
        name: of the picture.
        label: what the rows are called in the legend.
    """
    judged = [r for r in rows if r.error is not None]
    spread = any(r.spread is not None for r in judged)

    def draw(figure: Figure) -> None:
        axis = figure.subplots()
        y = np.arange(len(judged))
        allowed = np.array([100 * r.allowed for r in judged])
        axis.barh(y, 2 * allowed, left=-allowed, height=0.8, color="#E5E5E5", label="allowed")
        axis.axvline(0, color="black", linewidth=0.8)
        if spread:
            sd = np.array([100 * (r.spread or 0.0) for r in judged])
            axis.errorbar(
                0 * y, y, xerr=sd, fmt="none", color=MEASURED, label="engine's spread (± 1 sd of its repeats)"
            )
        good = np.array([bool(r.within) for r in judged])
        errors = np.array([100 * (r.error or 0.0) for r in judged])
        edge = _edge(errors, allowed)
        shown = np.clip(errors, -edge, edge)
        axis.plot(shown[good], y[good], "o", color=SIMULATED, markersize=6, label=label)
        if not good.all():
            axis.plot(shown[~good], y[~good], "X", color="black", markersize=8, label=f"{label}, not allowed")
        for at in np.flatnonzero(errors != shown):
            right = errors[at] > 0
            axis.annotate(
                f"{errors[at]:+,.0f} % →" if right else f"← {errors[at]:+,.0f} %",
                (shown[at], y[at]),
                xytext=(-8 if right else 8, 0),
                textcoords="offset points",
                ha="right" if right else "left",
                va="center",
                fontsize=8,
            )
        axis.set_xlim(-1.08 * edge, 1.08 * edge)
        for offset, (what, those) in zip((0.18, -0.18), (others or {}).items(), strict=False):
            by = {r.figure: r.error for r in those}
            theirs = [np.nan if (e := by.get(r.figure)) is None else 100 * e for r in judged]
            axis.plot(theirs, y + offset, "D", color=OTHER, markersize=4.5, markerfacecolor="white", label=what)
        axis.set_yticks(y, [figure_name(r.figure) for r in judged])
        axis.invert_yaxis()
        axis.grid(False, axis="y")
        axis.tick_params(axis="y", length=0)
        axis.set_xlabel("simulated ÷ measured − 1 (%)")
        figure.legend(*axis.get_legend_handles_labels(), loc="outside upper center", ncols=4)

    caption = "Error of each figure. A point on the grey band is within what is allowed"
    caption += ": the tolerance, or twice the engine's spread where that is more." if spread else "."
    return Picture(name, caption, draw, height=FIGURE_HEADER + ROW_INCHES * max(len(judged), 3))


def _edge(errors: FloatArray, allowed: FloatArray) -> float:
    """Return how far an axis of errors reaches: so far that the allowed band is still to be seen."""
    widest = float(allowed.max(initial=1.0))
    return min(max(float(np.abs(errors).max(initial=0.0)), 1.1 * widest), CLIPPED * widest)


def series_picture(
    panels: Mapping[str, tuple[tuple[FloatArray, FloatArray], tuple[FloatArray, FloatArray]]], name: str, caption: str
) -> Picture:
    """Return quantities over time, measured and simulated.

    Args:
        panels: by axis label, the measured and the simulated (seconds, values).
        name: of the picture.
        caption: of the picture.
    """

    def draw(figure: Figure) -> None:
        axes = np.atleast_1d(figure.subplots(len(panels), 1, sharex=True))
        for axis, (label, (measured, simulated)) in zip(axes, panels.items(), strict=True):
            axis.plot(*measured, color=MEASURED, label="measured")
            axis.plot(*simulated, color=SIMULATED, linestyle="--", label="simulated")
            axis.set_ylabel(label)
            axis.set_ylim(bottom=0)
        axes[-1].set_xlim(left=0)
        axes[-1].set_xlabel("time since the first arrival (s)")
        figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=2)

    return Picture(name, caption, draw, height=0.7 + 1.25 * len(panels))


def steps_picture(predicted_ms: FloatArray, measured_ms: FloatArray, tolerance: float, name: str = "steps") -> Picture:
    """Return predicted against measured step times."""

    def draw(figure: Figure) -> None:
        axis = figure.subplots()
        top = 1.05 * float(max(predicted_ms.max(), measured_ms.max()))
        low = 0.95 * float(min(predicted_ms.min(), measured_ms.min()))
        ends = np.array([low, top])
        axis.fill_between(
            ends,
            ends * (1 - tolerance),
            ends * (1 + tolerance),
            color="#E5E5E5",
            label=f"±{100 * tolerance:g} %, allowed on average",
        )
        axis.plot(ends, ends, color="black", linewidth=0.8)
        dense = len(measured_ms) > 500
        axis.plot(
            measured_ms, predicted_ms, "o", color=SIMULATED, markersize=2 if dense else 5, alpha=0.3 if dense else 0.9
        )
        if top > 20 * low > 0:
            axis.set_xscale("log")
            axis.set_yscale("log")
        axis.set_xlim(low, top)
        axis.set_ylim(low, top)
        axis.set_xlabel("measured step time (ms)")
        axis.set_ylabel("predicted (ms)")
        axis.legend(loc="upper left")

    caption = (
        "Each point is a step; on the line prediction and measurement agree, above it steps are predicted too long."
    )
    return Picture(name, caption, draw, width=3.8, height=3.4)
