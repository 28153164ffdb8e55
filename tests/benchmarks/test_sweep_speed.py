"""How long a sweep of SLOWeave's tables takes, and what a second core is worth; ``make bench`` prints both."""

import subprocess
import sys
import time
from importlib import resources
from pathlib import Path

import pytest

from experiments.executors import cores

pytestmark = pytest.mark.benchmarks

RUNS = 300
"""Four workloads, three objectives, five policies and five seeds, each of 1,000 requests."""


def seconds(out: Path, jobs: int) -> float:
    """Return the time of the whole command, from its start to its end."""
    grid = str(resources.files("experiments.sloweave") / "grid.toml")
    command = [sys.executable, "-m", "experiments.cli", "sweep", grid, "--seeds", "5", "--out", str(out)]
    begun = time.perf_counter()
    subprocess.run([*command, "--jobs", str(jobs)], check=True, capture_output=True)
    return time.perf_counter() - begun


@pytest.mark.skipif(cores() < 2, reason="needs two cores")
def test_tables_3_and_4_on_two_cores(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """300 runs in less than 60 s, and at least 0.9 of two cores used for them; the best of two, in turns."""
    times = {1: [], 2: []}
    for turn in range(2):
        for jobs, measured in times.items():
            measured.append(seconds(tmp_path / f"{turn}-{jobs}", jobs))
            assert len(list((tmp_path / f"{turn}-{jobs}" / "cells").iterdir())) == RUNS
    one, two = min(times[1]), min(times[2])
    efficiency = one / (2 * two)
    with capsys.disabled():
        print(
            f"\n{RUNS} runs of Tables 3 and 4: {one:.1f} s on one core, {two:.1f} s on two, efficiency {efficiency:.2f}"
        )
    assert two < 60
    assert efficiency >= 0.9
