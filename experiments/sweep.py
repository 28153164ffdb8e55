"""Runs the cells of an experiment on all cores, keeps what is finished whatever happens, and goes on from there."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import BrokenExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.axes import Experiment
from experiments.cells import Cell, hash_of, json_bytes
from experiments.config import ConfigError
from experiments.folders import PART, claim, latest, remove_parts
from experiments.run import CellResult, run_cell, stored_result
from experiments.tables import write_summary_tables
from sim.provenance import provenance
from sim.store import atomic_write

INDEX = "sweep.json"
CELLS = "cells"

WORTH_PROCESSES = 40_000
"""Simulated requests below which starting processes takes longer than it saves."""

TASKS_PER_JOB = 4
"""So many tasks per process keep all of them busy to the end."""


class Stopped(Exception):
    """A sweep has ended early; the message says what is kept and how to go on."""

    status = 1
    """Exit status of the command."""


class Interrupted(Stopped):
    """The user has stopped it."""

    status = 130


@dataclass(frozen=True)
class SweepResult:
    """A sweep that has ended: one result per cell."""

    experiment: Experiment
    out: Path
    results: dict[str, CellResult]
    """By cell key."""
    reused: int
    """Cells taken from an earlier, unfinished run."""

    @property
    def failures(self) -> list[tuple[Cell, str]]:
        """Cells without a summary, and why."""
        pairs = ((cell, self.results[cell.key].error) for cell in self.experiment.cells)
        return [(cell, error) for cell, error in pairs if error is not None]

    @property
    def failure_lines(self) -> list[str]:
        """The failures, a line each with the cell's configuration."""
        return [f"{cell.describe()}: {error}" for cell, error in self.failures]


def run_sweep(
    experiment: Experiment, *, out: Path | None, resume: bool = False, jobs: int | None = None, progress: bool = False
) -> SweepResult:
    """Run every cell of an experiment and write its folder.

    Args:
        experiment: from :func:`experiments.axes.plan`.
        out: results folder; by default ``runs/NAME-HASH``.
        resume: go on in a folder that exists, and trust its complete cells of the same key.
        jobs: processes; by default all cores as far as the work is worth them.
        progress: draw a bar on stderr.

    Raises:
        ConfigError: if the folder exists and ``resume`` is false, or it holds something else.
        Interrupted: on Ctrl-C.
        Stopped: if a process was killed.
        OSError: if results cannot be written.
    """
    stem = f"{experiment.config.name}-{hash_of([c.key for c in experiment.cells])[:8]}"
    folder = _open_folder(out, stem, resume, experiment)
    unique = {cell.key: cell for cell in experiment.cells}
    results: dict[str, CellResult] = {}
    if resume:
        for key, cell in unique.items():
            stored = stored_result(cell, folder / CELLS / key)
            if stored is not None:
                results[key] = stored
            else:
                shutil.rmtree(folder / CELLS / key, ignore_errors=True)
    reused = len(results)
    todo = [cell for key, cell in unique.items() if key not in results]
    with keep_finished(folder, len(unique)):
        for result in _bar(run_cells(todo, folder / CELLS, jobs), len(todo), progress):
            results[result.key] = result
        sweep = SweepResult(experiment, folder, results, reused)
        write_summary_tables(folder, experiment, results)
        atomic_write(folder / INDEX, index_of(sweep))
    return sweep


@contextmanager
def keep_finished(folder: Path, runs: int) -> Iterator[None]:
    """Say, where a sweep ends early, what is finished and how to go on.

    Raises:
        Interrupted: on Ctrl-C.
        Stopped: if a process was killed.
        OSError: the one that was raised, with a note.
    """
    try:
        yield
    except KeyboardInterrupt:
        raise Interrupted(f"interrupted: {_kept(folder, runs)}") from None
    except BrokenExecutor:
        raise Stopped(
            f"a process was killed, perhaps for want of memory (fewer --jobs need less): {_kept(folder, runs)}"
        ) from None
    except OSError as e:
        e.add_note(_kept(folder, runs))
        raise


def _kept(folder: Path, runs: int) -> str:
    finished = sum(1 for run in (folder / CELLS).glob("*/run.json") if not run.parent.name.startswith(PART))
    return f"{finished} of {runs} runs are finished and kept in {folder}; go on with: {resume_command(folder)}"


def resume_command(out: Path) -> str:
    """Return the command line that goes on with this one."""
    import shlex

    arguments = [a for a in sys.argv[1:] if a != "--resume"]
    if not any(a == "--out" or a.startswith("--out=") for a in arguments):
        arguments += ["--out", str(out)]
    return shlex.join(["prefillsim", *arguments, "--resume"])


def _open_folder(out: Path | None, stem: str, resume: bool, experiment: Experiment) -> Path:
    def fill(folder: Path) -> None:
        atomic_write(folder / INDEX, json_bytes({**_header(experiment), "status": "running"}))

    if resume:
        target = out if out is not None else latest(stem)
        if target is not None and target.is_dir() and any(target.iterdir()):
            if not (target / INDEX).is_file():
                raise ConfigError(f"--resume: {target} is not the folder of a sweep (it has no {INDEX})")
            return target
    return claim(out, stem, fill)


def _header(experiment: Experiment) -> dict[str, Any]:
    return {
        "name": experiment.config.name,
        "config": experiment.config.model_dump(mode="json", exclude_none=True),
        "axes": experiment.axes,
        "runs": len(experiment.cells),
    }


def index_of(sweep: SweepResult) -> bytes:
    """Return ``sweep.json``: configuration, axes, and every cell with its key and error."""
    failed = dict.fromkeys((c.key for c, _ in sweep.failures), True)
    cells = [
        {
            "key": cell.key,
            "policy": cell.label,
            "trace": cell.source.label,
            "seed": cell.seed,
            "point": dict(cell.point),
            "error": sweep.results[cell.key].error,
        }
        for cell in sweep.experiment.cells
    ]
    status = {"status": "finished", "failed": len(failed), "notes": sweep.experiment.notes, "cells": cells}
    return json_bytes({**_header(sweep.experiment), **status})


def run_cells(cells: list[Cell], folder: Path, jobs: int | None) -> Iterator[CellResult]:
    """Run cells into folders named by their keys, and yield results as they are finished, in any order.

    Raises:
        OSError: if a folder cannot be written; the rest is not run.
    """
    shared = provenance()
    if jobs is None:
        jobs = cores() if sum(cell.requests for cell in cells) > WORTH_PROCESSES else 1
    jobs = min(jobs, len(cells))
    tasks = _tasks(cells, max(jobs, 1))
    if jobs <= 1:
        for cell in itertools.chain.from_iterable(tasks):
            yield run_cell(cell, folder / cell.key, shared)
        return
    from joblib import Parallel, delayed, parallel_config

    call = delayed(_run_task)
    try:
        with parallel_config("loky", inner_max_num_threads=1, initializer=_leave_interrupts_to_the_first_process):
            pool = Parallel(n_jobs=jobs, return_as="generator_unordered", batch_size=1)
            for results in pool(call(task, folder, shared, os.getpid()) for task in tasks):
                yield from results
    finally:
        remove_parts(folder)


def cores() -> int:
    """Return how many cores this process may use."""
    from joblib import cpu_count

    return int(cpu_count())


def _tasks(cells: list[Cell], jobs: int) -> list[list[Cell]]:
    """Group cells with the same trace, in groups small enough to keep all processes busy."""
    most = max(1, -(-len(cells) // (jobs * TASKS_PER_JOB)))
    groups: dict[Any, list[Cell]] = {}
    for cell in cells:
        groups.setdefault((cell.source, cell.seed), []).append(cell)
    return [list(part) for group in groups.values() for part in _batched(group, most)]


def _batched(cells: list[Cell], size: int) -> Iterator[list[Cell]]:
    iterator = iter(cells)
    while batch := list(itertools.islice(iterator, size)):
        yield batch


def _run_task(cells: list[Cell], folder: Path, shared: dict[str, Any], owner: int) -> list[CellResult]:
    return [run_cell(cell, folder / cell.key, shared, owner=owner) for cell in cells]


def _leave_interrupts_to_the_first_process() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _bar(results: Iterable[CellResult], total: int, progress: bool) -> Iterator[CellResult]:
    if not progress:
        yield from results
        return
    from tqdm import tqdm

    yield from tqdm(results, total=total, unit="run", file=sys.stderr, dynamic_ncols=True, leave=False)
