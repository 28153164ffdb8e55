"""Orders other than first come, first served: T5 to T8 of the verification plan."""

from __future__ import annotations

import heapq
from itertools import pairwise

import numpy as np
from scipy import stats
from scipy.integrate import quad

from policies import parse_policy
from sim.engine import simulate
from tests.engine import strategies
from tests.engine.costs import prefill_only
from tests.seeded import cases
from tests.theory.queueing import WARM_UP, Customers, Queue, assert_matches
from traces import Trace

ORDERINGS = (
    "fcfs",
    "srjf-static",
    "srjf-calibrated:lam=0",
    "srjf-calibrated:lam=1e7",
    "srjf-calibrated:lam=1e8",
    "srjf-calibrated:lam=1e9",
    "srjf-calibrated:lam=inf",
    "edf:ttft=0.00005",
    "test-longest-first",
    "test-hrrn",
)


def uniform(rng: np.random.Generator, n: int) -> np.ndarray:
    """Return sizes that are uniform on (0, 2)."""
    return rng.uniform(0, 2, n)


def test_shortest_job_first_by_size_and_the_conservation_law() -> None:
    """T5: E[W(x)] = W0/(1−ρ(x))², averaged over each quarter of the sizes. T8: Σ ρ_k W_k = ρW0/(1−ρ)."""
    load, edges = 0.6, np.array([0.0, 0.5, 1.0, 1.5, 2.0])
    w0 = load * (4 / 3) / 2

    def measure(c: Customers) -> list[float]:
        quarter = np.digitize(c.size, edges[1:-1])
        return [*(c.wait[quarter == q].mean() for q in range(4)), load * (c.size * c.wait).mean()]

    by_size = [
        quad(lambda x: w0 / (1 - load * x * x / 4) ** 2, low, high)[0] / (high - low) for low, high in pairwise(edges)
    ]
    assert_matches(Queue("srjf-static", load, uniform, 7000), 20, measure, [*by_size, load * w0 / (1 - load)])


def test_priority_classes() -> None:
    """T6, Cobham: W_k = W0/((1−σ_{k−1})(1−σ_k)), for three classes of which the first has the largest size."""
    load, sizes = 0.5, np.array([1.2, 1.0, 0.8])
    sigma = np.concatenate([[0], np.cumsum(load * sizes / 3)])
    w0 = load * (sizes**2).mean() / 2
    assert_matches(
        Queue("test-by-tenant", load, lambda rng, n: np.tile(sizes[:, None], n), 7000, (1 / 3, 1 / 3, 1 / 3)),
        20,
        lambda c: [c.wait[c.tenant == k].mean() for k in range(3)],
        (w0 / ((1 - sigma[:-1]) * (1 - sigma[1:]))).tolist(),
    )


def waits(trace: Trace, ordering: str) -> np.ndarray:
    run = simulate(trace, parse_policy(f"{ordering}+full"), prefill_only())
    return run.requests["first_scheduled_ns"] - trace.arrival_ns


def one_token(trace: Trace) -> Trace:
    return Trace(trace.arrival_ns, trace.prompt_tokens, np.ones(len(trace), dtype=np.int64))


@cases(40, strategies.traces(max_size=20, max_prompt=200, own_objectives=False))
def test_conservation_law_on_every_sample_path(trace: Trace) -> None:
    """T8: the work in the system does not depend on the order, so neither does Σ S_i W_i: exactly, in integers."""
    trace = one_token(trace)
    sums = {o: int((waits(trace, o) * trace.prompt_tokens).sum()) for o in ORDERINGS}
    assert set(sums.values()) == {sums["fcfs"]}


def srpt_sojourns(arrivals: list[int], sizes: list[int]) -> np.ndarray:
    """Return the sojourns under shortest remaining processing time, which interrupts; exact in integers."""
    finish = [0] * len(arrivals)
    present: list[tuple[int, int]] = []
    now, i = 0, 0
    while i < len(arrivals) or present:
        if not present:
            now = max(now, arrivals[i])
        while i < len(arrivals) and arrivals[i] <= now:
            heapq.heappush(present, (sizes[i], i))
            i += 1
        left, j = heapq.heappop(present)
        until = min(now + left, arrivals[i]) if i < len(arrivals) else now + left
        if until - now == left:
            finish[j] = until
        else:
            heapq.heappush(present, (left - (until - now), j))
        now = until
    return np.array(finish) - np.array(arrivals)


def test_srpt_bound_itself() -> None:
    """T7, Schrage and Miller: the bound of the next test has the mean sojourn that theory gives it."""
    load, n, seeds = 0.7, 20_000, 20
    means = []
    for seed in range(seeds):
        rng = np.random.default_rng(seed)
        arrivals = np.cumsum(rng.exponential(1e6 / load, n)).astype(np.int64)
        sizes = (uniform(rng, n) * 1e6).astype(np.int64) + 1
        means.append(srpt_sojourns(arrivals.tolist(), sizes.tolist())[WARM_UP:].mean() / 1e6)

    def sojourn(x: float) -> float:
        rho = load * x * x / 4
        waiting = load * (x**3 / 6 + x * x * (1 - x / 2)) / (2 * (1 - rho) ** 2)
        return waiting + quad(lambda u: 1 / (1 - load * u * u / 4), 0, x)[0]

    theory = quad(lambda x: sojourn(x) / 2, 0, 2)[0]
    error = abs(np.mean(means) - theory)
    half = stats.t.ppf(0.995, seeds - 1) * np.std(means, ddof=1) / np.sqrt(seeds)
    assert error <= half
    assert half + error < 0.03 * theory


@cases(40, strategies.traces(max_size=20, max_prompt=200, own_objectives=False))
def test_no_order_beats_srpt_on_any_sample_path(trace: Trace) -> None:
    """T7: the engine does not interrupt a prefill, so no ordering has a smaller mean sojourn."""
    trace = one_token(trace)
    bound = int(srpt_sojourns(trace.arrival_ns.tolist(), trace.prompt_tokens.tolist()).sum())
    for ordering in ORDERINGS:
        assert int((waits(trace, ordering) + trace.prompt_tokens).sum()) >= bound


def test_the_srpt_bound_is_reached_where_nothing_could_be_interrupted() -> None:
    """All at once: shortest first is SRPT, longest first is far from it."""
    rng = np.random.default_rng(0)
    trace = Trace(np.zeros(50, dtype=np.int64), rng.integers(1, 1000, 50), np.ones(50, dtype=np.int64))
    bound = srpt_sojourns(trace.arrival_ns.tolist(), trace.prompt_tokens.tolist())
    np.testing.assert_array_equal(waits(trace, "srjf-static") + trace.prompt_tokens, bound)
    assert (waits(trace, "test-longest-first") + trace.prompt_tokens).sum() > 1.5 * bound.sum()
