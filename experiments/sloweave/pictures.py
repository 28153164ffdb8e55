"""Tables 3 and 4 and Figures 4 and 5 of SLOWeave as pictures, ours beside the paper's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from experiments.plotting import BLUE, GREEN, ORANGE, PURPLE, SKY, WIDE, draw_table, new_figure, save_figure
from experiments.sloweave.grid import MAIN_TARGET_MS, NAMES, SLOWEAVE, TARGETS_MS, WORKLOADS, Grid
from experiments.sloweave.reproduction import table3_rows, table4_rows
from experiments.tables import Rows

COLOURS = {"Full": ORANGE, "Fixed-64": PURPLE, "Fixed-256": SKY, "Fixed-1024": GREEN, "SLOWeave": BLUE}


def draw_table3(grid: Grid, folder: Path) -> list[Path]:
    """Write Table 3: P99 TTFT, P99 TPOT, attainment and goodput at 25 ms."""
    rows = table3_rows(grid)
    metrics = {
        "ttft_p99_ms": ("P99 TTFT (ms)", "{:.0f}"),
        "tpot_p99_ms": ("P99 TPOT (ms)", "{:.1f}"),
        "slo_percent": ("SLO (%)", "{:.1f}"),
        "goodput": ("goodput (req/s)", "{:.1f}"),
    }
    header = ["workload", "policy", *(f"{name}\nours [paper]" for name, _ in metrics.values())]
    cells = [
        [row["workload"], row["policy"], *(_ours_and_paper(row, m, form) for m, (_, form) in metrics.items())]
        for row in rows
    ]
    title = f"Table 3: {MAIN_TARGET_MS} ms TPOT objective, mean ± 95 % half-width of {len(grid.seeds)} seeds"
    return draw_table(header, cells, title, folder, "table3", rows)


def draw_table4(grid: Grid, folder: Path) -> list[Path]:
    """Write Table 4: goodput of SLOWeave over that of the strongest static policy."""
    rows = table4_rows(grid)
    header = ["workload", *(f"{t} ms\nours (95 %) [paper]" for t in TARGETS_MS)]
    by = {(r["workload"], r["tpot_objective_ms"]): r for r in rows}
    cells = [[w, *(_ratio(by[w, t]) for t in TARGETS_MS)] for w in WORKLOADS]
    title = f"Table 4: SLOWeave's goodput over the strongest static policy's, {len(grid.seeds)} seeds"
    return draw_table(header, cells, title, folder, "table4", rows)


def draw_figure4(grid: Grid, folder: Path) -> list[Path]:
    """Write Figure 4: share of requests that meet both objectives at 25 ms, the paper's values as marks."""
    rows = [r for r in table3_rows(grid) if r["policy"] != "Fixed-64"]
    names = [name for name in NAMES.values() if name != "Fixed-64"]
    with new_figure(WIDE, 2.6) as figure:
        axis = figure.subplots()
        width = 0.8 / len(names)
        for k, name in enumerate(names):
            own = [r for r in rows if r["policy"] == name]
            at = [i + (k - (len(names) - 1) / 2) * width for i in range(len(own))]
            mean = [r["slo_percent"] for r in own]
            error = [r["slo_percent_hi"] - r["slo_percent"] for r in own]
            axis.bar(at, mean, width, color=COLOURS[name], label=name)
            axis.errorbar(at, mean, yerr=error, fmt="none", color="black", linewidth=0.9)
            axis.plot(at, [r["slo_percent_paper"] for r in own], "D", color="black", mfc="white", markersize=4)
        axis.plot([], [], "D", color="black", mfc="white", markersize=4, label="paper")
        axis.set_xticks(range(len(WORKLOADS)), WORKLOADS)
        axis.grid(False, axis="x")
        axis.set_ylim(bottom=0)
        axis.set_ylabel("SLO attainment (%)")
        axis.set_title(f"Figure 4: SLO attainment at {MAIN_TARGET_MS} ms TPOT, {len(grid.seeds)} seeds, 95 % intervals")
        figure.legend(loc="outside lower center", ncols=len(names) + 1)
        return save_figure(figure, folder, "figure4", rows)


def draw_figure5(grid: Grid, folder: Path) -> list[Path]:
    """Write Figure 5: goodput over the TPOT objective on mixed and long; bands are 95 % intervals."""
    from experiments.sloweave.reproduction import paper_numbers
    from sim.stats import t_interval

    shown = ("fcfs+full", "fcfs+fixed:chunk=1024", SLOWEAVE)
    paper = {(n.workload, n.tpot_ms, n.policy): n.value for n in paper_numbers() if n.metric == "goodput"}
    rows: Rows = []
    with new_figure(WIDE, 2.7) as figure:
        axes = figure.subplots(1, 2)
        for axis, workload in zip(axes, ("mixed", "long"), strict=True):
            for policy in shown:
                name = NAMES[policy]
                intervals = [t_interval(grid.per_seed(workload, t, policy, "goodput")) for t in TARGETS_MS]
                axis.plot(TARGETS_MS, [i.mean for i in intervals], "o-", color=COLOURS[name], label=name)
                axis.fill_between(
                    TARGETS_MS, [i.lo for i in intervals], [i.hi for i in intervals], color=COLOURS[name], alpha=0.18
                )
                printed = [(t, paper[workload, t, policy]) for t in TARGETS_MS if (workload, t, policy) in paper]
                axis.plot(*zip(*printed, strict=True), "D", color=COLOURS[name], mfc="white", markersize=5)
                rows += [
                    {
                        "workload": workload,
                        "policy": name,
                        "tpot_objective_ms": t,
                        "goodput": i.mean,
                        "goodput_lo": i.lo,
                        "goodput_hi": i.hi,
                        "goodput_paper": paper.get((workload, t, policy)),
                    }
                    for t, i in zip(TARGETS_MS, intervals, strict=True)
                ]
            axis.set_xticks(TARGETS_MS)
            axis.set_ylim(bottom=0)
            axis.set_xlabel("TPOT objective (ms)")
            axis.set_title(workload)
        axes[0].set_ylabel("goodput (requests/s)")
        axes[0].plot([], [], "D", color="black", mfc="white", markersize=5, label="printed in the paper")
        figure.suptitle(f"Figure 5: goodput over the TPOT objective, {len(grid.seeds)} seeds")
        handles, labels = axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=4)
        return save_figure(figure, folder, "figure5", rows)


def draw_reproduction(rows: Rows, folder: Path) -> list[Path]:
    """Write the reproduction table: every number of the paper, ours, their ratio and the verdict."""
    header = ["source", "workload", "policy", "TPOT\n(ms)", "metric", "paper", "ours", "interval", "ratio", "verdict"]
    cells = [
        [
            row["source"],
            row["workload"],
            row["policy"],
            str(row["tpot_objective_ms"]),
            row["metric"],
            f"{row['paper']:g}",
            _number(row["ours"]),
            f"{_number(row['interval_lo'])} to {_number(row['interval_hi'])}",
            "-" if row["ratio"] is None else f"{row['ratio']:.2f}",
            row["verdict"],
        ]
        for row in rows
    ]
    title = "Reproduction: does the paper's mean of 5 seeds lie where ours would, at 95 %?"
    return draw_table(header, cells, title, folder, "reproduction", rows, width=1.25 * WIDE)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _ours_and_paper(row: dict[str, Any], metric: str, form: str) -> str:
    half = row[f"{metric}_hi"] - row[metric]
    paper = row[f"{metric}_paper"]
    return f"{form.format(row[metric])} ± {form.format(half)} [{'-' if paper is None else form.format(paper)}]"


def _ratio(row: dict[str, Any]) -> str:
    return (
        f"{row['ratio']:.2f} ({row['ratio_lo']:.2f} to {row['ratio_hi']:.2f}) [{row['ratio_paper']:.2f}]\n"
        f"over {row['strongest_static']}"
    )
