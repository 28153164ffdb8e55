"""What one scheduling decision costs over the depth of the queue: the heap against Algorithm 1's full rescan."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal, get_args

import numpy as np

from policies.ordering.srjf import SrjfCalibrated
from policies.queue import PolicyQueue
from policies.units import NS
from policies.views import RequestView
from sim.kvcache import KVCache
from sim.memory import Memory, Regime
from traces.schema import Segments, Trace

USERS = (10, 20, 50, 100, 200, 400)

PROFILE, POST = 14_000, 150
"""Tokens that a user's requests share, and that each has of its own (PrefillOnly, Table 1)."""

BLOCK = 16

CACHED_USERS = 4
"""Requests that the cache holds."""

WARM_UP = 10
"""Decisions before the clock runs: the cache fills, and the queue begins to keep track of updates."""

Order = Literal["by user", "by turns"]
ORDERS: tuple[Order, ...] = get_args(Order)
REGIMES: tuple[Regime, ...] = get_args(Regime)


@dataclass(frozen=True)
class Load:
    """A queue at its deepest, which is then served.

    ``by user``: λ = 500 and all there at once, so whose profile is cached goes on until the user is done. ``by turns``:
    λ so large that requests go by arrival, one of each user after the other, as no cache likes it: each decision brings
    one user's profile into a cache that holds four and drives out others', whose waiting requests are all read again.
    """

    users: int
    per_user: int = 50
    order: Order = "by turns"
    regime: Regime = "store"

    @property
    def lam(self) -> float:
        """λ in tokens per second."""
        return 1e9 if self.order == "by turns" else 500.0

    def trace(self) -> Trace:
        """Return the requests, a millisecond or nothing apart."""
        n = self.users * self.per_user
        ids = np.stack([np.arange(n) % self.users, self.users + np.arange(n)], axis=1)
        return Trace(
            np.arange(n) * (1_000_000 if self.order == "by turns" else 0),
            np.full(n, PROFILE + POST),
            np.ones(n, dtype=np.int64),
            segments=Segments(np.arange(n + 1) * 2, ids.ravel(), np.tile([PROFILE, POST], n)),
        )


def measure(load: Load, decisions: int = 200, rescans: int = 3) -> dict[str, Any]:
    """Time decisions at the head of a full queue, of which they serve at most a tenth, after some to warm up.

    A decision of the heap is a pop, the start and finish of the request, and reading again whom that touched in the
    cache. A decision of the rescan is one look at everybody: cached tokens, score, least. Times are the thread's own.

    Returns:
        One row: ``users``, ``waiting``, ``order``, ``regime``; ``touched``, the mean number of requests read again;
        ``heap_ns``, the mean of one decision, and ``heap_median_ns``; ``rescan_ns``, the least of a few rescans in
        between; ``ratio``, how many decisions of the heap one rescan takes.

    Raises:
        RuntimeError: if the two disagree about who is next.
    """
    trace = load.trace()
    tokens = PROFILE + POST
    blocks = CACHED_USERS * -(-tokens // BLOCK) + (load.regime == "pool")
    cache = Memory(blocks=blocks, block_size=BLOCK, regime=load.regime).build(trace)
    queue = PolicyQueue(SrjfCalibrated(lam=load.lam))
    for number, arrival in enumerate(trace.arrival_ns.tolist()):
        queue.add(RequestView(number, arrival, tokens))
        cache.watch(number)
    now = int(trace.arrival_ns[-1])
    for _ in range(WARM_UP):
        _decide(queue, cache, tokens, now)
    decisions = min(decisions, len(trace) // 10)
    looks = {turn * decisions // rescans for turn in range(rescans)}
    heap, rescan, n_touched = [], [], 0
    for turn in range(decisions):
        expected = None
        if turn in looks:
            waiting = list(queue)
            start = time.thread_time_ns()
            expected = _rescan(waiting, now, load.lam, cache)
            rescan.append(time.thread_time_ns() - start)
        start = time.thread_time_ns()
        number, touched = _decide(queue, cache, tokens, now)
        heap.append(time.thread_time_ns() - start)
        n_touched += touched
        if expected not in (None, number):
            raise RuntimeError(f"the heap takes request {number}, the rescan {expected}")
    mean = statistics.fmean(heap)
    return {
        "users": load.users,
        "waiting": len(trace),
        "order": load.order,
        "regime": load.regime,
        "touched": n_touched / decisions,
        "heap_ns": mean,
        "heap_median_ns": statistics.median(heap),
        "rescan_ns": min(rescan),
        "ratio": min(rescan) / mean,
    }


def _decide(queue: PolicyQueue, cache: KVCache, tokens: int, now: int) -> tuple[int, int]:
    """Serve the next request; return its number, and how many others that touched."""
    number = queue.pop(now).number
    cache.unwatch(number)
    cache.start(number, tokens, now)
    cache.extend(number, tokens)
    cache.finish(number, tokens)
    touched = cache.changes()
    queue.reread(touched, cache.hit_tokens)
    return number, len(touched)


def _rescan(waiting: list[RequestView], now: int, lam: float, cache: KVCache) -> int:
    """Return whom PrefillOnly's Algorithm 1 takes, on the integers of the heap's keys."""
    weight = Fraction(str(lam))
    scale, aging, hit_tokens = NS * weight.denominator, weight.numerator, cache.hit_tokens
    scores = [
        ((prompt - hit_tokens(number, prompt)) * scale - aging * (now - arrival), arrival, number)
        for number, arrival, prompt, *_ in waiting
    ]
    return min(scores)[2]


def decision_table(
    users: Iterable[int] = USERS,
    orders: Iterable[Order] = ORDERS,
    regimes: Iterable[Regime] = REGIMES,
    decisions: int = 200,
) -> list[dict[str, Any]]:
    """Return a row of :func:`measure` for each combination, 50 requests of each user waiting."""
    return [
        measure(Load(n, order=order, regime=regime), decisions) for regime in regimes for order in orders for n in users
    ]
