"""Deadlines that add up: the engine's heaps against the naive loop, and what they promise and allow."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from policies import parse_policy
from sim.limits import Limits
from sim.objectives import Objectives
from tests.engine import strategies
from tests.engine.compare import assert_same_run
from tests.engine.costs import PAPER
from tests.engine.memories import pool_runs
from tests.engine.naive import naive
from tests.engine.strategies import Run, ms
from tests.engine.test_invariants import first_steps
from tests.seeded import built, cases, either, just, maybe, pick, whole
from traces import NONE, Trace

adding_up = either(strategies.CHUNKINGS["deadline-sum"], strategies.CHUNKINGS["qoserve"])
policies = strategies.such_that(lambda p: "per_gap" not in p, built("{}+{}".format, strategies.ANY_ORDERING, adding_up))


def deep(run: Run) -> Run:
    return replace(run, limits=replace(run.limits, pipeline_depth=2))


@cases(80, strategies.runs(policies), pick(False, True))
def test_the_engine_equals_the_naive_loop(run: Run, two_steps: bool) -> None:
    run = deep(run) if two_steps else run
    assert_same_run(run.simulate(), naive(run))


@cases(80, pool_runs(policies), pick(False, True))
def test_and_so_it_does_where_requests_are_preempted(run: Run, two_steps: bool) -> None:
    run = deep(run) if two_steps else run
    assert_same_run(run.simulate(), naive(run))


@cases(80, strategies.runs(just("fcfs+full")), pick(30, 60, 110, 250), maybe(whole(1, 900)))
def test_no_prefill_makes_a_token_later_than_it_is_due(run: Run, tpot: int, ttft: int | None) -> None:
    """Whatever runs beside decodes ends before each one's start plus its outputs so far times D."""
    run = replace(run, policy=f"fcfs+deadline-sum:tpot={ms(tpot)}", predictor=None, objectives=Objectives(ttft=ttft))
    tables = run.simulate()
    steps = tables.steps
    ends = steps["start_ns"] + steps["duration_ns"]
    began = first_steps(tables)
    outputs = run.trace.output_tokens
    token_step = dict(zip(tables.chunks["request"].tolist(), tables.chunks["step"].tolist(), strict=True))
    own = run.trace.slo_ttft_ns
    for i, s0 in token_step.items():
        if tables.requests["first_token_ns"][i] < 0:
            continue
        assert began[i] <= s0
        goal = own[i] if own is not None and own[i] != NONE else (ttft or 0)
        start = max(int(ends[s0]), int(run.trace.arrival_ns[i] + goal))
        for s in range(s0 + 1, min(s0 + int(outputs[i]), len(ends))):
            if steps["prefill_tokens"][s]:
                assert ends[s] <= start + (s - s0) * tpot


@pytest.mark.parametrize(
    ("chunking", "chunks"),
    [
        ("deadline-sum:tpot=20,cap=9999", 1),
        ("qoserve:tpot=20,grid=128|2048|6001", 1),
        ("qoserve:tpot=20,grid=128|2048|6001,per_gap=True", 3),
        ("deadline-fill:tpot=20,cap=9999", 2),
    ],
)
def test_early_tokens_are_saved_up(chunking: str, chunks: int) -> None:
    """A request has decoded alone at 1.305 ms a token, of the 20 it may take, when a prompt of 36 ms comes.

    By deadlines that add up that fits one step; per gap 3049 tokens of it do, or of the grid 2048 with the decode.
    """
    trace = Trace(np.array([0, 100_000_000]), np.array([10, 6000]), np.array([500, 1]))
    run = Run(trace, f"fcfs+{chunking}", PAPER)
    assert (run.simulate().chunks["request"] == 1).sum() == chunks


def test_the_ttft_objective_gives_the_first_tokens_more_time() -> None:
    """A first token that came early starts the clock at the end of its objective."""
    trace = Trace(np.array([0, 1]), np.array([10, 6000]), np.array([500, 1]))
    chunks = {}
    for ttft in (None, 1_000_000_000):
        run = Run(trace, "fcfs+deadline-sum:tpot=20,cap=9999", PAPER, objectives=Objectives(ttft=ttft))
        chunks[ttft] = int((run.simulate().chunks["request"] == 1).sum())
    assert chunks[None] > chunks[1_000_000_000] == 1


@cases(80, strategies.runs(just("fcfs+full")))
def test_qoserve_without_its_features_is_a_token_budget(run: Run) -> None:
    """A grid of one size asks for no deadline."""
    run = replace(run, limits=Limits(max_num_seqs=5))
    budget = replace(run, policy="fcfs+token-budget:budget=12").simulate()
    grid = replace(run, policy="fcfs+qoserve:grid=12").simulate()
    assert_same_run(grid, budget, ignore=("predicted_ns", "granted_tokens"))


def test_per_gap_is_a_parameter() -> None:
    assert parse_policy("fcfs+qoserve").chunking.cumulative
    assert not parse_policy("fcfs+qoserve:per_gap=True").chunking.cumulative
