"""The experiments that the PrefillOnly paper left out, each with its tables and its picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from experiments.plotting import BLUE, ORANGE, WIDE, new_figure, save_figure
from experiments.prefillonly.decisions import decision_table
from experiments.prefillonly.hitrates import HIT_RATES, ORDERING
from experiments.prefillonly.routing import ROUTING
from experiments.prefillonly.scaling import draw_scaling
from experiments.prefillonly.stores import SPLIT, SUFFIXES
from experiments.prefillonly.variations import BURSTS, ONE_MODEL, SHARE, SHARING, TAILS

STUDIES = (ORDERING, HIT_RATES, ONE_MODEL, BURSTS, SHARING, SHARE, TAILS, SUFFIXES, SPLIT, ROUTING)

LEFT_OUT_SEEDS = range(5)


def run_left_out(folder: Path, seeds: Sequence[int] = LEFT_OUT_SEEDS, jobs: int | None = None) -> list[Path]:
    """Run every experiment and write its files into ``folder``.

    Args:
        folder: for the results.
        seeds: of the workloads.
        jobs: processes; by default all cores.

    Raises:
        OSError: if something cannot be written.
    """
    files = [path for study in STUDIES for path in study.run(folder, seeds, jobs)]
    return [*files, *draw_scaling(folder, seeds, jobs), *draw_decisions(folder)]


def draw_decisions(folder: Path, users: Sequence[int] = (10, 50, 200, 400), decisions: int = 60) -> list[Path]:
    """Write what a scheduling decision takes over the depth of the queue, in time measured on this machine.

    Raises:
        OSError: if something cannot be written.
    """
    rows = decision_table(users, decisions=decisions)
    regimes = list(dict.fromkeys(row["regime"] for row in rows))
    with new_figure(WIDE, 2.8) as figure:
        axes = figure.subplots(1, len(regimes), sharey=True, squeeze=False)[0]
        for axis, regime in zip(axes, regimes, strict=True):
            for order, line in (("by user", "--"), ("by turns", "-")):
                own = [row for row in rows if (row["order"], row["regime"]) == (order, regime)]
                depth = [row["waiting"] for row in own]
                for metric, name, colour in (("rescan_ns", "full rescan", ORANGE), ("heap_ns", "heap", BLUE)):
                    took = [row[metric] / 1e6 for row in own]
                    axis.plot(depth, took, f"o{line}", color=colour, label=f"{name}, {order}")
            axis.set_title({"pool": "vLLM's pool", "store": "PrefillOnly's store"}[regime])
            axis.set_xscale("log")
            axis.set_yscale("log")
            axis.yaxis.set_major_formatter("{x:g}")
            axis.set_xlabel("waiting requests")
        axes[0].set_ylabel("one decision (ms)")
        handles, labels = axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=4)
        figure.suptitle("Scheduler time per decision, measured on this machine")
        return save_figure(figure, folder, "left-out-decisions", rows)
