"""Chunkings of one prefill start no second one, though tokens are left of what they grant."""

from __future__ import annotations

import numpy as np
import pytest

from costmodels import LinearCost
from policies import parse_policy
from sim.engine import simulate
from traces import Trace


@pytest.mark.parametrize(
    "policy",
    [
        "fcfs+full",
        "fcfs+fixed:chunk=256",
        "sloweave:tpot=1000",
        "fcfs+guarded:tpot=1000",
        "srjf-static+fixed:chunk=100",
    ],
)
@pytest.mark.parametrize("outputs", [1, 5])
def test_one_prefill_per_step(policy: str, outputs: int) -> None:
    n = 20
    trace = Trace(np.zeros(n, dtype=np.int64), np.full(n, 30, dtype=np.int64), np.full(n, outputs, dtype=np.int64))
    run = simulate(trace, parse_policy(policy), LinearCost())
    assert run.steps["n_prefill"].max() == 1
    assert run.chunks["tokens"].tolist() == [30] * n
