"""The clock of whatever runs in real time."""

from __future__ import annotations

import time
from collections.abc import Callable

from policies.units import NS

SPIN_NS = 200_000
"""The last stretch of a pause is spent looking at the clock, for sleeping overshoots by about 0.1 ms."""


class Clock:
    """Tells the time and waits.

    Args:
        now_ns: the clock, nanoseconds since the epoch of ``time.time``; one that starts there and never goes back by
            default.
    """

    def __init__(self, now_ns: Callable[[], int] | None = None) -> None:
        offset = time.time_ns() - time.perf_counter_ns()
        self.now_ns = now_ns or (lambda: time.perf_counter_ns() + offset)

    def sleep_until(self, time_ns: int) -> None:
        """Return at a time, or at once if it is past."""
        while (left := time_ns - self.now_ns()) > 0:
            if left > SPIN_NS:
                time.sleep((left - SPIN_NS) / NS)
