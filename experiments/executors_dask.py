"""Cells on the workers of an existing Dask cluster, which share this machine's storage.

Only the cells themselves travel. Results folder, trace files, plug-ins and this package are read and written by the
workers where they lie, so all machines must see them under the same paths; every worker is asked before anything runs.
"""

from __future__ import annotations

import dataclasses
import hashlib
import logging
import socket
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import CancelledError
from pathlib import Path
from typing import Any

from experiments.cells import Cell, Plugin
from experiments.config import ConfigError
from experiments.executors import ExecutorLost, Lost, tasks_of
from experiments.folders import PART, in_progress, new_owner, remove_parts
from experiments.run import CellResult, run_cell, stored_result
from sim.provenance import provenance

ANSWER_S = 20
"""How long scheduler and first worker may take to answer."""

SAME = ("git", "packages", "python")
"""What of their provenance the workers have in common with this process."""

DEATHS = 2
"""So many workers may be killed over one cell before it is set aside, to be tried alone; then it is one."""

DRIVER = "driver"
"""In place of a cell's key, for as long as the driver wants results: workers look whether they see it."""

UNEXPLAINED = 10
"""So often may a task be given up by the scheduler while no worker is killed over any cell."""

_one_at_a_time = threading.Lock()
"""Plug-ins and redirected output belong to a process, and two simulations in it take as long as one after the other."""


class DaskCluster:
    """Workers of an existing cluster; close it after use."""

    tries_alone = 1

    def __init__(self, address: str):
        """Connect to the scheduler at ``address``.

        Raises:
            ConfigError: if Dask is not installed, or no scheduler with workers answers.
        """
        try:
            from distributed import Client
        except ImportError:
            raise ConfigError("--cluster needs Dask: pip install 'prefillsim[cluster]'") from None
        # Lost connections are told in our words.
        logging.getLogger("distributed").setLevel(logging.CRITICAL)
        self.address = address
        try:
            self._client = Client(address, timeout=ANSWER_S, set_as_default=False)
        except Exception as e:  # every kind of address has errors of its own
            raise ConfigError(
                f"--cluster {address}: no Dask scheduler answers there ({(str(e) or type(e).__name__).splitlines()[0]})"
            ) from None
        try:
            self._client.wait_for_workers(1, timeout=ANSWER_S)
        except TimeoutError:
            self._client.close()
            raise ConfigError(f"--cluster {address}: the scheduler has no workers; start some first") from None

    def __enter__(self) -> DaskCluster:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def run(self, cells: Sequence[Cell], folder: Path) -> Iterator[CellResult | Lost]:
        """See :meth:`experiments.executors.Executor.run`."""
        from distributed import KilledWorker, as_completed

        folder, owner = folder.resolve(), new_owner()
        cells = [_with_absolute_paths(cell) for cell in cells]
        mark = folder / f"{PART}{owner}-{DRIVER}-0"
        mark.mkdir()
        try:
            self._check(cells, mark)
            deaths = DEATHS if len(cells) > 1 else 1

            def submit(task: list[Cell]) -> Any:
                return self._client.submit(_run_task, task, mark, owner, deaths, pure=False)

            workers = max(1, len(self._client.nthreads()))
            futures = {submit(task): (task, 0, 0) for task in tasks_of(cells, workers)}
            done = as_completed(futures, loop=self._client.loop)
            try:
                for future in done:
                    task, begun, unexplained = futures.pop(future)
                    gone = ExecutorLost(f"the Dask scheduler at {self.address} is gone")
                    if future.status in ("cancelled", "lost"):
                        raise gone
                    try:
                        # A status is no promise: scheduler and workers may go away a moment later, results with them.
                        results = future.result()
                    except CancelledError:
                        raise gone from None
                    except KilledWorker:
                        # Given up for workers that were killed while it waited there as well as for those it ran on.
                        before, begun = begun, len(in_progress(folder, owner))
                        unexplained = unexplained + 1 if begun == before else 0
                        if unexplained == UNEXPLAINED:
                            raise ExecutorLost(
                                f"the Dask workers at {self.address} are killed whatever they run"
                            ) from None
                        again = submit(task)
                        futures[again] = (task, begun, unexplained)
                        done.add(again)
                    else:
                        yield from results
            finally:
                self._client.cancel(list(futures))
        finally:
            remove_parts(folder, owner)

    def _check(self, cells: Sequence[Cell], mark: Path) -> None:
        """Refuse workers that see other files or run other code.

        Raises:
            ConfigError: naming the first such worker.
        """
        stamps = {cell.source.file: cell.source.stamp for cell in cells if cell.source.file is not None}
        plugins = {plugin for cell in cells for plugin in cell.plugins}
        answers = self._client.run(_problem, mark, stamps, sorted(plugins, key=_path), _code(), on_error="return")
        for worker, answer in sorted(answers.items()):
            if isinstance(answer, Exception):
                answer = f"cannot run prefillsim ({type(answer).__name__}: {answer}); install it there"
            if answer is not None:
                raise ConfigError(f"--cluster {self.address}: the worker {worker} {answer}")


def _with_absolute_paths(cell: Cell) -> Cell:
    """Return a cell that means the same files in another working directory."""
    file = cell.source.file
    source = cell.source if file is None else dataclasses.replace(cell.source, file=str(Path(file).resolve()))
    plugins = tuple(Plugin(str(Path(p.path).resolve()), p.sha256) for p in cell.plugins)
    return dataclasses.replace(cell, source=source, plugins=plugins)


def _path(plugin: Plugin) -> str:
    return plugin.path


def _code() -> dict[str, Any]:
    known = provenance()
    return {name: known[name] for name in SAME}


def _problem(
    mark: Path, stamps: dict[str, tuple[int, int] | None], plugins: Sequence[Plugin], code: dict[str, Any]
) -> str | None:
    """Say, on a worker, why it cannot run the cells."""
    if not mark.is_dir():
        return _unshared(mark)
    for file, stamp in stamps.items():
        if _stamp(Path(file)) != stamp:
            return f"does not see the trace {file} as it is here; put it on storage that all machines share"
    for plugin in plugins:
        try:
            digest = hashlib.sha256(Path(plugin.path).read_bytes()).hexdigest()
        except OSError:
            digest = ""
        if digest != plugin.sha256:
            return f"does not see the plug-in {plugin.path} as it is here; put it on storage that all machines share"
    own = provenance()
    for name, value in code.items():
        if own[name] != value:
            return f"runs other code: its {name} is {own[name]}, here it is {value}; install the same there"
    return None


def _stamp(file: Path) -> tuple[int, int] | None:
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_size, status.st_mtime_ns


def _unshared(mark: Path) -> str:
    return (
        f"does not see the results folder {mark.parent.parent}; give --out a folder on storage that all machines share"
    )


def _run_task(cells: list[Cell], mark: Path, owner: str, deaths: int) -> list[CellResult | Lost]:
    """Run cells on a worker, none of them twice, and none that workers have been killed over too often.

    Raises:
        ConfigError: if the worker, which may have come later than the check, does not see the results folder.
        OSError: if it cannot be written.
    """
    with _one_at_a_time:
        return [_outcome(cell, mark, owner, deaths) for cell in cells]


def _outcome(cell: Cell, mark: Path, owner: str, deaths: int) -> CellResult | Lost:
    if not mark.is_dir():
        raise ConfigError(f"the worker on {socket.gethostname()} {_unshared(mark)}")
    folder = mark.parent
    stored = stored_result(cell, folder / cell.key)
    if stored is not None:
        return stored
    if in_progress(folder, owner).count(cell.key) >= deaths:
        return Lost(cell)
    return run_cell(cell, folder / cell.key, provenance(), owner=owner)
