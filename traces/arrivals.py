"""Arrival processes: each returns ``n`` sorted arrival times in nanoseconds."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from traces.schema import LATEST_NS, IntArray, TraceError

NS = 1_000_000_000


def check_rate(rate: float, what: str = "rate") -> None:
    """Refuse a rate that no process can have.

    Raises:
        TraceError: if it is not a positive number.
    """
    if not (np.isfinite(rate) and rate > 0):
        raise TraceError(f"{what} must be a positive number of requests per second, not {rate}")


def to_ns(seconds: NDArray[np.float64]) -> IntArray:
    """Return sorted times in nanoseconds.

    Raises:
        TraceError: if the last does not fit.
    """
    if len(seconds) and not seconds[-1] < LATEST_NS / NS:
        raise TraceError("the rate is so low that arrivals come later than 64 bits of nanoseconds can say")
    times: IntArray = np.rint(seconds * NS).astype(np.int64)
    return times


def poisson(n: int, rate: float, rng: np.random.Generator) -> IntArray:
    """Exponential gaps with mean ``1 / rate`` seconds; the first request arrives after one gap."""
    check_rate(rate)
    return to_ns(np.cumsum(rng.exponential(1.0 / rate, n)))


def gamma(n: int, rate: float, burstiness: float, rng: np.random.Generator) -> IntArray:
    """Gamma gaps of mean ``1 / rate`` seconds and shape ``burstiness``, as in ``vllm bench serve``.

    Shape 1 is Poisson, below 1 is burstier (squared coefficient of variation ``1 / burstiness``).
    """
    check_rate(rate)
    if not (np.isfinite(burstiness) and burstiness > 0):
        raise TraceError(f"burstiness must be a positive number, not {burstiness}")
    return to_ns(np.cumsum(rng.gamma(burstiness, 1.0 / (rate * burstiness), n)))


def two_state(n: int, high: float, low: float, dwell_s: float, rng: np.random.Generator) -> IntArray:
    """A Markov-modulated Poisson process that switches between two rates (requests per second).

    The time in each state is exponential with mean ``dwell_s``; the first state is drawn by a fair coin.
    """
    check_rate(high, "the high rate")
    check_rate(low, "the low rate")
    if not (np.isfinite(dwell_s) and dwell_s > 0):
        raise TraceError(f"the mean dwell must be a positive number of seconds, not {dwell_s}")
    # A unit-rate Poisson process in "work" time, mapped to clock time by the inverse of the integrated rate.
    work = np.cumsum(rng.exponential(1.0, n))
    is_high = bool(rng.integers(2))
    clock_knots, work_knots = [0.0], [0.0]
    while n and work_knots[-1] < work[-1]:
        stay = rng.exponential(dwell_s)
        clock_knots.append(clock_knots[-1] + stay)
        work_knots.append(work_knots[-1] + stay * (high if is_high else low))
        is_high = not is_high
    return to_ns(np.interp(work, work_knots, clock_knots))


def replayed(n: int, times_ns: IntArray) -> IntArray:
    """Return the first ``n`` of given times, so that one trace's requests arrive as another's did.

    Raises:
        TraceError: if there are fewer.
    """
    if n > len(times_ns):
        raise TraceError(f"there are {len(times_ns):,} arrival times to replay for {n:,} requests")
    return times_ns[:n]


def all_at_once(n: int) -> IntArray:
    """Everything arrives at time 0."""
    return np.zeros(n, dtype=np.int64)
