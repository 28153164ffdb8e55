"""How the time of a run grows with its size: the power in ``time = c * size ** power``, fitted in one run."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from costmodels import load_cost_model
from policies import parse_policy
from sim.cluster import simulate_cluster
from sim.engine import simulate
from sim.memory import Memory
from sim.objectives import Objectives
from tests.benchmarks.bare import Bench
from traces.schema import Trace
from traces.synthetic import generate

pytestmark = [pytest.mark.benchmarks, pytest.mark.timeout(1800)]

GOALS = Objectives.parse("ttft:1000,tpot_p99:25")
PAPER = load_cost_model("sloweave-paper")
LINEAR = 1.05


def power(sizes: Sequence[int], run: Callable[[int], object], repeats: int = 3) -> float:
    """Return the power with which the processor time of a run grows: the median of those of some rounds of all sizes.

    The machine's speed changes from minute to minute, so that only what ran one after the other is compared.
    """
    powers = []
    for _ in range(repeats):
        times = []
        for size in sizes:
            gc.collect()
            begun = time.process_time()
            run(size)
            times.append(time.process_time() - begun)
        powers.append(np.polyfit(np.log(sizes), np.log(times), 1)[0])
    return float(np.median(powers))


def test_requests(bench: Bench) -> None:
    """Up to a million, tables included."""

    def run(n: int) -> object:
        return simulate(generate("chat", 0, n), parse_policy("sloweave"), PAPER, objectives=GOALS).requests

    grown = power([62_500, 250_000, 1_000_000], run)
    bench("growth in requests, chat/sloweave, to 1,000,000", f"power {grown:.3f}", f"<= {LINEAR}")
    assert grown <= LINEAR


@pytest.mark.parametrize("name", ["vllm-default", "sloweave", "srjf-calibrated+full", "edf+full"])
def test_queue_depth(name: str, bench: Bench) -> None:
    """As many as 100,000 wait at once: all come at the start."""

    def run(n: int) -> object:
        rng = np.random.default_rng(0)
        prompts = rng.integers(100, 2000, n)
        trace = Trace(np.zeros(n, dtype=np.int64), prompts, np.full(n, 4, dtype=np.int64))
        return simulate(trace, parse_policy(name), PAPER, objectives=GOALS)

    grown = power([6_250, 25_000, 100_000], run, repeats=9)
    bench(f"growth in queue depth, {name}, to 100,000", f"power {grown:.3f}", f"<= {LINEAR}")
    assert grown <= LINEAR


def test_rate(bench: Bench) -> None:
    """The same requests ever more densely, from a tenth of what is stable to ten times as much."""
    trace = generate("mixed", 0, 50_000)

    def run(percent: int) -> object:
        return simulate(trace.scale_rate(percent / 100), parse_policy("sloweave"), PAPER, objectives=GOALS)

    grown = power([10, 100, 1000], run)
    bench("growth in the rate, mixed/sloweave, 0.1 to 10 times", f"power {grown:.3f}", f"<= {LINEAR}")
    assert grown <= LINEAR


def test_replicas(bench: Bench) -> None:
    """For the table: so many replicas serve so many times the requests.

    Each stops at every arrival of the whole cluster, for any may be its own, so that stretches of decodes get shorter.
    """

    def run(replicas: int, router: str) -> object:
        trace = generate("mixed", 0, 5_000 * replicas, 90.0 * replicas)
        policies = [parse_policy("sloweave") for _ in range(replicas)]
        return simulate_cluster(trace, policies, PAPER, router=router, objectives=GOALS)

    grown = {router: power([1, 4, 16], lambda n, r=router: run(n, r)) for router in ("round-robin", "least-loaded")}
    for router, one in grown.items():
        bench(f"growth in replicas, {router}, 5,000 requests each, to 16", f"power {one:.3f}")


def test_requests_that_share_kv_memory(bench: Bench) -> None:
    """Overload, with blocks for some five prompts: the prefix cache evicts all the time, in the least run too."""

    def run(n: int) -> object:
        trace = generate("post-recommendation", 0, n, rate=100.0)
        memory = Memory(blocks=5_000)
        return simulate(trace, parse_policy("vllm-default"), PAPER, cache=memory.build(trace))

    grown = power([1_000, 4_000, 16_000], run)
    bench("growth in requests, KV memory, post-recommendation", f"power {grown:.3f}", f"<= {LINEAR}")
    assert grown <= LINEAR
