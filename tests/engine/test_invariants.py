"""What holds in every run, whatever the policy: nothing is lost, nothing is counted twice, no time is wasted."""

from __future__ import annotations

import numpy as np

from policies import parse_policy
from sim.records import FINISHED, NULL, REDIRECTED, REJECTED, UNFINISHED
from tests.engine import strategies
from tests.engine.strategies import Run
from tests.seeded import cases, pick
from tests.tables import RunTables


def first_steps(tables: RunTables) -> np.ndarray:
    """Return the step of each request's first chunk, one beyond the last step where it never started."""
    steps = np.full(len(tables.requests["chunks"]), len(tables.steps["start_ns"]))
    np.minimum.at(steps, tables.chunks["request"], tables.chunks["step"])
    return steps


def prefilled_steps(tables: RunTables) -> np.ndarray:
    """Return the step that completes each request's prefill, one beyond the last step where none does."""
    ends = tables.steps["start_ns"] + tables.steps["duration_ns"]
    first = tables.requests["first_token_ns"]
    return np.where(first == NULL, len(ends), np.searchsorted(ends, first))


def tokens_are_conserved(run: Run, tables: RunTables) -> None:
    requests, chunks = tables.requests, tables.chunks
    computed = np.zeros(len(run.trace), dtype=np.int64)
    np.add.at(computed, chunks["request"], chunks["tokens"])
    has_token = requests["first_token_ns"] != NULL
    assert (chunks["tokens"] > 0).all()
    assert (computed[has_token] == run.trace.prompt_tokens[has_token]).all()
    assert (computed[~has_token] < run.trace.prompt_tokens[~has_token]).all()
    finished = requests["outcome"] == FINISHED
    assert (requests["generated_tokens"][finished] == run.trace.output_tokens[finished]).all()
    assert (requests["generated_tokens"][~finished] < run.trace.output_tokens[~finished]).all()
    turned_away = np.isin(requests["outcome"], [REJECTED, REDIRECTED])
    assert (computed[turned_away] == 0).all()


def every_decode_gets_one_token_in_every_step(run: Run, tables: RunTables) -> None:
    steps, requests = tables.steps, tables.requests
    first, finished = requests["first_token_ns"], requests["finished_ns"]
    prefilled = prefilled_steps(tables)
    for k, start in enumerate(steps["start_ns"].tolist()):
        decodes = (first != NULL) & (first <= start) & ((finished == NULL) | (finished > start))
        contexts = run.trace.prompt_tokens[decodes] + (k - prefilled[decodes]) - 1
        assert steps["n_decode"][k] == decodes.sum()
        assert steps["decode_context"][k] == contexts.sum()
        assert steps["decode_context_max"][k] == contexts.max(initial=0)
    assert steps["n_decode"].sum() == (requests["generated_tokens"] - (first != NULL)).sum()


def the_batch_table_agrees_with_the_steps(run: Run, tables: RunTables) -> None:
    steps, chunks = tables.steps, tables.chunks
    n = len(steps["start_ns"])
    per_step = np.zeros(n, dtype=np.int64)
    np.add.at(per_step, chunks["step"], chunks["tokens"])
    assert (per_step == steps["prefill_tokens"]).all()
    assert (np.bincount(chunks["step"], minlength=n) == steps["n_prefill"]).all()
    assert (steps["prefill_tokens"] <= steps["granted_tokens"]).all()
    assert (steps["prefill_tokens"] + steps["n_decode"] > 0).all(), "a step without work"


def the_policy_bounds_its_steps(run: Run, tables: RunTables) -> None:
    """Budget, threshold, cap, seats, and one prefill per step where the policy says so."""
    steps, chunks = tables.steps, tables.chunks
    chunking = parse_policy(run.policy).chunking
    if chunking.name in ("full", "fixed", "deadline-fill"):
        assert (steps["n_prefill"] <= 1).all()
    if chunking.name == "full":
        assert (chunks["tokens"] == run.trace.prompt_tokens[chunks["request"]]).all()
    if chunking.name == "fixed":
        assert (chunks["tokens"] <= chunking.chunk).all()
    if chunking.name == "deadline-fill":
        assert (chunks["tokens"] <= chunking.cap).all()
    if chunking.name == "token-budget":
        assert (steps["n_decode"] + steps["prefill_tokens"] <= chunking.budget).all()
        if chunking.threshold is not None:
            assert (chunks["tokens"] <= chunking.threshold).all()
    seats = chunking.seat_limit(run.limits.max_num_seqs)
    if seats is not None:
        scheduled, finished = tables.requests["first_scheduled_ns"], tables.requests["finished_ns"]
        for start in steps["start_ns"].tolist():
            running = (scheduled != NULL) & (scheduled <= start) & ((finished == NULL) | (finished > start))
            assert running.sum() <= seats


def started_prefills_get_tokens_before_waiting_requests(run: Run, tables: RunTables) -> None:
    chunks = tables.chunks
    first, done = first_steps(tables), prefilled_steps(tables)
    batches = set(zip(chunks["step"].tolist(), chunks["request"].tolist(), strict=True))
    for step in np.unique(first[first < len(tables.steps["start_ns"])]).tolist():
        for started in np.flatnonzero((first < step) & (done >= step)).tolist():
            assert (step, started) in batches


def the_engine_is_never_idle_while_there_is_work(run: Run, tables: RunTables) -> None:
    start, duration = tables.steps["start_ns"], tables.steps["duration_ns"]
    assert (duration > 0).all()
    ends = start + duration
    arrival, finished = run.trace.arrival_ns, tables.requests["finished_ns"]
    turned_away = np.isin(tables.requests["outcome"], [REJECTED, REDIRECTED])
    for before, after in zip([0, *ends.tolist()], start.tolist(), strict=False):
        assert before <= after
        if before < after:
            here = (arrival <= before) & ~turned_away
            assert (finished[here] != NULL).all()
            assert (finished[here] <= before).all()
            assert after in arrival[arrival > before]
            assert turned_away[(arrival > before) & (arrival < after)].all()


def arrivals_during_a_step_are_seen_at_its_end(run: Run, tables: RunTables) -> None:
    """At its start, a step counts as waiting whoever has arrived by then, was let in, and has not started."""
    first, arrival = first_steps(tables), run.trace.arrival_ns
    turned_away = np.isin(tables.requests["outcome"], [REJECTED, REDIRECTED])
    for k, start in enumerate(tables.steps["start_ns"].tolist()):
        waiting = (arrival <= start) & ~turned_away & (first >= k)
        assert tables.steps["waiting"][k] == waiting.sum()
        visible = tables.requests["visible_step"]
        assert ((arrival <= start) == ((visible != NULL) & (visible <= k))).all()


def no_request_is_lost(run: Run, tables: RunTables) -> None:
    requests = tables.requests
    outcome = requests["outcome"]
    counts = [np.count_nonzero(outcome == o) for o in (FINISHED, REJECTED, REDIRECTED, UNFINISHED)]
    assert sum(counts) == len(run.trace)
    assert ((requests["finished_ns"] != NULL) == (outcome == FINISHED)).all()
    assert set(tables.reasons) == set(np.flatnonzero(np.isin(outcome, [REJECTED, REDIRECTED])).tolist())
    if run.limits.horizon_ns is None:
        assert counts[-1] == 0
    else:
        assert (tables.steps["start_ns"] < run.limits.horizon_ns).all()


def times_of_a_request_add_up(run: Run, tables: RunTables) -> None:
    """The gaps of a request are its latency less its TTFT (inference-sim#1091, #1095)."""
    requests = tables.requests
    several = (requests["generated_tokens"] > 1) & (requests["outcome"] == FINISHED)
    gaps = requests["tpot_mean_ns"][several] * (requests["generated_tokens"][several] - 1)
    latency = (requests["jct_ns"] - requests["ttft_ns"])[several]
    np.testing.assert_array_equal(np.rint(gaps).astype(np.int64), latency)
    assert (requests["itl_max_ns"][several] <= latency).all()
    few = requests["generated_tokens"] <= 1
    assert np.isnan(requests["tpot_mean_ns"][few]).all()
    assert np.isnan(requests["tpot_p99_ns"][few]).all()
    assert (requests["itl_max_ns"][few] == NULL).all()
    longest = requests["itl_max_ns"][~few]
    assert (requests["tpot_p99_ns"][~few] <= longest).all()
    assert (requests["tpot_mean_ns"][~few] <= longest).all()
    for earlier, later in (("arrival_ns", "first_scheduled_ns"), ("first_scheduled_ns", "first_token_ns")):
        there = requests[later] != NULL
        assert (requests[earlier][there] <= requests[later][there]).all()


CHECKS = (
    tokens_are_conserved,
    every_decode_gets_one_token_in_every_step,
    the_batch_table_agrees_with_the_steps,
    the_policy_bounds_its_steps,
    started_prefills_get_tokens_before_waiting_requests,
    the_engine_is_never_idle_while_there_is_work,
    arrivals_during_a_step_are_seen_at_its_end,
    no_request_is_lost,
    times_of_a_request_add_up,
)


@cases(150, strategies.runs())
def test_invariants(run: Run) -> None:
    tables = run.simulate()
    for check in CHECKS:
        check(run, tables)


@cases(80, strategies.runs(pick("fcfs+full", "srjf-static+fixed:chunk=5", "test-hrrn+fixed:chunk=19")))
def test_static_chunks_leave_no_prefill_waiting_that_has_a_seat(run: Run) -> None:
    seats = run.limits.max_num_seqs
    steps = run.simulate().steps
    may = (steps["waiting"] > 0) & (steps["n_decode"] < (seats or len(run.trace) + 1))
    assert (steps["n_prefill"][may] == 1).all()
