"""What the ratios of speed are taken to: a bare SimPy loop."""

import statistics
import time
from collections.abc import Callable
from typing import Protocol

import simpy


class Bench(Protocol):
    """The fixture ``bench``."""

    def __call__(self, what: str, measured: str, asked: str = "") -> None: ...


def seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def bare_timeouts(n: int) -> None:
    """Run what the ratios are taken to: one SimPy process and ``n`` timeouts."""
    env = simpy.Environment()

    def process():
        for _ in range(n):
            yield env.timeout(1)

    env.process(process())
    env.run()


def ratio_to_bare(run: Callable[[], object], steps: int, repeats: int) -> float:
    """Return the steps per second of ``run`` over the timeouts per second of a bare loop, median of pairs."""
    pairs = []
    for _ in range(repeats):
        bare = seconds(lambda: bare_timeouts(steps))
        pairs.append(bare / seconds(run))
    return statistics.median(pairs)
