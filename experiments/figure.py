"""The picture of a comparison: goodput, P99 TTFT and P99 TPOT per policy, as PNG, PDF and CSV."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.compare import Comparison, Estimate, objective_ms
from experiments.output import number, wrapped
from experiments.plotting import BLUE, GREEN, RED, SKY, WIDE, new_figure, save_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PANELS = (
    ("goodput", "Goodput (requests/s)", None),
    ("ttft_p99_ms", "P99 TTFT (ms)", "ttft"),
    ("tpot_p99_ms", "P99 TPOT (ms)", "tpot_p99"),
)
"""Metric, axis label, and the objective that bounds it."""

COLOURS = {"goodput": BLUE, "ttft_p99_ms": SKY, "tpot_p99_ms": GREEN}

LOG_SPREAD = 30
"""A panel whose values differ by more than this factor has a logarithmic axis, and points for bars."""

LABEL_SHARE = 0.45
"""Room for the numbers, as a share of the longest bar."""

ROW_INCHES = 0.36


def figure_rows(comparison: Comparison) -> list[dict[str, Any]]:
    """Return the plotted numbers: one row per policy and panel."""
    objectives = objective_ms(comparison.objectives)
    rows = []
    for label, estimates in comparison.policies.items():
        for metric, _, objective in PANELS:
            mean, ci95, per_seed = estimates[metric]
            lo, hi = ci95 or (None, None)
            bound = objectives.get(objective or "")
            rows.append(
                {
                    "policy": label,
                    "metric": metric,
                    "mean": mean,
                    "ci95_lo": lo,
                    "ci95_hi": hi,
                    "seeds": sum(v is not None for v in per_seed),
                    "objective": bound,
                }
            )
    return rows


def write_figure(comparison: Comparison, folder: Path, stem: str = "compare") -> list[Path]:
    """Write ``STEM.png``, ``STEM.pdf`` and ``STEM.csv``, the plotted numbers; equal comparisons make equal bytes.

    Raises:
        OSError: if they cannot be written.
    """
    with new_figure(WIDE, 1.25 + ROW_INCHES * len(comparison.policies)) as figure:
        draw(comparison, figure)
        return save_figure(figure, folder, stem, figure_rows(comparison))


def draw(comparison: Comparison, figure: Figure) -> None:
    """Draw the panels side by side, one row per policy, in the order in which they were given."""
    axes = figure.subplots(1, len(PANELS), sharey=True)
    objectives = objective_ms(comparison.objectives)
    labels = list(comparison.policies)
    for axis, (metric, title, objective) in zip(axes, PANELS, strict=True):
        bound = objectives.get(objective or "")
        _bars(axis, metric, [comparison.policies[label][metric] for label in labels], bound)
        axis.set_xlabel(title)
        if bound is not None:
            axis.axvline(bound, color=RED, linestyle="--", linewidth=1.2)
            axis.set_title(f"objective {bound:g} ms", color=RED, fontsize=8)
    axes[0].set_yticks(range(len(labels)), [wrapped(label) for label in labels])
    axes[0].invert_yaxis()
    n = len(comparison.seeds)
    what = f"mean and 95 % interval of {n} seeds" if n > 1 else "one run"
    figure.suptitle(f"{comparison.trace}: {what}")


def _bars(axis: Axes, metric: str, estimates: list[Estimate], bound: float | None) -> None:
    known = [e.mean for e in estimates if e.mean]
    shown = known if bound is None else [*known, bound]
    logarithmic = metric != "goodput" and bool(known) and max(shown) > LOG_SPREAD * min(shown)
    if logarithmic:
        axis.set_xscale("log")
        axis.set_xlim(min(shown) / 2, max(shown) * (max(shown) / min(shown)) ** LABEL_SHARE)
        axis.plot(known, [row for row, e in enumerate(estimates) if e.mean], "o", color=COLOURS[metric], markersize=6)
    else:
        means = [e.mean or 0.0 for e in estimates]
        axis.barh(range(len(estimates)), means, height=0.62, color=COLOURS[metric])
    axis.grid(False, axis="y")
    axis.tick_params(axis="y", length=0)
    top = 0.0
    for row, estimate in enumerate(estimates):
        if estimate.mean is None:
            axis.annotate("none", (0.02, row), xycoords=("axes fraction", "data"), va="center", fontsize=8)
            continue
        half = estimate.half_width
        if half:
            axis.errorbar(estimate.mean, row, xerr=half, color="black", linewidth=1)
        end = estimate.mean + (half or 0.0)
        top = max(top, end)
        axis.annotate(
            number(estimate.mean),
            (end, row),
            xytext=(5, 0),
            textcoords="offset points",
            va="center",
            fontsize=8,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.6},
        )
    if not logarithmic:
        axis.set_xlim(0, (1 + LABEL_SHARE) * top or 1)
