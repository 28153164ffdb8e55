"""SLOWeave's GPU table and figure, regenerated into one folder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from experiments.sloweave.gpu_blocks import GpuExperiment, load_experiment
from experiments.sloweave.gpu_order import order_rows, table2_rows
from experiments.sloweave.gpu_pictures import draw_figure3, draw_table2, write_markdown
from experiments.sloweave.gpu_runs import run_gpu
from experiments.tables import Rows, csv_bytes
from sim.store import atomic_write


@dataclass(frozen=True)
class RegeneratedGpu:
    """What was written, Table 2's rows, and whether its order holds."""

    files: list[Path]
    table2: Rows
    orders: Rows


def regenerate_gpu(
    folder: Path, seeds: Sequence[int], jobs: int | None = None, experiment: GpuExperiment | None = None
) -> RegeneratedGpu:
    """Run everything and write Table 2, Figure 3, the order and the text into ``folder``.

    Raises:
        CostModelError: if a cost model is missing.
        OSError: if something cannot be written.
    """
    runs = run_gpu(experiment or load_experiment(), seeds, jobs)
    folder.mkdir(parents=True, exist_ok=True)
    rows, orders = table2_rows(runs), order_rows(runs)
    texts = {
        "sloweave-gpu.md": write_markdown(runs).encode(),
        "order.csv": csv_bytes(orders),
        "per-seed.csv": csv_bytes(runs.rows),
        "tuning.csv": csv_bytes(runs.tuning),
    }
    for name, content in texts.items():
        atomic_write(folder / name, content)
    files = [
        *draw_table2(rows, folder, runs.seeds),
        *draw_figure3(rows, runs.experiment.blocks, folder, runs.seeds),
        *(folder / name for name in texts),
    ]
    return RegeneratedGpu(files, rows, orders)
