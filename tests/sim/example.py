"""One small run with every kind of row, which subprocesses make too."""

from __future__ import annotations

import numpy as np

from costmodels import LinearCost
from policies import parse_policy
from sim.engine import simulate
from sim.limits import Limits
from sim.objectives import Objectives
from tests.tables import RunTables
from traces import Trace

GOALS = Objectives(ttft=400, tpot_p99=60)
COST = LinearCost(step=5, decode=4, per_decode=3, prefill=6, per_token=2)


def example_run(horizon_ns: int | None = 800) -> tuple[Trace, RunTables]:
    """A run in which requests finish, are rejected and stay unfinished, with and without a first token."""
    rng = np.random.default_rng(0)
    n = 30
    trace = Trace(
        np.sort(rng.integers(0, 1500, n)),
        rng.integers(1, 60, n),
        rng.integers(1, 20, n),
        tenant=np.array(["interactive", None, "batch"] * 10, dtype=object),
        session=np.array([f"user-{i % 7}" for i in range(n)], dtype=object),
        id=np.array([f"request-{i}" for i in range(n)], dtype=object),
    )
    policy = parse_policy("sloweave:tpot=0.00006")
    return trace, simulate(
        trace, policy, COST, objectives=GOALS, limits=Limits(max_model_len=60, horizon_ns=horizon_ns)
    )
