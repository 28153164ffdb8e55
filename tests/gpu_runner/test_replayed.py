"""A run's clocks fed back to the simulator give the same batches, and a changed one is found at its first step."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from costmodels.linear import LinearCost
from gpu_runner.identity import Batch, agreement, batches_of
from gpu_runner.validate.replayed import simulate_recorded
from gpu_runner.validate.schedule import compare_schedules, schedule_section
from policies.spec import parse_policy
from sim.engine import simulate
from sim.limits import Limits
from sim.memory import Memory
from sim.objectives import Objectives
from sim.tables import LoggedRun
from traces.schema import Trace
from traces.synthetic import generate

POLICIES = ("vllm-default", "fcfs+fixed:chunk=64", "sloweave:tpot=25", "srjf-calibrated+guarded", "lpm+token-budget")
OBJECTIVES = Objectives(tpot_p99=25_000_000)
LIMITS = Limits(max_num_seqs=20)
COST = LinearCost(residual_quantiles={"0.5": 0, "0.99": 500_000})


def _run(trace: Trace, label: str, blocks: int) -> LoggedRun:
    cache = Memory(blocks=blocks).build(trace)
    return simulate(trace, parse_policy(label), COST, objectives=OBJECTIVES, limits=LIMITS, cache=cache)


def _again(trace: Trace, run: LoggedRun, label: str, blocks: int, visible: np.ndarray | None = None) -> LoggedRun:
    return simulate_recorded(
        trace,
        parse_policy(label),
        decided_ns=run.steps["decided_ns"],
        duration_ns=run.steps["duration_ns"],
        visible_step=run.requests["visible_step"] if visible is None else visible,
        predictor=COST,
        objectives=OBJECTIVES,
        limits=LIMITS,
        cache=Memory(blocks=blocks).build(trace),
    )


@settings(deadline=None, max_examples=25)
@given(
    label=st.sampled_from(POLICIES),
    workload=st.sampled_from(("mixed", "bursty", "post-recommendation")),
    seed=st.integers(0, 1000),
    n=st.integers(1, 40),
    spare=st.integers(0, 300),
)
def test_a_run_on_its_own_clocks_is_itself(label: str, workload: str, seed: int, n: int, spare: int) -> None:
    trace = generate(workload, seed, n=n)
    blocks = int((trace.prompt_tokens + trace.output_tokens).max()) // 16 + 2 + spare
    run = _run(trace, label, blocks)
    again = _again(trace, run, label, blocks)
    for name, column in run.steps.items():
        if name != "predicted_ns":
            assert np.array_equal(column, again.steps[name]), name
    found = agreement(batches_of(run), batches_of(again))
    assert found.identical
    assert found.same == found.steps == len(run.steps["start_ns"])


def test_what_is_seen_a_step_later_is_found() -> None:
    """Arrival visibility is part of what is recorded: changed for one request, the batches are others."""
    trace = generate("mixed", 1, n=30, rate=10)
    run = _run(trace, "vllm-default", 700)
    visible = run.requests["visible_step"].copy()
    starts = dict(zip(run.chunks["request"][::-1].tolist(), run.chunks["step"][::-1].tolist(), strict=True))
    late = next(i for i in range(5, 30) if starts[i] == visible[i] < visible[i + 1])
    visible[late] += 1
    found = agreement(batches_of(run), batches_of(_again(trace, run, "vllm-default", 700, visible)))
    assert not found.identical
    assert found.first is not None
    assert found.first.step == run.requests["visible_step"][late]
    assert "request:tokens" in str(found.first)


BATCH = Batch(5, 5, 10, ((0, 3), (1, 1)))


@pytest.mark.parametrize(
    ("other", "what"),
    [
        (replace(BATCH, requests=((0, 3),)), "the batches differ"),
        (replace(BATCH, requests=((1, 1), (0, 3))), "the order within the batch differs"),
        (replace(BATCH, preempted=(4,)), "the preempted requests differ"),
        (replace(BATCH, start=6), "start differs by -1e-06 ms"),
        (None, "only one of the two has such a step"),
    ],
)
def test_each_kind_of_difference_has_its_words(other: Batch | None, what: str) -> None:
    found = agreement([BATCH, BATCH], [BATCH] if other is None else [BATCH, other])
    assert (found.steps, found.same) == (2, 1)
    assert found.first is not None
    assert (found.first.step, found.first.what, found.first.before) == (1, what, BATCH)


def test_times_can_be_left_out() -> None:
    assert agreement([BATCH], [replace(BATCH, start=6)], times=False).identical


@settings(deadline=None, max_examples=20)
@given(step=st.integers(0, 200), seed=st.integers(0, 50))
def test_the_section_names_the_first_difference(step: int, seed: int) -> None:
    trace = generate("mixed", seed, n=12)
    run = _run(trace, "vllm-default", 700)
    batches = batches_of(run)
    assume(step < len(batches))
    wrong = [*batches]
    wrong[step] = replace(wrong[step], requests=(*wrong[step].requests, (99, 1)))
    schedules = [
        compare_schedules(
            name,
            trace,
            run,
            made,
            parse_policy("vllm-default"),
            predictor=COST,
            objectives=OBJECTIVES,
            limits=LIMITS,
            cache=Memory(blocks=700).build(trace),
        )
        for name, made in (("right", batches), ("wrong", wrong))
    ]
    good, bad = schedule_section("t", schedules[:1]), schedule_section("t", schedules)
    assert (good.passed, good.misses, good.verbatim) == (True, [], "")
    assert bad.passed is False
    assert len(bad.misses) == 1
    assert f"first in step {step}" in bad.misses[0]
    assert "only in the engine: 99:1" in bad.verbatim
