"""Runs the cells of an experiment, keeps what is finished whatever happens, and goes on from there."""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.axes import Experiment
from experiments.cells import Cell, hash_of, json_bytes
from experiments.config import ConfigError
from experiments.executors import ExecutorLost, executor_of, run_cells
from experiments.folders import PART, RUNS, claim, latest, remove_parts, whole_folder
from experiments.locks import driving
from experiments.progress import bar
from experiments.run import CellResult, stored_result
from experiments.shards import Shard
from experiments.tables import write_summary_tables
from sim.store import RUN, atomic_write

INDEX = "sweep.json"
CELLS = "cells"


class Stopped(Exception):
    """A sweep has ended early; the message says what is kept and how to go on."""

    status = 1
    """Exit status of the command."""


class Interrupted(Stopped):
    """The user has stopped it."""

    status = 130


@dataclass(frozen=True)
class SweepResult:
    """A sweep, or a shard of one, that has ended."""

    experiment: Experiment
    out: Path
    results: dict[str, CellResult]
    """By cell key: one per cell, or one per cell of the shard while other shards are not finished."""
    reused: int
    """Cells taken from an earlier, unfinished run."""

    @property
    def complete(self) -> bool:
        """Whether every cell has a result, and the tables are written."""
        return all(cell.key in self.results for cell in self.experiment.cells)

    @property
    def failures(self) -> list[tuple[Cell, str]]:
        """Cells without a summary, and why."""
        results = ((cell, self.results.get(cell.key)) for cell in self.experiment.cells)
        return [(cell, result.error) for cell, result in results if result is not None and result.error is not None]

    @property
    def failure_lines(self) -> list[str]:
        """The failures, a line each with the cell's configuration."""
        return [f"{cell.describe()}: {error}" for cell, error in self.failures]


def run_sweep(
    experiment: Experiment,
    *,
    out: Path | None,
    resume: bool = False,
    jobs: int | None = None,
    progress: bool = False,
    cluster: str | None = None,
    shard: Shard | None = None,
    within: Path | None = None,
) -> SweepResult:
    """Run every cell of an experiment, or every cell of a shard, and write the folder.

    Args:
        experiment: from :func:`experiments.axes.plan`.
        out: results folder; by default ``runs/NAME-HASH``.
        resume: go on in a folder that exists, and trust its complete cells of the same key.
        jobs: processes; by default all cores as far as the work is worth them.
        progress: draw a bar on stderr.
        cluster: where to run; see :func:`experiments.executors.executor_of`.
        shard: a part of the cells. All shards write into one folder, where each goes on if it is started again; the
            one that finds every cell finished writes the tables.
        within: results folder of the command that this sweep is a part of, for the command that goes on with it.

    Raises:
        ConfigError: if the folder exists and ``resume`` is false, it holds something else or another process is
            writing into it; or there is no such cluster.
        Interrupted: on Ctrl-C, or SIGTERM.
        Stopped: if what the cells were to run on is gone.
        OSError: if results cannot be written.
    """
    unique = {cell.key: cell for cell in experiment.cells}
    mine = dict(shard.of(list(unique.items()))) if shard else unique
    with contextlib.ExitStack() as held:
        # Before there is a folder: a cluster that cannot be reached leaves nothing behind.
        executor = held.enter_context(executor_of(cluster, jobs, list(mine.values())))
        folder = _open_folder(out, resume, shard, experiment)
        alone = held.enter_context(driving(folder, shard))
        held.enter_context(keep_finished(folder, len(unique), within))
        held.enter_context(_ended_like_interrupted())
        (folder / CELLS).mkdir(exist_ok=True)
        if alone:
            # At both ends, for processes that a killed driver has started may end a moment after it.
            remove_parts(folder / CELLS)
            held.callback(remove_parts, folder / CELLS)
        results = _stored(mine, folder) if resume or shard else {}
        reused = len(results)
        todo = {key: cell for key, cell in mine.items() if key not in results}
        for key in todo:
            _clear(folder / CELLS / key)
        for result in bar(run_cells(list(todo.values()), folder / CELLS, executor), todo, progress):
            results[result.key] = result
        if shard:
            others = {key: cell for key, cell in unique.items() if key not in mine}
            if all((folder / CELLS / key / RUN).is_file() for key in others):
                results |= _stored(others, folder)
        sweep = SweepResult(experiment, folder, results, reused)
        if sweep.complete:
            write_summary_tables(folder, experiment, results)
            atomic_write(folder / INDEX, index_of(sweep))
    return sweep


@contextmanager
def _ended_like_interrupted() -> Iterator[None]:
    """Let SIGTERM do what Ctrl-C does: clusters send it when a job's time is over, CI servers when one is cancelled."""
    usual = threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    if usual:
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        if usual:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _clear(place: Path) -> None:
    """Remove what is where a cell's folder is to be, whatever it is."""
    if place.is_dir() and not place.is_symlink():
        shutil.rmtree(place, ignore_errors=True)
    else:
        place.unlink(missing_ok=True)


def _stored(cells: Mapping[str, Cell], folder: Path) -> dict[str, CellResult]:
    found = ((key, stored_result(cell, folder / CELLS / key)) for key, cell in cells.items())
    return {key: result for key, result in found if result is not None}


@contextmanager
def keep_finished(folder: Path, runs: int, within: Path | None = None) -> Iterator[None]:
    """Say, where a sweep ends early, what is finished and how to go on.

    Raises:
        Interrupted: on Ctrl-C.
        Stopped: if a process was killed.
        OSError: the one that was raised, with a note.
    """
    try:
        yield
    except KeyboardInterrupt:
        raise Interrupted(f"interrupted: {_kept(folder, runs, within)}") from None
    except ExecutorLost as e:
        raise Stopped(f"{e}: {_kept(folder, runs, within)}") from None
    except (OSError, ConfigError) as e:
        e.add_note(_kept(folder, runs, within))
        raise


def _kept(folder: Path, runs: int, within: Path | None) -> str:
    return f"{finished_cells(folder)} of {runs} runs are finished and kept in {folder}; go on with: " + (
        resume_command(within or folder)
    )


def finished_cells(folder: Path) -> int:
    """Return how many runs in a sweep's folder are finished."""
    return sum(1 for run in (folder / CELLS).glob(f"*/{RUN}") if not run.parent.name.startswith(PART))


def resume_command(out: Path, whole: bool = False) -> str:
    """Return the command line that goes on with this one, or, for a shard, with the ``whole`` sweep."""
    import shlex

    arguments = [a for a in sys.argv[1:] if a != "--resume"]
    if whole and "--shard" in arguments:
        at = arguments.index("--shard")
        del arguments[at : at + 2]
    if whole:
        arguments = [a for a in arguments if not a.startswith("--shard=")]
    if not any(a == "--out" or a.startswith("--out=") for a in arguments):
        arguments += ["--out", str(out)]
    return shlex.join(["prefillsim", *arguments, "--resume"])


def _open_folder(out: Path | None, resume: bool, shard: Shard | None, experiment: Experiment) -> Path:
    stem = f"{experiment.config.name}-{_hash(experiment)[:8]}"

    def fill(folder: Path) -> None:
        atomic_write(folder / INDEX, json_bytes({**_header(experiment), "status": "running"}))

    if shard is not None:
        shared = out if out is not None else RUNS / stem
        with contextlib.suppress(FileExistsError), whole_folder(shared) as part:
            fill(part)
        if _index(shared).get("hash") != _hash(experiment):
            raise ConfigError(
                f"--shard {shard}: {shared} is not the folder of this very sweep; all shards need the same file and "
                "options, and a folder that the first of them makes"
            )
        return shared
    if resume:
        target = out if out is not None else latest(stem)
        if target is not None and target.is_dir() and any(target.iterdir()):
            if not (target / INDEX).is_file():
                raise ConfigError(f"--resume: {target} is not the folder of a sweep (it has no {INDEX})")
            return target
    return claim(out, stem, fill)


def _index(folder: Path) -> dict[str, Any]:
    try:
        index = json.loads((folder / INDEX).read_bytes())
    except (OSError, ValueError):
        return {}
    return index if isinstance(index, dict) else {}


def _hash(experiment: Experiment) -> str:
    return hash_of([cell.key for cell in experiment.cells])


def _header(experiment: Experiment) -> dict[str, Any]:
    return {
        "name": experiment.config.name,
        "hash": _hash(experiment),
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
