"""Everything of PrefillOnly's evaluation that can be regenerated, into one folder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.prefillonly.explain import explain_rows
from experiments.prefillonly.fairness import draw_figure11
from experiments.prefillonly.grid import CREDIT, LONGEST, MULTIPLES, POST, SHUFFLED, TITLES, run_grid
from experiments.prefillonly.memory_pictures import draw_figure3, draw_figure4, draw_figure10, draw_table2
from experiments.prefillonly.pictures import (
    NAMES,
    draw_figure8,
    draw_figure9,
    draw_latency,
    draw_ratios,
    ratio_text,
)
from experiments.prefillonly.reproduction import claim_verdicts, counted, exact_rows, reading_rows
from experiments.prefillonly.sustained import low_load_rows, ratio_rows
from experiments.prefillonly.systems import SETUPS
from experiments.prefillonly.table2 import contradictions, free_constants
from experiments.prefillonly.toy import draw_figure5
from experiments.tables import Rows, csv_bytes
from sim.store import atomic_write

SEEDS = range(10)
"""Fixed beforehand."""


@dataclass(frozen=True)
class Regenerated:
    """What was written, the ratios, and the paper's numbers beside ours."""

    files: list[Path]
    ratios: Rows
    numbers: Rows


def regenerate(
    folder: Path,
    *,
    seeds: Sequence[int] = SEEDS,
    setups: Sequence[str] = tuple(SETUPS),
    workloads: Sequence[str] = tuple(LONGEST),
    multiples: Sequence[float] = MULTIPLES,
    limit: int | None = None,
    figure11: bool = True,
    resume: bool = False,
    jobs: int | None = None,
    progress: bool = False,
) -> Regenerated:
    """Run the grid into ``folder/grid`` and write Table 2, Figures 3 to 11, the ratios and the reproduction.

    Args:
        folder: for everything.
        seeds: of the workloads.
        setups: names of set-ups.
        workloads: of :data:`experiments.prefillonly.grid.LONGEST`.
        multiples: rates in units of x; with x/2, x and 2x, where the ratios are read.
        limit: so many requests of each workload; all of them by default.
        figure11: whether to run Figure 11 too.
        resume: go on in a folder that exists.
        jobs: processes.
        progress: draw bars on stderr.

    Raises:
        ConfigError: if the folder exists and ``resume`` is false.
        OSError: if something cannot be written.
    """
    run: dict[str, Any] = {"resume": resume, "jobs": jobs, "progress": progress}
    grid = run_grid(folder / "grid", seeds, setups=setups, workloads=workloads, multiples=multiples, limit=limit, **run)
    why = explain_rows(folder / "grid" / "variants", seeds, setups=setups, limit=limit, **run)
    ratios, numbers = ratio_rows(grid), [*exact_rows(), *reading_rows(grid)]
    low = low_load_rows(grid)
    paper = [w for w in (POST, CREDIT) if w in workloads]
    shuffled = [w for w in (SHUFFLED,) if w in workloads]
    files = [
        *draw_table2(folder),
        *draw_figure3(folder),
        *draw_figure4(folder),
        *draw_figure5(folder),
        *draw_latency(grid, folder, "figure6", "Figure 6: mean latency", "jct_mean_ms", paper),
        *draw_latency(grid, folder, "figure7", "Figure 7: P99 latency", "jct_p99_ms", paper),
        *draw_figure8(grid, folder, numbers),
        *draw_figure9(grid, folder),
        *draw_figure10(folder),
        *draw_ratios(ratios, folder),
    ]
    if shuffled:
        for stem, title, metric in (
            ("figure6-shuffled", "Mean latency, requests shuffled", "jct_mean_ms"),
            ("figure7-shuffled", "P99 latency, requests shuffled", "jct_p99_ms"),
        ):
            files += draw_latency(grid, folder, stem, title, metric, shuffled)
    if figure11:
        files += draw_figure11(folder, seeds, jobs)
    tables = {"reproduction": numbers, "low-load": low, "variants": why}
    for stem, rows in tables.items():
        files.append(folder / f"{stem}.csv")
        atomic_write(files[-1], csv_bytes([{k: v for k, v in row.items() if k != "point"} for row in rows]))
    files.append(folder / "reproduction.md")
    atomic_write(files[-1], _markdown(numbers, ratios, low, why, seeds).encode())
    return Regenerated(files, ratios, numbers)


def _markdown(numbers: Rows, ratios: Rows, low: Rows, why: Rows, seeds: Sequence[int]) -> str:
    """Return everything as text, what differs first."""
    different = [row for row in numbers if row["verdict"] == "differs"]
    claims = claim_verdicts(ratios)
    lines = [
        "# PrefillOnly's numbers, the paper's and ours",
        "",
        f"Seeds {seeds[0]} to {seeds[-1]}. The paper has one run and no intervals; most of its numbers here are read "
        "off pictures. A number agrees where our 95 % interval comes within 20 % of it. "
        f"{len(numbers) - len(different)} of {len(numbers)} agree.",
        "",
        "## 1.4 to 4.0 times the QPS",
        "",
        "The rate that PrefillOnly sustains over the baseline's, at the latency that PrefillOnly has at x, its "
        "throughput with the whole dataset at once. Curves, levels and intervals are defined in "
        "`experiments/prefillonly/sustained.py`; other levels are in `ratios.csv`. A system that cannot hold the "
        "prompts is not run. By kind of arrival, how many ratios lie where against the paper's range (unclear: the "
        "interval overlaps one of its ends). Ratios over pipeline parallelism hang on whole prompts, which is how "
        "Table 2 says that the paper's prefilled: by chunks it is much faster on post recommendation (variants below):",
        "",
        *(
            f"- {title}: {counted([r for r in claims if r['workload'] == workload])}"
            for workload, title in TITLES.items()
        ),
        "",
        "| set-up | workload | baseline | latency | level (s) | ratio | against 1.4 to 4.0 |",
        "|---|---|---|---|---|---|---|",
        *(
            f"| {r['setup']} | {TITLES[r['workload']]} | {NAMES[r['system']]} | {r['metric']} | {r['level_s']:.3g} | "
            f"{ratio_text(r)} | {r['verdict']} |"
            for r in claims
        ),
        "",
        "## Where ratios and differences come from: throughput with the whole dataset at once",
        "",
        "| workload | set-up | variant | KV memory (tokens) | throughput (requests/s) | tokens found in the cache |",
        "|---|---|---|---|---|---|",
        *(
            f"| {TITLES[r['workload']]} | {r['setup']} | {r['variant']} | {r['cache_tokens']:,} | "
            f"{_interval(r, 'throughput')} | {100 * r['hit_rate']:.1f} % |"
            for r in why
        ),
        "",
        "## Tensor parallelism with NVLink against PrefillOnly, post recommendation, whole users",
        "",
        "| QPS | latency | tensor parallel (s) | PrefillOnly (s) | difference (s) |",
        "|---|---|---|---|---|",
        *(
            f"| {r['qps']:g} | {r['metric']} | {r['tensor_s']:.3g} | {r['prefillonly_s']:.3g} | "
            f"{_interval(r, 'difference_s')} |"
            for r in low
        ),
        "",
        "## What differs, and why",
        "",
        *(f"- {_beside(row)}: {row['why'] or 'not explained'}." for row in different),
        "",
        "## All numbers",
        "",
        "`peak`: throughput with the whole dataset at once, were the data sheets' peaks reached in full.",
        "",
        "| source | what | paper | ours | peak | verdict |",
        "|---|---|---|---|---|---|",
        *(
            f"| {r['source']} | {r['what']} | {r['paper']} | {_ours(r)} | {_or_dash(r['peak'])} | {r['verdict']} |"
            for r in numbers
        ),
        "",
        "## Where the paper contradicts itself",
        "",
        *(f"- {sentence}." for sentence in contradictions()),
        "",
        "## Free constants of the memory model",
        "",
        "| constant | value | from |",
        "|---|---|---|",
        *(
            f"| {r['constant']} | {'-' if r['value'] is None else format(r['value'], 'g')} | {r['from']} |"
            for r in free_constants()
        ),
    ]
    return "\n".join(lines) + "\n"


def _or_dash(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def _interval(row: dict[str, Any], metric: str) -> str:
    interval = "" if row["lo"] is None else f" ({row['lo']:.3g} to {row['hi']:.3g})"
    return f"{row[metric]:.3g}{interval}"


def _ours(row: dict[str, Any]) -> str:
    bound = {">": "≥ ", "<": "≤ ", "": ""}[row["bound"]]
    interval = "" if row["lo"] is None else f" ({row['lo']:.3g} to {row['hi']:.3g})"
    ours = row["ours"]
    return f"{bound}{ours:,.0f}" if ours >= 1000 else f"{bound}{ours:.4g}{interval}"


def _beside(row: dict[str, Any]) -> str:
    return f"{row['source']}, {row['what']}: paper {row['paper']}, ours {_ours(row)}"
