"""A single-server queue made of the engine, and intervals over seeds for what theory says about it.

Requests with one output token, prefilled whole, one per step, at a fixed cost per token: then service is the prompt's
time and the engine is a non-preemptive queue. Sizes are some ten thousand tokens, so rounding them and the arrivals
moves moments by less than one part in ten thousand.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from policies import parse_policy
from sim.engine import simulate
from tests.engine.costs import prefill_only
from traces import Trace
from traces.arrivals import poisson

TOKENS = 10_000
"""Tokens per unit of size; theory is written in units."""

TOKEN_NS = 100
"""Nanoseconds per token."""

UNIT_NS = TOKENS * TOKEN_NS

WARM_UP = 300
"""Customers left out at the start: some fifteen relaxation times of a queue at load 0.6."""

CONFIDENCE = 0.99

Sizes = Callable[[np.random.Generator, int], np.ndarray]


@dataclass(frozen=True)
class Customers:
    """What happened to the customers of one run after warm-up, in units."""

    wait: np.ndarray
    sojourn: np.ndarray
    size: np.ndarray
    """Size in tokens over ``TOKENS``, which is the service time of an engine without bias."""
    tenant: np.ndarray


@dataclass(frozen=True)
class Queue:
    """Poisson arrivals at ``load``, served in an order.

    ``sizes`` gives sizes in units, with mean 1 over all classes. Where ``shares`` has several classes it gives one
    row per class, and each customer takes the size of its own class, drawn with these probabilities; tenants are class
    numbers.
    """

    ordering: str
    load: float
    sizes: Sizes
    n: int
    shares: tuple[float, ...] = (1.0,)

    def run(self, seed: int) -> tuple[Customers, Customers]:
        """Return what happens to the customers of a seed in the engine, and in one whose steps take 3 % longer.

        The latter is :func:`serve`, which without a bias is the engine to the nanosecond.
        """
        arrivals, lengths, classes = (np.random.default_rng(s) for s in np.random.SeedSequence(seed).spawn(3))
        tenant = classes.choice(len(self.shares), self.n, p=self.shares)
        drawn = np.atleast_2d(self.sizes(lengths, self.n))
        tokens = np.rint(drawn[tenant, np.arange(self.n)] * TOKENS).astype(np.int64).clip(1)
        trace = Trace(
            poisson(self.n, self.load * 1e9 / UNIT_NS, arrivals),
            tokens,
            np.ones(self.n, dtype=np.int64),
            tenant=tenant.astype(str).astype(object),
        )
        requests = simulate(trace, parse_policy(f"{self.ordering}+full"), prefill_only(TOKEN_NS)).requests
        wait = requests["first_scheduled_ns"] - trace.arrival_ns
        rank = {"fcfs": np.zeros(self.n, dtype=np.int64), "srjf-static": tokens, "test-by-tenant": tenant}[
            self.ordering
        ]
        np.testing.assert_array_equal(wait, serve(trace.arrival_ns, tokens * TOKEN_NS, rank))
        np.testing.assert_array_equal(requests["jct_ns"], wait + tokens * TOKEN_NS)

        def seen(wait: np.ndarray, service: np.ndarray) -> Customers:
            columns = (wait / UNIT_NS, (wait + service) / UNIT_NS, tokens / TOKENS, tenant)
            return Customers(*(column[WARM_UP:] for column in columns))

        slow = tokens * (TOKEN_NS * 103 // 100)
        return seen(wait, tokens * TOKEN_NS), seen(serve(trace.arrival_ns, slow, rank), slow)


def serve(arrivals: np.ndarray, services: np.ndarray, ranks: np.ndarray) -> np.ndarray:
    """Return the waits at one server that takes the least rank of those that are there, the earliest of equals."""
    if ranks.min() == ranks.max():  # Lindley: who starts last of a busy period waits for all before in it
        before = np.cumsum(services) - services
        return before + np.maximum.accumulate(arrivals - before) - arrivals
    starts, now, there = np.empty_like(arrivals), 0, []
    coming = list(zip(arrivals.tolist(), ranks.tolist(), services.tolist(), range(len(arrivals)), strict=True))[::-1]
    while coming or there:
        if not there:
            now = max(now, coming[-1][0])
        while coming and coming[-1][0] <= now:
            _, rank, service, i = coming.pop()
            heapq.heappush(there, (rank, i, service))
        _, i, service = heapq.heappop(there)
        starts[i] = now
        now += service
    return starts - arrivals


def assert_matches(queue: Queue, seeds: int, measure: Callable[[Customers], list[float]], theory: list[float]) -> None:
    """Fail unless all that is measured agrees with theory, and none of it would if steps took 3 % longer.

    Simultaneous Student intervals over seeds 0 to ``seeds - 1`` cover all quantities with a confidence of 99 %. The
    second run, on the same customers, keeps the first one honest: each quantity on its own must find out an engine
    with a bias of 3 %.
    """
    runs = [queue.run(seed) for seed in range(seeds)]
    true, slow = (_intervals([measure(run[j]) for run in runs]) for j in range(2))
    for j, expected in enumerate(theory):
        (mean, half), (biased, biased_half) = true[j], slow[j]
        what = f"quantity {j} is {mean:.5g} ± {half:.2g} over {seeds} seeds, theory says {expected:.5g}"
        assert abs(mean - expected) <= half, what
        assert abs(biased - expected) > biased_half, f"{what}; {biased:.5g} ± {biased_half:.2g} with a bias would pass"


def _intervals(samples: Sequence[list[float]]) -> list[tuple[float, float]]:
    """Return mean and half-width of each column, simultaneous by Bonferroni."""
    x = np.array(samples)
    seeds, quantities = x.shape
    t = stats.t.ppf(1 - (1 - CONFIDENCE) / (2 * quantities), seeds - 1)
    half = t * x.std(axis=0, ddof=1) / np.sqrt(seeds)
    return list(zip(x.mean(axis=0).tolist(), half.tolist(), strict=True))
