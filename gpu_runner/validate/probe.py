"""How fast a machine is at the moment: a fixed piece of work, timed in the pauses of a replay.

On a machine that others use too, the same step takes a third longer from one second to the next. Work that is always
the same, done while the engine has none, sees that. It sees nothing of the engine, so that what is learned from it is
not taken from what is judged.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass, field

from gpu_runner.clock import Clock

ROOM = 3
"""A pause is probed while it is so many times as long as the longest of the last probes: arrivals shall not be late."""

FEWEST = 20
"""Fewer probes say little about a replay."""


class ProbingClock(Clock):
    """A clock that works while it waits.

    Args:
        now_ns: see :class:`gpu_runner.clock.Clock`.
        work: always takes the same, a millisecond or two, as far as the machine does; ``None`` to wait idly.
    """

    def __init__(self, now_ns: Callable[[], int], work: Callable[[], object] | None) -> None:
        super().__init__(now_ns)
        self._work = work
        self._began: list[int] = []
        self._took: list[int] = []

    def sleep_until(self, time_ns: int) -> None:
        """Return at a time, or at once if it is past."""
        while self._work is not None and time_ns - self.now_ns() > ROOM * max(self._took[-8:], default=1_000_000):
            begun = self.now_ns()
            self._work()
            self._began.append(begun)
            self._took.append(self.now_ns() - begun)
        super().sleep_until(time_ns)

    def pace(self, begin_ns: float = -math.inf, end_ns: float = math.inf) -> float | None:
        """Return what a probe between two times took on average, in nanoseconds; ``None`` for fewer than ``FEWEST``."""
        took = [t for begun, t in zip(self._began, self._took, strict=True) if begin_ns <= begun < end_ns]
        return statistics.fmean(took) if len(took) >= FEWEST else None


@dataclass
class Speeds:
    """Speeds of a machine: how long steps take over what a cost model says.

    What reference requests say and what probes beside them say have the same ratio, whatever the speed is; so a replay
    with probes in its pauses has a speed too.
    """

    _ratios: list[float] = field(default_factory=list)

    def learn(self, speed: float, pace: float | None) -> None:
        """Take the speed of reference requests, and the pace of probes beside them."""
        if pace is not None:
            self._ratios.append(speed / pace)

    def at(self, pace: float | None, before: float, after: float) -> float:
        """Return the speed in a replay: by its probes, and without any the mean of what it was before and after."""
        if pace is None or not self._ratios:
            return (before + after) / 2
        return statistics.median(self._ratios) * pace


def cpu_work() -> Callable[[], object]:
    """Return work like an engine's on a CPU: many small operators on one thread. Needs torch."""
    import torch

    generator = torch.Generator().manual_seed(0)
    x = torch.rand(32, 256, generator=generator)
    weight = torch.rand(256, 256, generator=generator) / 128

    def work() -> object:
        y = x
        with torch.no_grad():
            for _ in range(12):
                y = torch.nn.functional.silu(y @ weight) + x
        return y

    return work


def probe_work() -> Callable[[], object] | None:
    """Return what probes this machine's speed; ``None`` where engines run on a GPU: a CPU says nothing of that."""
    try:
        import torch
    except ImportError:
        return None
    return None if torch.cuda.is_available() else cpu_work()
