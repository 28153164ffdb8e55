"""Figures 6 to 9 of PrefillOnly as pictures, and the table of ratios."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from experiments.plotting import (
    BLUE,
    GREEN,
    NARROW,
    ORANGE,
    PURPLE,
    RED,
    SKY,
    WIDE,
    draw_table,
    new_figure,
    save_figure,
)
from experiments.prefillonly.grid import CREDIT, POST, SHUFFLED, TITLES, Grid, Point
from experiments.prefillonly.sustained import CLAIM, LATENCIES, LEVELS
from experiments.prefillonly.systems import SETUPS
from experiments.tables import Rows
from sim.stats import t_interval

COLOURS = {"paged": ORANGE, "chunked": GREEN, "pipeline": PURPLE, "tensor": RED, "prefillonly": BLUE}

NAMES = {
    "paged": "PagedAttention",
    "chunked": "chunked prefill",
    "pipeline": "pipeline parallel",
    "tensor": "tensor parallel",
    "prefillonly": "PrefillOnly",
}


def curve_rows(grid: Grid, metric: str, scale: float = 1.0) -> Rows:
    """Return a metric's mean and 95 % interval over seeds at every point and rate, in units of ``scale``."""
    rows: Rows = []
    for point in grid.points:
        for multiple, qps in zip(grid.multiples, grid.qps(point), strict=True):
            found = t_interval([v / scale for v in grid.per_seed(point, multiple, metric)])
            rows.append(
                {
                    **point._asdict(),
                    "multiple": multiple,
                    "qps": qps,
                    "metric": metric,
                    "mean": found.mean,
                    "lo": found.lo,
                    "hi": found.hi,
                }
            )
    return rows


def draw_latency(grid: Grid, folder: Path, stem: str, title: str, metric: str, workloads: Sequence[str]) -> list[Path]:
    """Write Figure 6 or 7: latency over the rate, a row of panels for each workload, a column for each set-up."""
    from matplotlib.ticker import LogLocator, NullFormatter

    rows = [r for r in curve_rows(grid, metric, 1e3) if r["workload"] in workloads]
    setups = list(dict.fromkeys(r["setup"] for r in rows))
    with new_figure(WIDE, 1.0 + 1.85 * len(workloads)) as figure:
        axes = figure.subplots(len(workloads), len(setups), squeeze=False, sharey="row")
        for line, workload in zip(axes, workloads, strict=True):
            for axis, setup in zip(line, setups, strict=True):
                own = [r for r in rows if (r["setup"], r["workload"]) == (setup, workload)]
                _curves(axis, own)
                axis.set_yscale("log")
                axis.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
                axis.yaxis.set_major_formatter("{x:,g}")
                axis.yaxis.set_minor_formatter(NullFormatter())
                axis.set_xlim(left=0)
                tops = [r["hi"] or r["mean"] for r in rows if r["workload"] == workload]
                axis.set_ylim(min(r["mean"] for r in rows if r["workload"] == workload) / 2, 1.2 * max(tops))
                axis.set_title(f"{TITLES[workload]}\n{SETUPS[setup].title.replace(', ', chr(10))}", fontsize=8)
            line[0].set_ylabel("latency (s)")
        for axis in axes[-1]:
            axis.set_xlabel("requests/s")
        _legend(figure, rows)
        figure.suptitle(f"{title}, {len(grid.seeds)} seeds, bands are 95 % intervals")
        return save_figure(figure, folder, stem, rows)


def draw_figure8(grid: Grid, folder: Path, readings: Rows) -> list[Path]:
    """Write Figure 8: throughput of credit verification on H100 without and with NVLink, the readings as marks."""
    setups = [s for s in ("h100", "h100-nvlink") if (s, CREDIT) in grid.x]
    rows: Rows = []
    for setup in setups:
        for system in grid.systems(setup, CREDIT):
            point = Point(setup, CREDIT, system)
            found = t_interval(grid.capacity(point))
            rows.append(
                {
                    **point._asdict(),
                    "throughput": found.mean,
                    "lo": found.lo,
                    "hi": found.hi,
                    "paper": _paper(readings, "Figure 8", point),
                }
            )
    systems = list(dict.fromkeys(r["system"] for r in rows))
    with new_figure(NARROW * 1.35, 2.5) as figure:
        axis = figure.subplots()
        width = 0.8 / max(len(setups), 1)
        for k, setup in enumerate(setups):
            own = [r for r in rows if r["setup"] == setup]
            at = [systems.index(r["system"]) + (k - (len(setups) - 1) / 2) * width for r in own]
            label = "with NVLink" if SETUPS[setup].link == "nvlink" else "PCIe only"
            axis.bar(at, [r["throughput"] for r in own], width, color=(SKY, BLUE)[k], label=label)
            _whiskers(axis, at, own, "throughput")
            axis.plot(at, [r["paper"] for r in own], "D", color="black", mfc="white", markersize=4)
        axis.plot([], [], "D", color="black", mfc="white", markersize=4, label="read off the paper")
        axis.set_xticks(range(len(systems)), [NAMES[s] for s in systems])
        axis.grid(False, axis="x")
        axis.set_ylabel("throughput (requests/s)")
        figure.suptitle(f"Figure 8: credit, 2× H100, {len(grid.seeds)} seeds")
        figure.legend(loc="outside lower center", ncols=3)
        return save_figure(figure, folder, "figure8", rows)


def draw_figure9(grid: Grid, folder: Path, setup: str = "h100") -> list[Path]:
    """Write Figure 9: throughput of post recommendation over the rate, and the hit rate, for both kinds of arrival."""
    shown = [w for w in (POST, SHUFFLED) if (setup, w) in grid.x]
    panels = (("throughput", "throughput (requests/s)", 1.0), ("hit_rate", "tokens found in the cache (%)", 0.01))
    rows: Rows = []
    with new_figure(WIDE, 1.0 + 1.9 * len(panels)) as figure:
        axes = figure.subplots(len(panels), len(shown), squeeze=False, sharex=True, sharey="row")
        for k, (metric, label, scale) in enumerate(panels):
            for axis, workload in zip(axes[k], shown, strict=True):
                own = [r for r in curve_rows(grid, metric, scale) if (r["setup"], r["workload"]) == (setup, workload)]
                rows += own
                _curves(axis, own)
                axis.set_xlim(left=0)
                axis.set_ylim(bottom=0)
                if metric == "hit_rate":
                    axis.set_ylim(0, 105)
                else:
                    axis.set_title(TITLES[workload])
                    top = max(r["qps"] for r in own)
                    axis.plot([0, top], [0, top], color="0.6", linewidth=0.8, linestyle=":")
                    axis.set_ylim(0, 1.15 * max(r["hi"] or r["mean"] for r in rows if r["metric"] == metric))
            axes[k][0].set_ylabel(label)
        for axis in axes[-1]:
            axis.set_xlabel("requests/s that arrive")
        _legend(figure, rows)
        figure.suptitle(f"Figure 9: {SETUPS[setup].title}, {len(grid.seeds)} seeds (dotted: all that arrives)")
        return save_figure(figure, folder, "figure9", rows)


def draw_ratios(ratios: Rows, folder: Path) -> list[Path]:
    """Write the table of ratios: the QPS that PrefillOnly sustains over each baseline's, at equal latency."""
    by = {(r["setup"], r["workload"], r["system"], r["metric"], r["level_at"]): r for r in ratios}
    heads = [f"{name}, at\nPrefillOnly's\nat {_times(level)}" for name in LATENCIES for level in LEVELS]
    header = ["set-up", "workload", "baseline", *heads, "throughput,\nall at once or\nhighest rate"]
    points = list(dict.fromkeys((r["setup"], r["workload"], r["system"]) for r in ratios))
    cells = []
    for point in points:
        found = [by.get((*point, name, level)) for name in LATENCIES for level in LEVELS]
        found.append(by.get((*point, "throughput", None)))
        setup, workload, system = point
        cells.append([setup, TITLES[workload], NAMES[system], *("-" if r is None else ratio_text(r) for r in found)])
    title = f"QPS that PrefillOnly sustains over a baseline's, at equal latency (the paper: {CLAIM[0]} to {CLAIM[1]})"
    return draw_table(header, cells, title, folder, "ratios", ratios, width=1.9 * WIDE)


def ratio_text(row: dict[str, Any]) -> str:
    """Return a ratio with its interval, or its bound."""
    bound = {">": "≥ ", "<": "≤ ", "": ""}[row["bound"]]
    interval = "" if row["lo"] is None else f" ({row['lo']:.2f} to {row['hi']:.2f})"
    return f"{bound}{row['ratio']:.2f}{interval}"


def _times(level: float) -> str:
    return "x" if level == 1 else f"x/{1 / level:g}" if level < 1 else f"{level:g}x"


def _curves(axis: Any, rows: Rows) -> None:
    for system in NAMES:
        own = [r for r in rows if r["system"] == system]
        if not own:
            continue
        qps = [r["qps"] for r in own]
        axis.plot(qps, [r["mean"] for r in own], "o-", color=COLOURS[system], markersize=3)
        if own[0]["lo"] is not None:
            # Where few seeds vary much, the interval of a positive number may reach below 0.
            lo = [max(r["lo"], 1e-3 * r["mean"]) for r in own]
            axis.fill_between(qps, lo, [r["hi"] for r in own], color=COLOURS[system], alpha=0.15, linewidth=0)


def _whiskers(axis: Any, at: Sequence[float], rows: Rows, metric: str) -> None:
    if rows and rows[0]["lo"] is not None:
        error = np.array([[r[metric] - r["lo"], r["hi"] - r[metric]] for r in rows]).T
        axis.errorbar(at, [r[metric] for r in rows], yerr=error, fmt="none", color="black", linewidth=0.9)


def _legend(figure: Any, rows: Rows) -> None:
    from matplotlib.lines import Line2D

    shown = [s for s in NAMES if any(r["system"] == s for r in rows)]
    handles = [Line2D([], [], color=COLOURS[s], marker="o", markersize=3, label=NAMES[s]) for s in shown]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(shown))


def _paper(readings: Rows, source: str, point: Point) -> float | None:
    for row in readings:
        if row["source"] == source and row["point"] == point:
            return float(row["paper_lo"] + row["paper_hi"]) / 2
    return None
