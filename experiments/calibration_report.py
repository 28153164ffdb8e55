"""The report of a calibration: a page of text and two pictures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from costmodels.profile import FEATURES
from experiments.calibration import FOLDS, HELD_OUT, MOST_MAE, MOST_WORST_DECILE, Calibration, Score
from experiments.orders import PAIRS
from experiments.plotting import BLUE, GREEN, ORANGE, WIDE, new_figure, save_figure
from experiments.tables import Rows
from sim.store import atomic_write

KINDS = {"decode only": BLUE, "prefill only": ORANGE, "mixed": GREEN}

SHOWN = 0.45
"""Larger errors are counted, not drawn."""

REPORT, RESIDUALS, DECILES = "report.md", "residuals", "deciles"


def write_report(made: Calibration, folder: Path, card: dict[str, Any]) -> list[Path]:
    """Write ``report.md`` and the pictures ``residuals`` and ``deciles`` (PNG, PDF and their numbers as CSV).

    Raises:
        OSError: if something cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    files = [*draw_residuals(made, folder), *draw_deciles(made, folder)]
    path = folder / REPORT
    atomic_write(path, markdown(made, card).encode(errors="replace"))
    return [path, *files]


def score_rows(made: Calibration) -> Rows:
    """Return a row for each estimator: its errors, and whether it can be relied on."""
    return [
        {
            "estimator": s.estimator,
            "mae": s.mae,
            "worst_decile": s.worst_decile,
            "worst": s.worst,
            "bias": s.bias,
            "falls": s.falls,
            "falls_several": s.falls_several,
            "certified": s.certified,
            "within_targets": s.within_targets,
            "repaired": s.repaired,
            "problems": list(s.problems),
            "picked": s.estimator == made.picked,
        }
        for s in made.scores.values()
    ]


def decile_rows(made: Calibration) -> Rows:
    """Return errors by decile of the measured time and kind of step, for each estimator."""
    ns = made.rows["duration_ns"].to_numpy(dtype=np.float64)
    decile = np.minimum((np.argsort(np.argsort(ns, kind="stable")) * 10) // len(ns), 9)
    rows = []
    for name, predicted in made.held_out.items():
        error = predicted / ns - 1
        for k in range(10):
            own = error[decile == k]
            if not len(own):
                continue
            rows.append(
                {
                    "estimator": name,
                    "decile": k + 1,
                    "from_ms": float(ns[decile == k].min() / 1e6),
                    "to_ms": float(ns[decile == k].max() / 1e6),
                    "rows": len(own),
                    "mae": float(np.abs(own).mean()),
                    "bias": float(own.mean()),
                    "p99_under": float(np.quantile(1 / (1 + own) - 1, 0.99, method="higher")),
                }
            )
    return rows


def kind_of(made: Calibration) -> np.ndarray[Any, np.dtype[Any]]:
    """Return the kind of each row's step, a key of :data:`KINDS`."""
    decodes, prefills = (made.rows[c].to_numpy() > 0 for c in ("n_decode", "n_prefill"))
    return np.where(decodes & prefills, "mixed", np.where(decodes, "decode only", "prefill only"))


def draw_residuals(made: Calibration, folder: Path) -> list[Path]:
    """Write the held-out error of every row over its measured time, a panel for each estimator."""
    from matplotlib.ticker import LogLocator, NullFormatter

    ms, kinds = made.rows["duration_ns"].to_numpy() / 1e6, kind_of(made)
    rows: Rows = []
    for name, predicted in made.held_out.items():
        rows += [
            {"estimator": name, "kind": k, "measured_ms": float(m), "predicted_ms": float(p) / 1e6}
            for k, m, p in zip(kinds.tolist(), ms.tolist(), predicted.tolist(), strict=True)
        ]
    with new_figure(WIDE, 4.4) as figure:
        panels = figure.subplots(2, 2, sharex=True, sharey=True).ravel()
        for axis, (name, predicted) in zip(panels, made.held_out.items(), strict=True):
            for kind, colour in KINDS.items():
                own = kinds == kind
                error = 100 * (predicted[own] / 1e6 / ms[own] - 1)
                axis.plot(ms[own], error, ".", color=colour, markersize=2.5, label=kind, rasterized=True)
            s = made.scores[name]
            mark = "*" if name == made.picked else ""
            title = f"{name}{mark}: mean {s.mae:.1%}, worst decile {s.worst_decile:.1%}, bias {s.bias:+.1%}"
            axis.set_title(title, fontsize=7.5)
            axis.axhline(0, color="black", linewidth=0.8)
            beyond = int(np.count_nonzero(np.abs(predicted / 1e6 / ms - 1) > SHOWN))
            if beyond:
                axis.annotate(f"{beyond} beyond", (0.99, 0.94), xycoords="axes fraction", ha="right", fontsize=7)
            axis.set_xscale("log")
            axis.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axis.xaxis.set_major_formatter("{x:g}")
            axis.xaxis.set_minor_formatter(NullFormatter())
            axis.set_ylim(-100 * SHOWN, 100 * SHOWN)
        for axis in panels[2:]:
            axis.set_xlabel(f"{made.truth} step (ms)")
        for axis in panels[::2]:
            axis.set_ylabel("held-out error (%)")
        figure.suptitle(
            f"{made.profile.name}: predicted over {made.truth}, shapes held out in {FOLDS} folds (*: picked)"
        )
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=3, markerscale=4)
        return save_figure(figure, folder, RESIDUALS, rows)


def draw_deciles(made: Calibration, folder: Path) -> list[Path]:
    """Write mean error and bias by decile of the measured time."""
    rows = decile_rows(made)
    with new_figure(WIDE, 2.6) as figure:
        axes = figure.subplots(1, 2)
        for name in made.held_out:
            own = [r for r in rows if r["estimator"] == name]
            at = [r["decile"] for r in own]
            wide = 2.2 if name == made.picked else 1.2
            axes[0].plot(at, [100 * r["mae"] for r in own], "o-", markersize=3, linewidth=wide, label=name)
            axes[1].plot(at, [100 * r["bias"] for r in own], "o-", markersize=3, linewidth=wide, label=name)
        axes[0].set_ylabel("mean size of the error (%)")
        axes[0].set_ylim(bottom=0)
        axes[1].set_ylabel("bias (%)")
        axes[1].axhline(0, color="black", linewidth=0.8)
        for axis in axes:
            axis.set_xlabel(f"decile of the {made.truth} time")
        handles, labels = axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=4)
        return save_figure(figure, folder, DECILES, rows)


def markdown(made: Calibration, card: dict[str, Any]) -> str:
    """Return the report as text."""
    setting, frame = made.profile.setting, made.rows
    estimated = "**Estimated, from specifications; nobody measured these steps.** " if made.profile.estimated else ""
    lines = [
        f"# Calibration of {made.model.name}",
        "",
        f"{estimated}{setting['model']} ({setting['dtype']}, TP {setting['tensor_parallel']}) on {setting['device']}, "
        f"{setting['engine']} {setting['engine_version']}: {card['fit']['rows']} rows of {card['fit']['shapes']} "
        f"shapes, steps of {frame['duration_ns'].min() / 1e6:.3g} to {frame['duration_ns'].max() / 1e6:.4g} ms.",
        "",
        f"Made by `{card['command']}` from {card['source']}.",
        "",
        "## Errors on shapes held out",
        "",
        f"Shapes are split at random into {FOLDS} folds; errors are predicted ÷ {made.truth} − 1 of models that have "
        f"not seen the shape. Worst decile: mean size of the largest tenth. Falls: of {PAIRS:,} random pairs of steps "
        "with at most one prefill, how many have a shorter prediction for more work; policies rely on there being none."
        f" Of {PAIRS // 5:,} with several prefills it is a blemish, for nothing relies on it.",
        "",
        "| estimator | mean error | worst decile | worst | bias | falls | falls, several prefills | certified |",
        "|---|---|---|---|---|---|---|---|",
        *(_score_line(s, made.picked) for s in made.scores.values()),
        "",
        f"Picked: {made.picked}, {made.why}. Targets: {MOST_MAE:.0%} on average, {MOST_WORST_DECILE:.0%} in the worst "
        "decile.",
        "",
        *(f"- {s.estimator} is not certified: {p}." for s in made.scores.values() for p in s.problems),
        *_table_line(made),
        "",
        "## Margins of the picked model",
        "",
        *_margin_lines(made),
        "",
        "## Range",
        "",
        "| feature | from | to |",
        "|---|---|---|",
        *(f"| {c} | {card['range'][c][0]:,} | {card['range'][c][1]:,} |" for c in FEATURES),
        "",
        "Beyond it the model extrapolates, and warns once.",
        "",
        "## What to mind",
        "",
        *([f"- {caveat}." for caveat in card["caveats"]] or ["Nothing was flagged."]),
        *([f"- {int(made.profile.outlier.sum())} flagged rows were left out."] if made.profile.outlier.any() else []),
    ]
    return "\n".join(lines) + "\n"


def _score_line(s: Score, picked: str) -> str:
    name = f"**{s.estimator}**" if s.estimator == picked else s.estimator
    sure = "yes" if s.certified else "no"
    errors = f"{s.mae:.2%} | {s.worst_decile:.2%} | {s.worst:.1%} | {s.bias:+.2%}"
    return f"| {name} | {errors} | {s.falls} | {s.falls_several} | {sure} |"


def _table_line(made: Calibration) -> list[str]:
    repaired = made.scores["table"].repaired if "table" in made.scores else None
    if repaired is None:
        return []
    return [f"- The table's cumulative maximum along the chunk axis raised {repaired} entries."]


def _margin_lines(made: Calibration) -> list[str]:
    if made.coverage is None:
        return ["Not measured: too few rows."]
    c = made.coverage
    return [
        f"Shares of rows that take no longer than prediction and P99 margin, mean of {c.splits} random splits by shape "
        f"({HELD_OUT:.0%} of the shapes tested, {HELD_OUT:.0%} of the others for the margin):",
        "",
        "| margin | covers |",
        "|---|---|",
        f"| split-conformal (`margin=c99`), on average {c.margin:.1%} of the prediction | {c.conformal:.2%} "
        f"(least of a split {c.conformal_least:.2%}) |",
        f"| residual table by batch and chunk (`margin=p99`) | {c.residual_table:.2%} |",
    ]
