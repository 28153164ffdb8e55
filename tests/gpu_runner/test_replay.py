"""The replay against the simulator: an engine on a virtual clock must leave the very same tables."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_runner.clock import Clock
from gpu_runner.prompts import prompt_ids
from gpu_runner.replay import known_arrival, paced, replay
from policies.spec import PolicySpec
from sim.engine import simulate
from sim.limits import Limits
from sim.records import FINISHED, REJECTED, UNFINISHED, Tables
from tests.engine.costs import PAPER, GrowingCost
from tests.gpu_runner.fake_engine import FakeEngine
from tests.traces.strategies import traces
from traces import Trace, TraceError

MS = 1_000_000
UNLUCKY = 13
"""Outputs that the fake engine does not like."""


def simulated(trace: Trace, cost: GrowingCost, longest: int | None = None) -> Tables:
    return simulate(trace, PolicySpec.parse("fcfs+full").build(), cost, limits=Limits(1, longest))


def same(a: Tables, b: Tables) -> None:
    for name in ("steps", "requests", "chunks", "preemptions"):
        ours, theirs = getattr(a, name), getattr(b, name)
        assert ours.keys() == theirs.keys()
        for column in ours.keys() - {"kv_blocks", "predicted_ns"}:
            expected = theirs[column].copy()
            if column == "visible_step":  # the scheduler never sees what is refused on the way
                expected[list(b.reasons)] = -1
            np.testing.assert_array_equal(ours[column], expected, err_msg=f"{name}.{column}")
    assert a.reasons == b.reasons


def lucky(trace: Trace) -> bool:
    return UNLUCKY not in trace.output_tokens.tolist()


@settings(deadline=None, max_examples=100)
@given(traces(min_size=1).filter(lucky), st.sampled_from([1, 10**6, 10**9]), st.none() | st.integers(2, 250))
def test_tables_are_the_simulators(trace: Trace, base: int, longest: int | None) -> None:
    """Requests enter before the first step after their arrival, are refused alike, and idle time is slept through."""
    cost = GrowingCost(base=base)
    engine = FakeEngine(cost, longest or 10**9)
    sent_trace, run, sent = replay(trace, engine, clock=engine.virtual)
    assert sent.stopped is None
    assert sent.count == len(trace)
    assert (abs(sent_trace.arrival_ns - trace.arrival_ns) < 256).all()
    assert (sent_trace.arrival_ns >= 0).all()
    assert replace(sent_trace, arrival_ns=trace.arrival_ns) == trace
    same(run, simulated(sent_trace, cost, longest))
    reached = [i for i in range(len(trace)) if i not in sent.refused]
    assert [int(name) for name, *_ in engine.added] == reached
    for i, (_, ids, outputs, *_) in zip(reached, engine.added, strict=True):
        assert ids == prompt_ids(trace, i, engine.vocab)
        assert outputs == trace.output_tokens[i]


def steady(n: int, outputs: int = 3) -> Trace:
    return Trace(np.arange(n) * MS, np.full(n, 100), np.full(n, outputs))


def test_what_the_engine_refuses_is_rejected_and_the_others_keep_their_rows() -> None:
    trace = Trace(np.arange(4) * MS, np.array([5, 6, 7, 8]), np.array([2, UNLUCKY, 2, 2]), id=np.array(list("abcd")))
    engine = FakeEngine(GrowingCost())
    sent_trace, run, _ = replay(trace, engine, clock=engine.virtual)
    assert sent_trace.ids.tolist() == list("abcd")
    assert run.requests["outcome"].tolist() == [FINISHED, REJECTED, FINISHED, FINISHED]
    assert run.reasons == {1: f"{UNLUCKY} tokens"}
    assert run.requests["visible_step"].tolist()[1] == -1
    others = sent_trace.select(np.array([0, 2, 3]))
    same_columns = simulated(others, GrowingCost()).requests
    for column in ("ttft_ns", "jct_ns", "tpot_mean_ns", "first_scheduled_ns", "generated_tokens", "chunks"):
        np.testing.assert_array_equal(run.requests[column][[0, 2, 3]], same_columns[column])


def failing(at: int, error: BaseException) -> Callable[[int], None]:
    def before(step: int) -> None:
        if step == at:
            raise error

    return before


@pytest.mark.parametrize("at", [0, 1, 4, 20])
@pytest.mark.parametrize(
    ("error", "told"),
    [
        (KeyboardInterrupt(), "interrupted"),
        (RuntimeError("out of memory"), "the engine failed: RuntimeError: out of memory"),
    ],
)
def test_a_replay_that_stops_keeps_what_it_has(at: int, error: BaseException, told: str) -> None:
    whole = FakeEngine(PAPER)
    _, all_of_it, _ = replay(steady(12), whole, clock=whole.virtual)
    engine = FakeEngine(PAPER, before=failing(at, error))
    trace, run, sent = replay(steady(12), engine, clock=engine.virtual)
    assert sent.stopped == told
    assert sent.error is error
    assert len(run.steps["start_ns"]) == at
    for column, values in run.steps.items():
        np.testing.assert_array_equal(values, all_of_it.steps[column][:at])
    end = int((run.steps["start_ns"] + run.steps["duration_ns"])[-1]) if at else 0
    due = np.count_nonzero(all_of_it.requests["arrival_ns"] <= end)
    assert len(trace) == sent.count == due
    finished = all_of_it.requests["finished_ns"][:due] <= (end if at else -1)
    assert run.requests["outcome"].tolist() == np.where(finished, FINISHED, UNFINISHED).tolist()


def test_requests_tell_the_scheduler_what_the_trace_says() -> None:
    trace = Trace(
        np.arange(3), np.full(3, 4), np.full(3, 2), slo_ttft_ns=np.array([-1, 5 * MS, -1]),
        slo_tpot_ns=np.array([1_500_000, -1, -1]), tenant=np.array([None, "t", None], dtype=object),
    )  # fmt: skip
    engine = FakeEngine(PAPER)
    replay(trace, engine, clock=engine.virtual)
    assert [extra for *_, extra in engine.added] == [
        {"prefillsim_tpot_ms": 1.5},
        {"prefillsim_ttft_ms": 5.0, "prefillsim_tenant": "t"},
        {},
    ]


def test_lateness_is_the_wait_for_the_running_step() -> None:
    engine = FakeEngine(PAPER)
    trace, run, sent = replay(steady(10), engine, clock=engine.virtual)
    visible = run.steps["start_ns"][run.requests["visible_step"]]
    np.testing.assert_allclose(sent.late_ns, visible - trace.arrival_ns, atol=256)
    facts = sent.facts()
    assert json.loads(json.dumps(facts)) == facts
    assert facts["late_max_ms"] == round(max(sent.late_ns) / MS, 4)


def test_progress_is_told_to_the_end() -> None:
    seen: list[tuple[int, int]] = []
    engine = FakeEngine(PAPER)
    replay(steady(5), engine, clock=engine.virtual, progress=lambda *at: seen.append(at))
    assert seen == sorted(seen)
    assert seen[-1] == (5, 5)


def test_pace() -> None:
    trace = steady(5)
    assert paced(trace) is trace
    assert paced(trace, 2).arrival_ns.tolist() == [0, MS // 2, MS, 3 * MS // 2, 2 * MS]
    assert paced(trace, saturate=True).arrival_ns.tolist() == [0] * 5
    for speed in (0, -1, float("nan")):
        with pytest.raises(TraceError, match="rate scale must be a positive number"):
            paced(trace, speed)


@settings(deadline=None)
@given(st.integers(1_700_000_000, 1_900_000_000), st.integers(0, 10**14), st.integers(0, 10**14))
def test_arrivals_on_their_way_through_floats_keep_their_order_and_the_start(second: int, a: int, b: int) -> None:
    start = second * 10**9
    assert known_arrival(start) == start
    assert known_arrival(known_arrival(start + a)) == known_arrival(start + a)
    assert abs(known_arrival(start + a) - start - a) < 256
    assert (known_arrival(start + a) <= known_arrival(start + b)) or a > b


def test_the_clock_waits_until_the_time_and_not_much_longer() -> None:
    clock = Clock()
    late = []
    for _ in range(20):
        due = clock.now_ns() + 3 * MS
        clock.sleep_until(due)
        late.append(clock.now_ns() - due)
    assert min(late) >= 0
    assert np.median(late) < 2 * MS
    assert abs(clock.now_ns() - time.time_ns()) < 10**9
