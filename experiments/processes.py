"""Processes on this machine, which start and end while this one has something else to do.

There is one pool of them, which later work finds again.
"""

from __future__ import annotations

import atexit
import itertools
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from contextlib import contextmanager
from typing import Any

IN_PROCESS, PROCESSES = "in-process", "processes"

ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS"), "1")
"""There are as many processes as cores already."""

IDLE_S = 300
"""So long processes without work stay."""

_pools: dict[int, Executor] = {}
"""The pool, if there is one, by its size."""

atexit.register(_pools.clear)  # while the modules that it needs for this are still there


def cores() -> int:
    """Return how many cores this process may use."""
    from joblib import cpu_count

    return int(cpu_count())


@contextmanager
def begun(jobs: int | None, where: str | None = None) -> Iterator[None]:
    """Start processes that the user has asked for while their work is being planned, and end them when it is done.

    More than there are cores begin only with their work: nobody knows yet how many will have any.

    Args:
        jobs: how many the user has asked for, if any.
        where: what ``--cluster`` says.
    """
    if jobs is not None and where in (None, PROCESSES) and 1 < jobs <= cores():
        _pool(jobs).submit(os.getpid)  # the first task starts all of them
    try:
        yield
    except BaseException:
        _end(kill=True)
        raise
    _end()


def outcomes(call: Callable[..., Any], tasks: Iterable[tuple[Any, ...]], jobs: int) -> Iterator[Any]:
    """Yield what a function returns for each task's arguments, in any order; it is called in so many processes.

    Where the caller stops asking they are killed.

    Raises:
        BrokenExecutor: if one is killed.
    """
    pool, left = _pool(jobs), iter(tasks)
    # One task waits for each process, no more, for they take memory; none where there are more processes than asked
    # for, or one that is to have nothing beside it.
    ahead = 2 * jobs if jobs > 1 and jobs in _pools else jobs
    try:
        running: set[Future[Any]] = {pool.submit(call, *task) for task in itertools.islice(left, ahead)}
        while running:
            done, running = wait(running, return_when=FIRST_COMPLETED)
            running |= {pool.submit(call, *task) for task in itertools.islice(left, len(done))}
            for future in done:
                yield future.result()
    except BaseException:  # a killed process, an interrupt, a caller that has enough
        _end(kill=True)
        raise


def _end(kill: bool = False) -> None:
    """End the processes of the pool when they have no more work, or kill them at once."""
    while _pools:
        _, pool = _pools.popitem()
        if kill:
            # The pool's own way to kill fails where a task is just on its way to a process.
            for child in multiprocessing.active_children():
                if child.name.startswith("Loky"):
                    child.terminate()
        pool.shutdown(wait=kill)


def _pool(jobs: int) -> Executor:
    """Return the pool, if it has so many processes; else make one that has."""
    if not any(size >= jobs for size in _pools):
        from joblib.externals.loky import ProcessPoolExecutor

        _end()
        _pools[jobs] = ProcessPoolExecutor(
            jobs, timeout=IDLE_S, initializer=_serve, initargs=(os.getpid(),), env=ONE_THREAD
        )
    return next(iter(_pools.values()))


def _serve(first: int) -> None:
    """Leave interrupts to the first process, and do not outlive it, which pools of processes do by minutes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(first,), daemon=True).start()
    import experiments.run  # noqa: F401  # before there is work


def _end_with(first: int) -> None:
    while os.getppid() == first:
        time.sleep(1)
    os._exit(1)
