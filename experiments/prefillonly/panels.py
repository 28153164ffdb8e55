"""A picture of rows over seeds: panels of one metric each, a line per series, bands for 95 % intervals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.plotting import BLUE, GREEN, ORANGE, PURPLE, RED, SKY, WIDE, new_figure, save_figure
from experiments.tables import Rows

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = (BLUE, ORANGE, GREEN, RED, PURPLE, SKY)
MARKERS = "osD^vP"

LABELS = {
    "hit_rate": "prefix hit rate",
    "throughput": "throughput (req/s)",
    "utilisation": "utilisation",
    "mean_s": "mean latency (s)",
    "p50_s": "median latency (s)",
    "p99_s": "P99 latency (s)",
    "longest_wait_s": "longest wait (s)",
    "reloads": "prefixes computed",
}

SHARES = ("hit_rate", "utilisation")

LOG_SPREAD = 15
"""Metrics that differ by more than this factor between lines have a logarithmic axis, one for all panels of a row."""

FEW_DECADES = 200
"""Below this factor a logarithmic axis has numbers between the powers of ten too."""

PANEL_INCHES = 1.75


@dataclass(frozen=True)
class Panels:
    """Which columns of the rows are what."""

    x: str
    x_label: str
    series: str
    metrics: tuple[str, ...]
    """One row of panels for each."""
    across: str | None = None
    """One column of panels for each value."""
    titles: Mapping[str, str] | None = None
    """Of the values of ``across``, where they are not their own."""
    names: Mapping[str, str] | None = None
    """Of the series."""


def draw_panels(rows: Rows, panels: Panels, title: str, folder: Path, stem: str) -> list[Path]:
    """Write ``STEM.png``, ``STEM.pdf`` and ``STEM.csv``.

    Args:
        rows: from :func:`experiments.prefillonly.bench.aggregate`, by ``x``, ``series`` and ``across``.
        panels: what to draw.
        title: above all panels.
        folder: where to.
        stem: of the files.

    Raises:
        OSError: if they cannot be written.
    """
    columns = [None] if panels.across is None else _values(rows, panels.across)
    series = _values(rows, panels.series)
    with new_figure(WIDE, 0.9 + PANEL_INCHES * len(panels.metrics)) as figure:
        axes = figure.subplots(len(panels.metrics), len(columns), squeeze=False, sharey="row", sharex="col")
        for line, metric in zip(axes, panels.metrics, strict=True):
            for axis, value in zip(line, columns, strict=True):
                own = [row for row in rows if value is None or row[str(panels.across)] == value]
                _panel(axis, own, panels, metric, series)
                if axis is axes[0][columns.index(value)] and value is not None:
                    axis.set_title((panels.titles or {}).get(value, str(value)))
            line[0].set_ylabel(LABELS[metric])
            _scale(line[0], metric, rows)
        for axis in axes[-1]:
            axis.set_xlabel(panels.x_label)
        handles, labels = axes[0][0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=min(len(series), 5))
        figure.suptitle(title)
        return save_figure(figure, folder, stem, rows)


def _values(rows: Rows, name: str) -> list[Any]:
    return list(dict.fromkeys(row[name] for row in rows))


def _panel(axis: Axes, rows: Rows, panels: Panels, metric: str, series: list[Any]) -> None:
    ticks = _values(rows, panels.x)
    for k, name in enumerate(series):
        own = [row for row in rows if row[panels.series] == name and row[metric] is not None]
        at = [ticks.index(row[panels.x]) for row in own]
        label = (panels.names or {}).get(name, str(name))
        axis.plot(at, [row[metric] for row in own], f"{MARKERS[k % 6]}-", color=COLOURS[k % 6], label=label)
        banded = [(a, row) for a, row in zip(at, own, strict=True) if row[f"{metric}_lo"] is not None]
        axis.fill_between(
            [a for a, _ in banded],
            [row[f"{metric}_lo"] for _, row in banded],
            [row[f"{metric}_hi"] for _, row in banded],
            color=COLOURS[k % 6],
            alpha=0.15,
        )
    axis.set_xticks(range(len(ticks)), [f"{t:g}" if isinstance(t, float) else str(t) for t in ticks])


def _scale(axis: Axes, metric: str, rows: Rows) -> None:
    known = [row[metric] for row in rows if row[metric]]
    if metric in SHARES:
        axis.set_ylim(0, 1.04)
    elif known and max(known) > LOG_SPREAD * min(known):
        from matplotlib.ticker import LogLocator

        axis.set_yscale("log")
        few = max(known) < FEW_DECADES * min(known)
        axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if few else (1,)))
        axis.yaxis.set_major_formatter("{x:g}")
        axis.yaxis.set_minor_formatter("")
    else:
        axis.set_ylim(bottom=0)
