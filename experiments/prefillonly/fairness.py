"""Figure 11 of PrefillOnly: latency over λ, for three ways in which requests can come (the paper has one)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments.plotting import BLUE, GREEN, ORANGE, RED, WIDE, new_figure, save_figure
from experiments.prefillonly.bench import (
    MODES,
    PERCENTS,
    POST,
    Point,
    aggregate,
    arriving,
    at_once,
    differences,
    grouped,
    run_all,
    runs_of,
    saturation,
)
from experiments.prefillonly.systems import SETUPS, WORKLOADS, deploy
from experiments.tables import Rows, csv_bytes
from sim.stats import t_interval
from sim.store import atomic_write

LAMS = (0, 200, 500, 2000)
"""Tokens per second. The paper's figure has 0, 200 and 2000; 500 is its default."""

SETUP = "h100"
"""The paper does not say which; its tails of 55 to 65 s are those of this one."""

MULTIPLE = 2.0
"""The rate in units of the throughput with everything there at once: with less, nobody waits and λ decides little."""

COLOURS = dict(zip(LAMS, (BLUE, GREEN, ORANGE, RED), strict=True))

COMPARED = ("mean_s", "p50_s", "p99_s")

SECONDS = {"users": 60.0, "requests": 150.0, "spread": 60.0}
"""How far the axes go."""


def fairness_runs(seeds: Sequence[int], jobs: int | None = None) -> Rows:
    """Run every λ and arrival mode; each row has ``mode``, ``lam``, ``rate``, the metrics and ``percentiles_s``."""
    system = deploy(SETUPS[SETUP], "prefillonly", WORKLOADS[POST])
    rate = MULTIPLE * saturation(system, at_once(), seeds, jobs)
    points: list[Point] = [
        ({"mode": mode, "lam": lam, "rate": rate}, system.with_policy(f"prefillonly:lam={lam}"), arriving(mode, rate))
        for mode in MODES
        for lam in LAMS
    ]
    return run_all(runs_of(points, seeds, curve=True), jobs)


def changes(rows: Rows) -> Rows:
    """Return what each λ changes from the one before it: mean, median and P99, paired by seed."""
    before = dict(zip(LAMS[1:], LAMS, strict=False))
    return differences(rows, ["mode"], "lam", lambda lam: before.get(lam, lam), COMPARED)


def curve_rows(rows: Rows) -> Rows:
    """Return the distributions: each percentile of latency in seconds, its mean over seeds and 95 % interval."""
    result = []
    for (mode, lam), group in grouped(rows, ["mode", "lam"]).items():
        for percent in PERCENTS:
            mean, lo, hi = t_interval([row["percentiles_s"][percent] for row in group])
            result.append({"mode": mode, "lam": lam, "percent": percent, "latency_s": mean, "lo": lo, "hi": hi})
    return result


def draw_figure11(folder: Path, seeds: Sequence[int], jobs: int | None = None) -> list[Path]:
    """Write Figure 11, its means as ``figure11-summary.csv`` and the paired changes as ``figure11-paired.csv``.

    Raises:
        OSError: if they cannot be written.
    """
    rows = fairness_runs(seeds, jobs)
    tables = {"figure11-summary": aggregate(rows, ["mode", "lam", "rate"]), "figure11-paired": changes(rows)}
    files = []
    for stem, table in tables.items():
        files.append(folder / f"{stem}.csv")
        atomic_write(files[-1], csv_bytes(table))
    curves = curve_rows(rows)
    with new_figure(WIDE, 2.6) as figure:
        axes = figure.subplots(1, len(MODES), sharey=True)
        for axis, (mode, title) in zip(axes, MODES.items(), strict=True):
            for lam in LAMS:
                _line(axis, [row for row in curves if (row["mode"], row["lam"]) == (mode, lam)], lam)
            axis.set_title(title)
            axis.set_xlim(0, SECONDS[mode])
            axis.set_ylim(0, 100)
            axis.set_xlabel("latency (s)")
        axes[0].set_ylabel("requests (%)")
        handles, labels = axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=len(LAMS))
        figure.suptitle(f"Figure 11: latency over λ, {SETUPS[SETUP].title}, {rows[0]['rate']:.3g} requests/s")
        return [*files, *save_figure(figure, folder, "figure11", curves)]


def _line(axis: Any, curve: Rows, lam: int) -> None:
    percent = [row["percent"] for row in curve]
    colour = COLOURS[lam]
    axis.plot([row["latency_s"] for row in curve], percent, color=colour, label=f"λ = {lam}")
    if curve[0]["lo"] is not None:
        axis.fill_betweenx(percent, [r["lo"] for r in curve], [r["hi"] for r in curve], color=colour, alpha=0.15)
