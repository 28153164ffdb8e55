"""Everything of SLOWeave's simulator chapter that can be regenerated, into one folder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.sloweave.grid import run_grid
from experiments.sloweave.pictures import draw_figure4, draw_figure5, draw_reproduction, draw_table3, draw_table4
from experiments.sloweave.reproduction import reproduction_rows
from experiments.sloweave.timeline import draw_figure2
from experiments.tables import Rows
from sim.store import atomic_write

SEEDS = range(20)
"""Fixed beforehand."""


@dataclass(frozen=True)
class Regenerated:
    """What was written, and the verdicts."""

    files: list[Path]
    reproduction: Rows


def regenerate(
    folder: Path, *, seeds: Sequence[int] = SEEDS, resume: bool = False, jobs: int | None = None, progress: bool = False
) -> Regenerated:
    """Run the grid into ``folder/grid`` and write Tables 3 and 4, Figures 2, 4 and 5 and the reproduction table.

    Raises:
        ConfigError: if the folder exists and ``resume`` is false.
        OSError: if something cannot be written.
    """
    grid = run_grid(folder / "grid", seeds, resume=resume, jobs=jobs, progress=progress)
    reproduction = reproduction_rows(grid)
    files = [
        *draw_table3(grid, folder),
        *draw_table4(grid, folder),
        *draw_figure2(folder),
        *draw_figure4(grid, folder),
        *draw_figure5(grid, folder),
        *draw_reproduction(reproduction, folder),
    ]
    verdicts = folder / "reproduction.md"
    atomic_write(verdicts, _markdown(reproduction, seeds).encode())
    return Regenerated([*files, verdicts], reproduction)


def _markdown(reproduction: Rows, seeds: Sequence[int]) -> str:
    """Return the reproduction table as text, what differs first."""
    different = [row for row in reproduction if row["verdict"] == "differs"]
    rounded = [row for row in reproduction if row["verdict"] == "agrees" and not row["strictly"]]
    lines = [
        "# SLOWeave's numbers, the paper's and ours",
        "",
        f"Seeds {seeds[0]} to {seeds[-1]}. The paper averages 5 seeds that it does not name: its number agrees where "
        "it lies in the 95 % interval of a mean of 5 seeds that vary like ours, half a printed digit granted. "
        f"{len(reproduction) - len(different)} of {len(reproduction)} numbers agree, {len(rounded)} of them only with "
        f"that half digit; by chance alone some {0.05 * len(reproduction):.0f} would differ.",
        "",
        "## What differs, and what the paper leaves open there",
        "",
        *(f"- {_beside(row)}: {row['why']}." for row in different),
        "",
        "## What agrees only to the digit that is printed",
        "",
        *(f"- {_beside(row)}." for row in rounded),
        "",
        "## All numbers",
        "",
        "| source | workload | policy | TPOT objective (ms) | metric | paper | ours | interval | ratio | verdict |",
        "|---|---|---|---|---|---|---|---|---|---|",
        *(
            f"| {row['source']} | {row['workload']} | {row['policy']} | {row['tpot_objective_ms']} | {row['metric']} | "
            f"{row['paper']:g} | {row['ours']:.4g} | {row['interval_lo']:.4g} to {row['interval_hi']:.4g} | "
            f"{row['ratio']:.2f} | {row['verdict']} |"
            for row in reproduction
        ),
    ]
    return "\n".join(lines) + "\n"


def _beside(row: dict[str, Any]) -> str:
    return (
        f"{row['source']}, {row['workload']}, {row['policy']}, {row['metric']} at {row['tpot_objective_ms']} ms: "
        f"paper {row['paper']:g}, ours {row['ours']:.4g} ({row['interval_lo']:.4g} to {row['interval_hi']:.4g})"
    )
