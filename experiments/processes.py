"""Processes on this machine, by joblib, which start and end while this one has something else to do.

joblib keeps one pool of them, whoever asks for it.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import BrokenExecutor
from contextlib import contextmanager, suppress
from typing import Any

IN_PROCESS, PROCESSES = "in-process", "processes"

_beginning: list[Iterator[Any]] = []


@contextmanager
def begun(jobs: int | None, where: str | None = None) -> Iterator[None]:
    """Start processes that the user has asked for while their work is being planned, and end them when it is done.

    Args:
        jobs: how many the user has asked for, if any.
        where: what ``--cluster`` says.
    """
    if jobs is None or jobs < 2 or where not in (None, PROCESSES):
        yield
        return
    from joblib import cpu_count
    from joblib.externals.loky import get_reusable_executor

    first = min(jobs, cpu_count())
    _beginning.append(outcomes(_import_all, [()] * first, first))
    try:
        yield
    finally:
        wait_until_begun()
        get_reusable_executor(reuse=True).shutdown(wait=False)


def wait_until_begun() -> None:
    """Wait for processes that :func:`begun` has started."""
    while _beginning:
        with suppress(BrokenExecutor):  # others start when there is work
            deque(_beginning.pop(), maxlen=0)


def outcomes(call: Callable[..., Any], tasks: Iterable[tuple[Any, ...]], jobs: int) -> Iterator[Any]:
    """Return what a function returns for each task's arguments, in any order; it is called in so many processes.

    Raises:
        BrokenExecutor: if one is killed.
    """
    from joblib import Parallel, delayed, parallel_config

    with parallel_config("loky", inner_max_num_threads=1, initializer=_serve, initargs=(os.getpid(),)):
        # joblib's one process would be this one; of two, one is kept waiting.
        ahead = "2*n_jobs" if jobs > 1 else 1
        pool = Parallel(max(jobs, 2), return_as="generator_unordered", batch_size=1, pre_dispatch=ahead)
        results: Iterator[Any] = pool(delayed(call)(*task) for task in tasks)
        return results


def _import_all() -> None:
    import experiments.run  # noqa: F401


def _serve(first: int) -> None:
    """Leave interrupts to the first process, and do not outlive it, which joblib's processes do by minutes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(first,), daemon=True).start()


def _end_with(first: int) -> None:
    while os.getppid() == first:
        time.sleep(1)
    os._exit(1)
