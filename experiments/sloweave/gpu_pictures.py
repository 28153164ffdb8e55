"""Table 2 and Figure 3 of SLOWeave as pictures and as text, ours beside the paper's."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments.plotting import BLUE, GREEN, ORANGE, PURPLE, SKY, WIDE, draw_table, new_figure, save_figure
from experiments.sloweave.gpu_blocks import OBJECTIVES, PRINTED, SCALED, Block
from experiments.sloweave.gpu_order import HOLDS, order_rows, table2_rows
from experiments.sloweave.gpu_runs import DEFAULT, FIXED, OURS, PRINTED_CHUNK, SHARED, GpuRuns
from experiments.tables import Rows

COLOURS = {DEFAULT: ORANGE, FIXED: GREEN, PRINTED_CHUNK: SKY, SHARED: PURPLE, OURS: BLUE}

NAMES = {
    DEFAULT: "runtime default",
    FIXED: "fixed chunk, tuned",
    PRINTED_CHUNK: "fixed chunk, the paper's",
    SHARED: "shared budget, tuned",
    OURS: "SLOWeave",
}

COLUMNS = {
    "ttft_p99_ms": ("P99 TTFT (ms)", "{:,.0f}"),
    "tpot_p99_ms": ("P99 TPOT (ms)", "{:.1f}"),
    "throughput": ("throughput", "{:.2f}"),
    "slo_percent": ("SLO (%)", "{:.1f}"),
    "goodput": ("goodput", "{:.2f}"),
    "joules_per_valid": ("J / valid", "{:,.1f}"),
}


def draw_table2(rows: Rows, folder: Path, seeds: int) -> list[Path]:
    """Write Table 2: one row per target, block and policy."""
    header = ["block", "policy", *(f"{name}\nours [paper]" for name, _ in COLUMNS.values())]
    cells = []
    for row in rows:
        block = str(row["block"]) + ("" if row["target"] == SCALED else "\n(25 ms by the clock)")
        cells.append([block, str(row["label"]), *(_both(row, m, form) for m, (_, form) in COLUMNS.items())])
    title = f"Table 2: mean ± 95 % half-width of {seeds} seeds, in each GPU's own time; the paper's rates differ"
    return draw_table(header, cells, title, folder, "table2", rows, width=1.35 * WIDE)


def _both(row: dict[str, Any], metric: str, form: str) -> str:
    value, hi, paper = row[metric], row[f"{metric}_hi"], row[f"{metric}_paper"]
    ours = "none" if value is None else form.format(value) + (f" ± {form.format(hi - value)}" if hi is not None else "")
    return f"{ours}\n[{'-' if paper is None else f'{paper:g}'}]"


def draw_figure3(rows: Rows, blocks: Sequence[Block], folder: Path, seeds: int) -> list[Path]:
    """Write Figure 3: goodput and valid requests per joule, over SLOWeave's, the paper's as marks."""
    shown: Rows = []
    panels = (("goodput", "goodput ÷ SLOWeave's"), ("joules_per_valid", "valid requests per J ÷ SLOWeave's"))
    with new_figure(WIDE, 5.0) as figure:
        axes = figure.subplots(len(panels), len(OBJECTIVES), sharey="row", squeeze=False)
        for line, (metric, title) in zip(axes, panels, strict=True):
            for axis, target in zip(line, OBJECTIVES, strict=True):
                for at, block in enumerate(blocks):
                    own = {r["role"]: r for r in rows if (r["target"], r["block"]) == (target, block.name)}
                    shown += _bars(axis, at, own, metric)
                axis.axhline(1, color="black", linewidth=0.7)
                axis.set_xticks(range(len(blocks)), [b.name.replace(", ", "\n") for b in blocks], fontsize=7.5)
                axis.grid(False, axis="x")
                if metric == "goodput":
                    axis.set_title(OBJECTIVES[target], fontsize=8.5)
            line[0].set_ylabel(title, fontsize=8)
        for role, colour in COLOURS.items():
            axes[0][0].bar([0], [0], color=colour, label=NAMES[role])
        axes[0][0].plot([], [], "D", color="black", mfc="white", markersize=4, label="paper")
        figure.suptitle(f"Figure 3: policies over SLOWeave, means of {seeds} seeds, 95 % intervals")
        handles, labels = axes[0][0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=3)
        return save_figure(figure, folder, "figure3", shown)


def _bars(axis: Any, at: int, own: dict[str, dict[str, Any]], metric: str) -> Rows:
    """Draw a block's bars; intervals are those of the policy's own mean."""
    rows: Rows = []
    roles = [role for role in COLOURS if role in own]
    width = 0.8 / len(roles)
    for k, role in enumerate(roles):
        x = at + (k - (len(roles) - 1) / 2) * width
        values = {}
        for name, end in (("ratio", ""), ("lo", "_lo"), ("hi", "_hi")):
            values[name] = _over(own[role][f"{metric}{end}"], own[OURS][metric], metric)
        paper = _over(own[role][f"{metric}_paper"], own[OURS][f"{metric}_paper"], metric)
        mean = values["ratio"] or 0.0
        axis.bar([x], [mean], width, color=COLOURS[role])
        if values["lo"] is not None and values["hi"] is not None:
            low, high = sorted((values["lo"], values["hi"]))
            axis.errorbar([x], [mean], yerr=[[max(mean - low, 0)], [max(high - mean, 0)]], color="black", linewidth=0.9)
        if paper is not None:
            axis.plot([x], [paper], "D", color="black", mfc="white", markersize=4)
        about = {c: own[role][c] for c in ("target", "block", "role", "label")}
        rows.append({**about, "metric": metric, **values, "paper": paper})
    return rows


def _over(value: float | None, ours: float | None, metric: str) -> float | None:
    """Return a value over SLOWeave's; joules the other way round, so that more is better and no valid request is 0."""
    if metric == "goodput":
        return None if value is None or not ours else value / ours
    return None if not value or not ours else ours / value


def write_markdown(runs: GpuRuns) -> str:
    """Return the whole comparison as text: what holds, what does not and why, how it was scaled, all numbers."""
    rows, orders = table2_rows(runs), order_rows(runs)
    claimed = [r for r in orders if r["in_paper"]]
    held = [r for r in claimed if r["verdict"] == HOLDS]
    lines = [
        "# SLOWeave on GPUs: Table 2 and Figure 3, the paper's and ours",
        "",
        f"{runs.seeds} seeds, the same for every policy; steps take what fits of measured vLLM kernels predict, and "
        "policies believe just that. KV memory is what the weights leave. Joules are of the GPUs that serve the model, "
        "estimated from idle power, utilisation and the data sheet's peak; the power that the paper's numbers imply is "
        "that of a whole node.",
        "",
        f"Of {len(claimed)} comparisons that the paper's order makes (two targets, three blocks, goodput and energy), "
        f"{len(held)} hold: the paired 95 % interval over seeds excludes zero in its sense.",
        "",
        "## What does not hold, and why",
        "",
        *([_line(r) for r in claimed if r["verdict"] != HOLDS] or ["Everything holds."]),
        "",
        "## What the paper did not compare",
        "",
        "Its Table 2 has no budget that several prefills share, tuned as Sarathi's is. SLOWeave against that:",
        "",
        *(_line(r) for r in orders if not r["in_paper"]),
        "",
        "## How the runs were scaled",
        "",
        "Absolute numbers cannot be the paper's: at its rates and the simulator's lengths prefill alone would need "
        "three times the peak of an A100, and one and a half times that of eight H100. All requests at hand at once, "
        "each prefilled whole, give the capacity of the paper's cost model and of the GPU; their ratio stretches "
        "arrivals and TTFT objectives, so that offered over capacity is the simulator's. The TPOT objective of 25 ms "
        "is stretched too, or left as it is by the clock, where the paper's chunk of 1,024 takes longer than that.",
        "",
        "| block | capacity, paper's model (req/s) | capacity, GPU | time × | offered (req/s) | offered ÷ capacity | "
        "objectives (ms) |",
        "|---|---|---|---|---|---|---|",
        *(
            f"| {b.name} | {b.paper_capacity:.1f} | {b.capacity:.2f} | {b.scale:.2f} | {b.rate:.2f} | {b.load:.2f} | "
            f"{b.objectives(SCALED)}; {b.objectives(PRINTED)} |"
            for b in runs.experiment.blocks
        ),
        "",
        *_beyond(runs),
        "## Order",
        "",
        "| target | block | measure | better | worse | means | difference | verdict |",
        "|---|---|---|---|---|---|---|---|",
        *(
            f"| {OBJECTIVES[r['target']]} | {r['block']} | {r['metric']} | {r['better']} | {r['worse']} | "
            f"{r['better_mean']:.3g}, {r['worse_mean']:.3g} | {r['difference']:.3g} ({r['lo']:.3g} to {r['hi']:.3g}) | "
            f"{r['verdict']} |"
            for r in orders
        ),
        "",
        "## All numbers, ours and the paper's in brackets",
        "",
        "| target | block | policy | " + " | ".join(name for name, _ in COLUMNS.values()) + " |",
        "|---" * (3 + len(COLUMNS)) + "|",
        *(
            f"| {OBJECTIVES[r['target']]} | {r['block']} | {r['label']} | "
            + " | ".join(_both(r, m, form).replace("\n", " ") for m, (_, form) in COLUMNS.items())
            + " |"
            for r in rows
        ),
    ]
    return "\n".join(lines) + "\n"


def _line(r: dict[str, Any]) -> str:
    return (
        f"- {r['block']}, {OBJECTIVES[r['target']]}, {r['metric']}: {r['better']} over {r['worse']} {r['verdict']}, "
        f"{r['difference']:+.3g} ({r['lo']:.3g} to {r['hi']:.3g}){'; ' + r['why'] if r['why'] else ''}."
    )


def _beyond(runs: GpuRuns) -> list[str]:
    found = sorted({(r["block"], r["policy"]) for r in runs.rows if r["beyond"]})
    preempted = sorted({(r["block"], r["policy"]) for r in runs.rows if r["preemptions"]})
    lines = []
    if found:
        says = next(str(r["beyond"]) for r in runs.rows if r["beyond"])
        lines += [f"Some steps were larger than those that models were fitted to, like: {says.split(';')[0]}.", ""]
    if preempted:
        lines += [
            "Requests were preempted for want of KV blocks: " + "; ".join(" ".join(p) for p in preempted) + ".",
            "",
        ]
    return lines
