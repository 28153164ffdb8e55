"""Where the cells of a sweep are run: in this process, in processes of their own, or on a Dask cluster.

A cell whose process is killed is run again, alone, a few times; then it has failed, and the others go on.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from concurrent.futures import BrokenExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from experiments.cells import Cell
from experiments.config import ConfigError
from experiments.folders import in_progress, new_owner, remove_parts
from experiments.processes import IN_PROCESS, PROCESSES, cores, outcomes
from experiments.run import CellResult, run_cell, stored_result
from policies.registry import nearest
from sim.provenance import provenance

WORTH_PROCESSES = 40_000
"""Simulated requests below which starting processes takes longer than it saves."""

TASKS_PER_JOB = 4
"""So many tasks per process keep all of them busy to the end."""

DEATHS = 3
"""So many processes may be killed over one cell; and so many in a row before they have begun anything."""


class ExecutorLost(Exception):
    """What the cells were to run on is gone; the message says what."""


@dataclass(frozen=True)
class Lost:
    """A cell whose process was killed while it ran, perhaps by another cell beside it."""

    cell: Cell


class Executor(Protocol):
    """Runs cells into folders named by their keys."""

    tries_alone: int
    """How often a lost cell is tried again."""

    def run(self, cells: Sequence[Cell], folder: Path) -> Iterator[CellResult | Lost]:
        """Yield what has become of each, in any order.

        Raises:
            ConfigError: if it cannot run cells of this experiment.
            ExecutorLost: if it is gone.
            OSError: if a folder cannot be written; the rest is not run.
        """


def executor_of(where: str | None, jobs: int | None, cells: Sequence[Cell]) -> AbstractContextManager[Executor]:
    """Return what runs these cells.

    Args:
        where: ``in-process``, ``processes``, or a Dask scheduler's address; by default processes where the work is
            worth more than one.
        jobs: processes; all cores by default.
        cells: what is to be run.

    Raises:
        ConfigError: if there is no such place, or it cannot be reached.
    """
    if where is not None and "://" in where:
        if jobs is not None:
            raise ConfigError(f"--cluster {where} has workers of its own, however many; leave out --jobs")
        from experiments.executors_dask import DaskCluster

        return DaskCluster(where)
    if where not in (None, IN_PROCESS, PROCESSES):
        hint = nearest(where, [IN_PROCESS, PROCESSES])
        raise ConfigError(f"--cluster {where}: it should be {IN_PROCESS}, {PROCESSES} or tcp://HOST:PORT{hint}")
    if where == IN_PROCESS and jobs not in (None, 1):
        raise ConfigError(f"--cluster {IN_PROCESS} is one process, but --jobs is {jobs}; leave one of them out")
    if where is None and jobs is None:
        jobs = cores() if sum(cell.requests for cell in cells) > WORTH_PROCESSES else 1
    if where == IN_PROCESS or (where is None and min(jobs or 1, len(cells)) <= 1):
        return nullcontext(InProcess())
    return nullcontext(Processes(jobs or cores()))


def run_cells(cells: Sequence[Cell], folder: Path, executor: Executor) -> Iterator[CellResult]:
    """Run cells and yield results as they are finished, in any order; see :meth:`Executor.run` for errors."""
    lost = []
    for outcome in executor.run(cells, folder):
        if isinstance(outcome, Lost):
            lost.append(outcome.cell)
        else:
            yield outcome
    for cell in lost:
        yield _alone(cell, folder, executor)


def _alone(cell: Cell, folder: Path, executor: Executor) -> CellResult:
    """Run a cell with none beside it, which tells whether it is what its process is killed for."""
    stored = stored_result(cell, folder / cell.key)
    for _ in range(executor.tries_alone if stored is None else 0):
        (outcome,) = executor.run([cell], folder)
        if isinstance(outcome, CellResult):
            return outcome
    if stored is not None:
        return stored
    return CellResult(cell.key, None, error="every process that ran it was killed, perhaps for want of memory")


class InProcess:
    """One cell after another, here."""

    tries_alone = 0

    def run(self, cells: Sequence[Cell], folder: Path) -> Iterator[CellResult]:
        """See :meth:`Executor.run`."""
        shared = provenance()
        for cell in itertools.chain.from_iterable(tasks_of(cells, 1)):
            yield run_cell(cell, folder / cell.key, shared)


class Processes:
    """Processes on this machine, no more than there are cells left."""

    tries_alone = DEATHS - 1

    def __init__(self, jobs: int):
        self.jobs = jobs

    def run(self, cells: Sequence[Cell], folder: Path) -> Iterator[CellResult | Lost]:
        """See :meth:`Executor.run`."""
        owner = new_owner()
        left = {cell.key: cell for cell in cells}
        unexplained = 0
        try:
            while left:
                try:
                    for result in self._results(list(left.values()), folder, owner):
                        del left[result.key]
                        yield result
                except BrokenExecutor:
                    killed = [left.pop(key) for key in set(in_progress(folder, owner)) if key in left]
                    remove_parts(folder, owner)
                    unexplained = 0 if killed else unexplained + 1
                    if unexplained == DEATHS:
                        raise ExecutorLost(
                            "processes were killed before they ran anything, perhaps for want of memory (fewer --jobs "
                            "need less)"
                        ) from None
                    yield from map(Lost, killed)
                    # Some were finished, but their results had not been handed over.
                    stored = filter(None, (stored_result(cell, folder / key) for key, cell in left.items()))
                    for result in list(stored):
                        del left[result.key]
                        yield result
        finally:
            remove_parts(folder, owner)

    def _results(self, cells: list[Cell], folder: Path, owner: str) -> Iterator[CellResult]:
        shared = provenance()
        jobs = min(self.jobs, len(cells))
        tasks = ((task, folder, shared, owner) for task in tasks_of(cells, jobs))
        for results in outcomes(_run_task, tasks, jobs):
            yield from results


def tasks_of(cells: Sequence[Cell], jobs: int) -> list[list[Cell]]:
    """Group cells with the same trace, in groups small enough to keep all processes busy, the last ones smaller."""
    most = max(1, -(-len(cells) // (jobs * TASKS_PER_JOB)))
    groups: dict[Any, list[Cell]] = {}
    for cell in cells:
        groups.setdefault((cell.source, cell.seed), []).append(cell)
    tasks = [part for group in groups.values() for part in _batched(group, most)]
    last = max(0, len(tasks) - 2 * jobs) if jobs > 1 else len(tasks)
    pieces = (piece for task in tasks[last:] for piece in _batched(task, -(-len(task) // TASKS_PER_JOB)))
    return [*tasks[:last], *pieces]


def _batched(cells: list[Cell], size: int) -> Iterator[list[Cell]]:
    iterator = iter(cells)
    while batch := list(itertools.islice(iterator, size)):
        yield batch


def _run_task(cells: list[Cell], folder: Path, shared: dict[str, Any], owner: str) -> list[CellResult]:
    return [run_cell(cell, folder / cell.key, shared, owner=owner) for cell in cells]
