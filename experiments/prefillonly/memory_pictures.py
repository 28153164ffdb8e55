"""What PrefillOnly says about memory as pictures: Table 2 and Figures 3, 4 and 10."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from experiments.plotting import BLUE, NARROW, SKY, WIDE, draw_table, new_figure, save_figure
from experiments.prefillonly.measured import TRACED_TITLE, figure3_rows
from experiments.prefillonly.pictures import NAMES
from experiments.prefillonly.table2 import figure4_rows, figure10_rows, table2_rows

TRACED = {
    "paged": "whole prompt, all KV kept",
    "chunked": "chunked prefill",
    "discard": "whole prompt, KV discarded",
    "hybrid": "hybrid prefilling",
}


def draw_figure3(folder: Path) -> list[Path]:
    """Write Figure 3: what is alive over one prefill, a panel for each way of prefilling."""
    rows = figure3_rows()
    with new_figure(WIDE, 2.3) as figure:
        axes = figure.subplots(1, len(TRACED), sharey=True)
        for axis, (mode, title) in zip(axes, TRACED.items(), strict=True):
            own = [r for r in rows if r["mode"] == mode]
            share = [100 * r["share"] for r in own]
            high = [r["high_gib"] for r in own]
            axis.fill_between(share, [r["low_gib"] for r in own], high, color=BLUE, linewidth=0.3)
            axis.fill_between(share, [r["low_gib"] for r in own], color=SKY, alpha=0.4, linewidth=0)
            axis.axhline(max(high), color="0.5", linewidth=0.7, linestyle=":")
            axis.annotate(
                f"{max(high):.2f} GiB", (50, max(high)), (0, 2), textcoords="offset points", ha="center", va="bottom"
            )
            axis.set_xlim(0, 100)
            axis.set_title(title, fontsize=8)
            axis.set_xlabel("operators run (%)")
        axes[0].set_ylim(0, 1.15 * max(r["high_gib"] for r in rows))
        axes[0].set_ylabel("alive beside the weights (GiB)")
        figure.suptitle(f"Figure 3: {TRACED_TITLE}, tensors of the hybrid executor")
        return save_figure(figure, folder, "figure3", rows)


def draw_figure4(folder: Path) -> list[Path]:
    """Write Figure 4: the tensors of one MLP over 32,768 tokens, and how many times one layer's KV they are."""
    rows = [{**r, "of_layer_kv": float(r["of_layer_kv"])} for r in figure4_rows()]
    with new_figure(NARROW * 1.35, 1.7) as figure:
        axis = figure.subplots()
        gib = [r["bytes"] / 2**30 for r in rows]
        axis.barh(range(len(rows)), gib, height=0.6, color=BLUE)
        for k, row in enumerate(rows):
            paper = "" if row["paper"] is None else f" [{row['paper']}×]"
            axis.annotate(
                f"{row['of_layer_kv']:g}× one layer's KV{paper}",
                (gib[k], k),
                (4, 0),
                textcoords="offset points",
                va="center",
            )
        axis.set_yticks(range(len(rows)), [r["tensor"] for r in rows])
        axis.invert_yaxis()
        axis.grid(False, axis="y")
        axis.set_xlim(0, 2.4 * max(gib))
        axis.set_xlabel("GiB")
        figure.suptitle("Figure 4: MLP of Llama-3.1-8B, 32,768 tokens [paper]")
        return save_figure(figure, folder, "figure4", rows)


def draw_figure10(folder: Path) -> list[Path]:
    """Write Figure 10: what each part of hybrid prefilling adds to the maximum input length."""
    rows = figure10_rows()
    bars = (
        ("ours", "times_paged", BLUE, "memory model"),
        ("measured", "measured_times_paged", SKY, "measured (fake tensors)"),
    )
    height = 0.38
    with new_figure(NARROW * 1.35, 3.1) as figure:
        axis = figure.subplots()
        for column, times, colour, label in bars:
            at = [k + (-0.5 if column == "ours" else 0.5) * height for k in range(len(rows))]
            axis.barh(at, [r[column] for r in rows], height=height, color=colour, label=label)
            for y, row in zip(at, rows, strict=True):
                paper = "" if row["paper"] in (None, 1.0) or column != "ours" else f" [{row['paper']:g}×]"
                axis.annotate(
                    f"{row[times]:.1f}×{paper}", (row[column], y), (4, 0), textcoords="offset points", va="center"
                )
        axis.set_yticks(range(len(rows)), [r["variant"] for r in rows])
        axis.invert_yaxis()
        axis.grid(False, axis="y")
        axis.set_xlim(0, 1.25 * max(r[column] for r in rows for column, *_ in bars))
        axis.locator_params(axis="x", nbins=4)
        axis.xaxis.set_major_formatter("{x:,.0f}")
        axis.set_xlabel("maximum input length (tokens)")
        figure.suptitle("Figure 10: A100 40 GB, Qwen-32B FP8 [paper]")
        figure.legend(loc="outside lower center", ncols=len(bars))
        return save_figure(figure, folder, "figure10", rows)


def draw_table2(folder: Path) -> list[Path]:
    """Write Table 2: maximum input lengths, ours beside the paper's and what is measured, and both workloads' ticks."""
    rows = table2_rows()
    gpus = list(dict.fromkeys(r["gpu"] for r in rows))
    by = {(r["system"], r["gpu"]): r for r in rows}
    header = ["system", *(f"{gpu}\nours [paper] ticks\nmeasured (fake tensors)" for gpu in gpus)]
    cells = [[NAMES[s], *(_length(by[s, g]) for g in gpus)] for s in NAMES]
    within = sum(r["within"] for r in rows)
    title = f"Table 2: maximum input length in tokens; {within} of {len(rows)} within 20 %; ticks: post / credit"
    return draw_table(header, cells, title, folder, "table2", rows)


def _length(row: dict[str, Any]) -> str:
    ticks = "/".join("yes" if row[w] else "no" for w in ("wl1_ours", "wl2_ours"))
    mark = "" if row["within"] else " *"
    measured = "" if row["measured"] is None else f"\n{row['measured']:,}"
    return f"{row['ours']:,} [{row['paper']:,}] {ticks}{mark}{measured}"
