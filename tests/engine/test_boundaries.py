"""Where the engine's shortcuts end: stretches at arrivals, candidates at the last seat."""

from __future__ import annotations

import numpy as np
import pytest

from costmodels import CostModel, LinearCost
from policies import BatchView, Chunking, Grant, Policy, parse_policy
from policies.ordering.fcfs import Fcfs
from sim.engine import simulate
from sim.limits import Limits
from sim.stretches import STRETCH_MIN
from tests.engine.compare import assert_same_run
from tests.engine.costs import GrowingCost
from traces import Trace

STEADY = LinearCost(name="steady", step=10, decode=0, per_decode=0, prefill=0, per_token=1)


def scenes(arrivals: range, apart: int) -> Trace:
    """Let a request decode for a while, a second one arrive in it at another time in each scene, and then nothing."""
    n = len(arrivals)
    times = [begin for i, arrival in enumerate(arrivals) for begin in (i * apart, i * apart + arrival)]
    return Trace(np.array(times), np.array([3, 2] * n), np.array([3 * STRETCH_MIN, 4] * n))


def compare(trace: Trace, cost: CostModel, horizon: int | None = None) -> bool:
    """Fail unless stretches change nothing; say whether there were any."""
    fast, slow = (
        simulate(trace, parse_policy("fcfs+full"), cost, limits=Limits(horizon_ns=horizon), stretch=stretch)
        for stretch in (True, False)
    )
    assert_same_run(fast, slow)
    return len(fast.log.steps) < len(slow.log.steps)


EVERY = range(10 * 3 * STRETCH_MIN + 25)
"""All around the boundaries of steps, in stretches and in what is too short for one."""


@pytest.mark.parametrize("cost", [STEADY, GrowingCost()], ids=lambda c: c.name)
def test_a_stretch_ends_at_the_first_step_that_sees_an_arrival_wherever_that_falls(cost: CostModel) -> None:
    assert compare(scenes(EVERY, 10**5), cost)


@pytest.mark.parametrize("cost", [STEADY, GrowingCost()], ids=lambda c: c.name)
def test_so_it_does_where_the_run_ends_wherever_the_arrival_falls(cost: CostModel) -> None:
    horizon = 10 * (2 * STRETCH_MIN) + 3
    shorter = [compare(scenes(range(arrival, arrival + 1), 0), cost, horizon) for arrival in range(horizon + 25)]
    assert shorter[-1]


def test_no_more_candidates_than_seats_are_listed() -> None:
    seen: list[tuple[int, int, int]] = []

    class Looking(Chunking):
        name = "looking"
        lookahead = 5

        def grant(self, batch: BatchView) -> Grant:
            seen.append((batch.n_decode, len(batch.candidates), batch.n_waiting))
            return Grant(3)

    n = 12
    trace = Trace(np.zeros(n, dtype=np.int64), np.full(n, 4), np.full(n, 9))
    simulate(trace, Policy(Fcfs(), Looking()), STEADY, limits=Limits(max_num_seqs=3))
    assert any(waiting > 3 for _, _, waiting in seen)
    assert {decoding + listed for decoding, listed, waiting in seen if waiting > 3} == {3}
