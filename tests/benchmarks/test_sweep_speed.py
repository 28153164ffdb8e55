"""How long a sweep of SLOWeave's tables takes, and what a second core is worth; ``make bench`` prints both."""

import subprocess
import sys
import time
from importlib import resources
from pathlib import Path

import numpy as np
import pytest

from experiments.processes import cores
from tests.benchmarks.bare import Bench

pytestmark = [pytest.mark.benchmarks, pytest.mark.timeout(1800)]

ROUNDS = 5
"""So often one process and two take turns, and are compared: the machine's speed changes from minute to minute."""

RUNS_PER_SEED = 60
"""Four workloads, three objectives and five policies, each run of 1,000 requests."""


def seconds(out: Path, jobs: int, seeds: int) -> float:
    """Return the time of the whole command, from its start to its end."""
    grid = str(resources.files("experiments.sloweave") / "grid.toml")
    command = [sys.executable, "-m", "experiments.cli", "sweep", grid, "--seeds", str(seeds), "--out", str(out)]
    begun = time.perf_counter()
    subprocess.run([*command, "--jobs", str(jobs)], check=True, capture_output=True)
    measured = time.perf_counter() - begun
    assert len(list((out / "cells").iterdir())) == RUNS_PER_SEED * seeds
    return measured


@pytest.mark.skipif(cores() < 2, reason="needs two cores")
@pytest.mark.parametrize(("seeds", "least"), [(5, None), (20, 0.9)])
def test_tables_3_and_4_on_two_cores(seeds: int, least: float | None, tmp_path: Path, bench: Bench) -> None:
    """300 runs in less than 60 s; all 1,200 runs of the tables at an efficiency of 0.9, starts and ends included."""
    times = np.array([[seconds(tmp_path / f"{k}-{jobs}", jobs, seeds) for jobs in (1, 2)] for k in range(ROUNDS)])
    one, two = np.median(times, axis=0)
    efficiency = float(np.median(times[:, 0] / (2 * times[:, 1])))
    runs = f"{RUNS_PER_SEED * seeds} runs of Tables 3 and 4 on two cores"
    bench(runs, f"{two:.1f} s", "" if least else "< 60 s")
    bench(f"{runs}, efficiency", f"{efficiency:.2f} ({one:.1f} s on one)", f">= {least}" if least else "")
    if least is None:
        assert two < 60
    else:
        assert efficiency >= least
