"""Metrics of the requests that arrived in a window."""

from __future__ import annotations

import numpy as np

from costmodels.linear import LinearCost
from policies.spec import parse_policy
from sim.engine import simulate
from sim.memory import Memory
from sim.metrics import summarise
from sim.objectives import Objectives
from sim.window import arrived_between
from tests.seeded import cases, whole, wide
from traces.synthetic import generate

TRACE = generate("mixed", 3, n=60)
RUN = simulate(TRACE, parse_policy("vllm-default"), LinearCost(), cache=Memory(blocks=480).build(TRACE))


@cases(50, whole(0, 800_000_000), wide(900_000_000, 1))
def test_a_window_counts_its_own_requests_alone(begin: int, length: int) -> None:
    requests, preemptions = arrived_between(RUN.requests, RUN.preemptions, begin, begin + length)
    inside = (TRACE.arrival_ns >= begin) & (TRACE.arrival_ns < begin + length)
    summary = summarise(requests, RUN.steps, Objectives(), preemptions)
    assert summary["arrived"] == inside.sum()
    assert summary["preemptions"] == RUN.requests["preemptions"][inside].sum() == len(preemptions["step"])
    if inside.any():
        assert np.isclose(summary["ttft_mean_ms"], RUN.requests["ttft_ns"][inside].mean() / 1e6)
        assert summary["itl_max_ms"] == RUN.requests["itl_max_ns"][inside].max() / 1e6


def test_the_whole_run_is_a_window_too() -> None:
    assert len(RUN.preemptions["step"]) > 0
    requests, preemptions = arrived_between(RUN.requests, RUN.preemptions, 0, None)
    whole = summarise(RUN.requests, RUN.steps, Objectives(), RUN.preemptions)
    assert summarise(requests, RUN.steps, Objectives(), preemptions) == whole
