"""Where the engine's shortcuts end: stretches at arrivals, candidates at the last seat."""

from __future__ import annotations

import numpy as np
import pytest

from costmodels import CostModel, LinearCost
from policies import BatchView, Chunking, Grant, Policy, parse_policy
from policies.ordering.fcfs import Fcfs
from sim.engine import STRETCH_MIN, Limits, simulate
from tests.engine.compare import assert_same_run
from tests.engine.costs import GrowingCost
from traces import Trace

STEADY = LinearCost(name="steady", step=10, decode=0, per_decode=0, prefill=0, per_token=1)


@pytest.mark.parametrize("cost", [STEADY, GrowingCost()], ids=lambda c: c.name)
@pytest.mark.parametrize("horizon", [None, 10 * (2 * STRETCH_MIN) + 3])
def test_a_stretch_ends_at_the_first_step_that_sees_an_arrival_wherever_that_falls(
    cost: CostModel, horizon: int | None
) -> None:
    """Every arrival time around the boundaries of steps, in stretches and in what is too short for one."""
    for arrival in range(10 * 3 * STRETCH_MIN + 25):
        trace = Trace(np.array([0, arrival]), np.array([3, 2]), np.array([3 * STRETCH_MIN, 4]))
        limits = Limits(horizon_ns=horizon)
        fast, slow = (
            simulate(trace, parse_policy("fcfs+full"), cost, limits=limits, stretch=stretch)
            for stretch in (True, False)
        )
        assert_same_run(fast, slow)
    assert len(fast.log.steps) < len(slow.log.steps)


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
