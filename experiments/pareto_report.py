"""Who stands where, as a table and a picture of P99 TTFT over P99 TPOT with goodput beside the points."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from experiments.compare import Estimate
from experiments.output import number, say, table, wrapped
from experiments.pareto import Case, Standing, front_rows, points
from experiments.plotting import WIDE, new_figure, save_figure
from experiments.report import objectives_line
from experiments.surface_picture import COLOURS

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes

MOST_PANELS = 4
"""Points that are drawn; the CSV file has all."""

LOG_SPREAD = 20
"""Axes whose values differ by more than this factor are logarithmic."""


def show_standings(found: Sequence[Standing], width: float) -> None:
    """Print every policy at every point, the front marked."""
    rows = []
    for standing in found:
        e = standing.estimates
        rows.append(
            [
                wrapped(standing.case.policy),
                standing.case.place[1],
                *(_with_half(e[name]) for name in ("ttft_p99_ms", "tpot_p99_ms", "goodput", "soft_goodput")),
                _with_half(e["lateness"], 100.0),
                _verdict(standing),
            ]
        )
    objectives = list(dict.fromkeys(str(standing.case.objectives) for standing in found))
    say(*map(objectives_line, objectives))
    columns = ("P99 TTFT\nms", "P99 TPOT\nms", "goodput\nreq/s", "soft goodput\nreq/s", "lateness\n%", "front")
    table(["policy", "at", *columns], rows, left=2)
    say(
        f"Soft goodput: a request that is late by a share x of the objective it misses most counts 1 - x/{width:g}. "
        "Lateness: that share, mean over finished requests. Front: no other policy at the point is at least as good in "
        'P99 TTFT, P99 TPOT and goodput; "surely": paired 95 % intervals say so too.'
    )


def _with_half(estimate: Estimate, scale: float = 1.0) -> str:
    if estimate.mean is None:
        return "-"
    half = estimate.half_width
    return number(scale * estimate.mean) + ("" if half is None else f" ±{number(scale * half)}")


def _verdict(standing: Standing) -> str:
    if standing.front:
        return "on it"
    return f"{'surely ' if standing.surely else ''}behind {standing.dominated_by}"


def write_standings(found: Sequence[Standing], folder: Path, width: float) -> list[Path]:
    """Write ``pareto.png``, ``pareto.pdf`` and ``pareto.csv``.

    Raises:
        OSError: if they cannot be written.
    """
    shown = list(points([s.case for s in found]).items())[:MOST_PANELS]
    labels = list(dict.fromkeys(s.case.policy for s in found))
    with new_figure(WIDE, 3.2 + 0.15 * ((len(labels) + 2) // 3)) as figure:
        axes = figure.subplots(1, len(shown), squeeze=False)[0]
        for axis, ((_, at), cases) in zip(axes, shown, strict=True):
            _panel(axis, [s for s in found if _among(s.case, cases)], labels)
            axis.set_title(at, fontsize=8)
        axes[0].set_ylabel("P99 TTFT (ms)")
        handles: dict[str, Artist] = {}
        for axis in axes:
            drawn, texts = axis.get_legend_handles_labels()
            handles |= dict(zip(texts, drawn, strict=True))
        figure.legend(list(handles.values()), list(handles), loc="outside lower center", ncols=3)
        figure.suptitle(f"{shown[0][0][0]}: goodput in requests/s beside each policy; filled: on the Pareto front")
        return save_figure(figure, folder, "pareto", front_rows(found, width))


def _among(case: Case, cases: Sequence[Case]) -> bool:
    return any(case is other for other in cases)


def _panel(axis: Axes, found: Sequence[Standing], labels: Sequence[str]) -> None:
    decoding = any(s.estimates["tpot_p99_ms"].mean is not None for s in found)
    across, name = ("tpot_p99_ms", "P99 TPOT (ms)") if decoding else ("goodput", "goodput (requests/s)")
    drawn = [s for s in found if s.estimates[across].mean is not None and s.estimates["ttft_p99_ms"].mean is not None]
    for s in drawn:
        x, y, goodput = s.estimates[across], s.estimates["ttft_p99_ms"], s.estimates["goodput"].mean
        colour = COLOURS[labels.index(s.case.policy) % len(COLOURS)]
        axis.errorbar(
            x.mean or 0.0,
            y.mean or 0.0,
            xerr=x.half_width,
            yerr=y.half_width,
            fmt="o",
            color=colour,
            markerfacecolor=colour if s.front else "white",
            markersize=6,
            linewidth=1,
            label=s.case.policy,
        )
        axis.annotate(
            number(goodput), (x.mean or 0.0, y.mean or 0.0), xytext=(5, 5), textcoords="offset points", fontsize=7
        )
    for which, metric in (("x", across), ("y", "ttft_p99_ms")):
        values = [v for s in drawn if (v := s.estimates[metric].mean)]
        if values and max(values) > LOG_SPREAD * min(values):
            axis.set(**{f"{which}scale": "log"})
            (axis.xaxis if which == "x" else axis.yaxis).set_major_formatter("{x:g}")
    axis.margins(0.15)
    axis.set_xlabel(name)
