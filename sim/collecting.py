"""Python's garbage collector during a run."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

NEVER = 2**31 - 1

_lock = Lock()
_runs = 0
_usual = gc.get_threshold()


@contextmanager
def young_only() -> Iterator[None]:
    """Let the collector look at young objects only while the context lasts, in whichever threads runs overlap.

    Requests live for as long as a run does, and are no garbage. Searched again and again they make a run's time grow
    faster than its length.
    """
    global _runs, _usual
    with _lock:
        if not _runs:
            _usual = gc.get_threshold()
            gc.set_threshold(*_usual[:2], NEVER)
        _runs += 1
    try:
        yield
    finally:
        with _lock:
            _runs -= 1
            if not _runs:
                gc.set_threshold(*_usual)
