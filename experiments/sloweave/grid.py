"""The runs behind SLOWeave's tables and figures: one sweep over workloads, TPOT objectives, policies and seeds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from experiments.axes import plan
from experiments.config import ConfigError
from experiments.draft import Draft
from experiments.sweep import run_sweep
from experiments.tables import Rows, summary_rows

SLOWEAVE = "sloweave"

NAMES = {
    "fcfs+full": "Full",
    "fcfs+fixed:chunk=64": "Fixed-64",
    "fcfs+fixed:chunk=256": "Fixed-256",
    "fcfs+fixed:chunk=1024": "Fixed-1024",
    SLOWEAVE: "SLOWeave",
}
"""The paper's names of the policies."""

WORKLOADS = ("chat", "mixed", "long", "bursty")
TARGETS_MS = (10, 25, 50)
MAIN_TARGET_MS = 25

Point = tuple[str, int, str]
"""Workload, TPOT objective in ms, policy."""


@dataclass(frozen=True)
class Grid:
    """Per-seed metrics of every point of the sweep."""

    rows: Rows
    seeds: Sequence[int]

    def per_seed(self, workload: str, tpot_ms: int, policy: str, metric: str) -> list[float]:
        """Return a metric's values in the order of the seeds; ``slo_percent`` is the attainment in per cent."""
        if metric == "slo_percent":
            return [100 * v for v in self.per_seed(workload, tpot_ms, policy, "slo_attainment")]
        at = (workload, tpot_ms, policy)
        return [float(row[metric]) for row in self.rows if (row["workload"], row["tpot"], row["policy"]) == at]

    def strongest_static(self, workload: str, tpot_ms: int) -> str:
        """Return the static policy with the largest mean goodput (§4.2: chosen per workload and objective)."""
        static = [policy for policy in NAMES if policy != SLOWEAVE]
        return max(static, key=lambda policy: sum(self.per_seed(workload, tpot_ms, policy, "goodput")))

    def points(self) -> Iterator[Point]:
        """Yield every point, workload by workload."""
        yield from ((w, t, p) for w in WORKLOADS for t in TARGETS_MS for p in NAMES)


def run_grid(folder: Path, seeds: Sequence[int], *, resume: bool, jobs: int | None, progress: bool) -> Grid:
    """Run ``grid.toml`` on the given seeds into ``folder``.

    Raises:
        ConfigError: if the folder exists and ``resume`` is false, or a run has failed.
    """
    draft = Draft()
    draft.put_file(Path(str(resources.files("experiments.sloweave") / "grid.toml")))
    draft.put_option("--seeds", "seeds", list(seeds))
    sweep = run_sweep(plan(draft), out=folder, resume=resume, jobs=jobs, progress=progress)
    if sweep.failures:
        cell, error = sweep.failures[0]
        raise ConfigError(f"{len(sweep.failures)} runs failed; the first: {cell.describe()}: {error}")
    return Grid(summary_rows(sweep.experiment, sweep.results), seeds)
