"""The pictures of a sweep: goodput and attainment along an axis, and where it stops keeping its promise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from experiments.recorded import Described, Swept
from experiments.webreport.charts import Chart
from experiments.webreport.groups import Group, grouped
from experiments.webreport.svg import Plot, Scale
from sim.objectives import Objectives

RATES = ("rate", "trace.rate", "rate_scale", "trace.rate_scale")

ENOUGH = 0.9
"""Attainment that a rate should reach to count as served."""

MOST_LINES = 16

PANELS = (
    ("goodput", "Goodput", "requests/s", 1.0),
    ("slo_attainment", "SLO attainment", "%", 100.0),
    ("ttft_p99_ms", "P99 TTFT", "ms", 1.0),
    ("tpot_p99_ms", "P99 TPOT", "ms", 1.0),
)


@dataclass(frozen=True)
class Curve:
    """One policy, and the other axes' values, along an axis."""

    name: str
    groups: list[Group]
    """In the order of the axis."""
    at: list[float]
    """Their values of it."""
    knee: float | None
    """The largest value up to which attainment stays at :data:`ENOUGH`; ``None`` where it never is, or is not asked."""


def numeric_axis(sweep: Swept) -> str | None:
    """Return the axis to draw along: a rate, else the first of at least two numbers."""
    usable = [a for a, values in sweep.axes.items() if len(values) > 1 and all(map(_is_number, values))]
    return next((a for a in usable if a in RATES), usable[0] if usable else None)


def curves(sweep: Swept, axis: str) -> list[Curve]:
    """Return a curve for each policy and combination of the other axes' values."""
    found: dict[tuple[str, ...], list[Described]] = {}
    for cell in sweep.cells:
        if _is_number(cell.point.get(axis)):
            others = (f"{_short(a)}={v}" for a, v in cell.point.items() if a != axis and v is not None)
            found.setdefault((cell.label, *others), []).append(cell)
    result = []
    for parts, cells in found.items():
        groups = sorted(grouped(cells), key=lambda g: float(g.point[axis]))
        at = [float(g.point[axis]) for g in groups]
        asked = all(cell.objectives != Objectives() for cell in cells)
        result.append(Curve(", ".join(parts), groups, at, _knee(groups, at) if asked and axis in RATES else None))
    return result


def _knee(groups: Sequence[Group], at: Sequence[float]) -> float | None:
    best = None
    for value, group in zip(at, groups, strict=True):
        mean = group.estimate("slo_attainment").mean
        if mean is None or mean < ENOUGH:
            break
        best = value
    return best


def curve_charts(found: Sequence[Curve], axis: str) -> list[Chart]:
    """Return the metrics along an axis, means as lines and 95 % intervals as bands."""
    shown = found[:MOST_LINES]
    charts = []
    for metric, title, unit, scale in PANELS:
        lines = []
        for k, curve in enumerate(shown):
            estimates = [(x, g.estimate(metric)) for x, g in zip(curve.at, curve.groups, strict=True)]
            measured = [(x, e) for x, e in estimates if e.mean is not None]
            if measured:
                xs = np.array([x for x, _ in measured])
                mean = np.array([scale * (e.mean or 0.0) for _, e in measured])
                half = np.array([scale * (e.half_width or 0.0) for _, e in measured])
                lines.append((k, curve, xs, mean, half))
        if not lines:
            continue
        if metric.endswith("_ms"):
            upright = Scale.of([m for *_, m, _ in lines], zero=True)
        elif unit == "%":
            upright = Scale(0.0, 100.0)
        else:
            upright = Scale.of([m + h for *_, m, h in lines], zero=True, log=False)
        plot = Plot(
            Scale.of([line[2] for line in lines]),
            upright,
            axis_name(axis),
            unit,
            f"{title} over {axis_name(axis)}",
        )
        for k, curve, xs, mean, half in lines:
            if half.any():
                plot.band(xs, mean - half, mean + half, k)
            plot.line(xs, mean, k)
            plot.points(xs, mean, k, large=True)
            plot.name(curve.name, k)
            if metric == "goodput" and curve.knee is not None:
                plot.rule(x=curve.knee, series=k)
        text = "Mean over seeds; the band is the 95 % interval."
        if metric == "goodput" and any(c.knee is not None for _, c, *_ in lines):
            text += f" Dashed: the knee, the largest rate up to which attainment stays at {100 * ENOUGH:.0f} %."
        charts.append(Chart(title, text, plot))
    return charts


def axis_name(axis: str) -> str:
    """Return what to call an axis, with its unit where it is known."""
    return {"rate": "rate (requests/s)", "trace.rate": "rate (requests/s)", "tpot": "TPOT objective (ms)"}.get(
        axis, axis
    )


def _short(axis: str) -> str:
    return axis.rpartition(".")[2]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e15
