"""Limits and order of the orderings: P1, P2 and P3 of the design's verification plan."""

from __future__ import annotations

import random
from dataclasses import replace
from fractions import Fraction

import numpy as np

from policies import RequestView, parse_policy
from sim.least import FAR
from sim.records import NULL, REJECTED
from tests.engine import strategies
from tests.engine.compare import assert_same_run
from tests.engine.costs import prefill_only
from tests.engine.strategies import Run
from tests.engine.test_invariants import first_steps
from tests.seeded import built, cases, just, pick, whole, wide
from traces import NONE, Trace

NS = 10**9
positive_lams = pick("1e6", "2.5e7", "1e8", "333333333.3", "1e9", "4e9")


rests = built("{}{}".format, strategies.ANY_CHUNKING, strategies.ANY_ADMISSION)
"""What follows an ordering."""


def with_ordering(run: Run, ordering: str, rest: str) -> Run:
    return replace(run, policy=f"{ordering}+{rest}")


crowded = strategies.runs(just("fcfs+full"))
"""Runs whose policy the test replaces; seats are drawn for ``full`` and dropped where a budget needs its own."""


def seatless(run: Run) -> Run:
    return replace(run, limits=replace(run.limits, max_num_seqs=None))


@cases(50, crowded, rests)
def test_without_aging_calibrated_is_static(run: Run, rest: str) -> None:
    run = seatless(run)
    assert_same_run(
        with_ordering(run, "srjf-calibrated:lam=0", rest).simulate(),
        with_ordering(run, "srjf-static", rest).simulate(),
    )


@cases(50, crowded, rests)
def test_unlimited_aging_is_fcfs(run: Run, rest: str) -> None:
    run = seatless(run)
    assert_same_run(
        with_ordering(run, "srjf-calibrated:lam=inf", rest).simulate(), with_ordering(run, "fcfs", rest).simulate()
    )


@cases(50, crowded, rests, whole(0, 5))
def test_aging_that_outweighs_every_prompt_in_a_nanosecond_is_fcfs(run: Run, rest: str, extra: int) -> None:
    """For distinct arrivals; those at the same instant have aged alike and go by their work."""
    run = seatless(run)
    distinct = run.trace.arrival_ns + np.arange(len(run.trace))
    run = replace(run, trace=replace(run.trace, arrival_ns=distinct))
    lam = (int(run.trace.prompt_tokens.max()) + extra) * NS
    assert_same_run(
        with_ordering(run, f"srjf-calibrated:lam={lam}", rest).simulate(),
        with_ordering(run, "fcfs", rest).simulate(),
    )


@cases(50, crowded, rests, whole(1, 40), pick("srjf-static", "srjf-calibrated:lam=1e7"))
def test_equal_work_is_fcfs(run: Run, rest: str, prompt: int, ordering: str) -> None:
    run = seatless(run)
    run = replace(run, trace=replace(run.trace, prompt_tokens=np.full(len(run.trace), prompt)))
    assert_same_run(with_ordering(run, ordering, rest).simulate(), with_ordering(run, "fcfs", rest).simulate())


@cases(50, crowded, rests, strategies.times(1, 500))
def test_a_common_ttft_deadline_is_fcfs(run: Run, rest: str, ttft: str) -> None:
    run = seatless(run)
    assert_same_run(
        with_ordering(run, f"edf:ttft={ttft}", rest).simulate(), with_ordering(run, "fcfs", rest).simulate()
    )


@cases(50, crowded, rests, strategies.such_that(lambda lam: lam != "inf", strategies.LAMS))
def test_the_heap_gives_what_the_paper_s_full_rescan_gives(run: Run, rest: str, lam: str) -> None:
    """PrefillOnly §6.3, Algorithm 1 scores every waiting request again at each decision."""
    run = seatless(run)
    assert_same_run(
        with_ordering(run, f"srjf-calibrated:lam={lam}", rest).simulate(),
        with_ordering(run, f"test-rescan:lam={lam}", rest).simulate(),
    )


def views(rng: random.Random) -> list[RequestView]:
    """Make two to six requests, in any order of their numbers."""
    n = rng.randint(2, 6)
    arrival, prompt, generated = wide(10 ** rng.choice([1, 12])), wide(10 ** rng.choice([1, 5]), 1), whole(0, 100)
    numbers = rng.sample(range(rng.choice([n, 10**6])), n)
    return [RequestView(number, arrival(rng), prompt(rng), 0, generated(rng)) for number in numbers]


@cases(60, views, pick("0", "0.1", "500", "123.456", "1e6"), wide(10**13, 10**12), wide(10**13, 10**12))
def test_the_aged_order_does_not_change_with_time(waiting: list[RequestView], lam: str, now: int, later: int) -> None:
    """P2: all age at one rate, so the clock cancels."""
    policy = parse_policy(f"srjf-calibrated:lam={lam}+full")
    policy.reset(None)

    def score(view: RequestView, at: int) -> tuple[Fraction, int, int]:
        waited = Fraction(at - view.arrival_ns, NS)
        return view.prompt_tokens + view.generated_tokens - Fraction(lam) * waited, view.arrival_ns, view.number

    by_key = sorted(waiting, key=lambda v: (policy.ordering.key(v), v.arrival_ns, v.number))
    assert by_key == sorted(waiting, key=lambda v: score(v, now)) == sorted(waiting, key=lambda v: score(v, later))


@cases(50, crowded, positive_lams, pick("full", "fixed:chunk=6", "token-budget:budget=24,seqs=4"))
def test_overtaking_is_bounded(run: Run, lam: str, chunking: str) -> None:
    """P3: who arrives later starts earlier only if the gap between arrivals is paid by the difference in work.

    Exact in integers: ``a_j - a_i < (w_i - w_j) / lam``, for ties go to the earlier arrival.
    """
    run = with_ordering(seatless(run), f"srjf-calibrated:lam={lam}", chunking)
    tables = run.simulate()
    arrival, work = run.trace.arrival_ns.tolist(), run.trace.prompt_tokens.tolist()
    weight = Fraction(lam)
    place = dict(zip(_start_order(tables.chunks["request"].tolist()), range(len(run.trace)), strict=False))
    waiting = [i for i in range(len(run.trace)) if tables.requests["outcome"][i] != REJECTED]
    for i in waiting:
        for j in place:
            if arrival[i] < arrival[j] and place[j] < place.get(i, len(run.trace)):
                assert weight * (arrival[j] - arrival[i]) < (work[i] - work[j]) * NS


@cases(50, crowded, pick("full", "fixed:chunk=6", "token-budget:budget=24,seqs=4"))
def test_the_earliest_deadline_that_is_known_starts_first(run: Run, chunking: str) -> None:
    """Among those that have arrived by then; requests without a TTFT objective go last."""
    run = with_ordering(replace(seatless(run), objectives=None), "edf", chunking)
    tables = run.simulate()
    own = run.trace.slo_ttft_ns
    arrival = run.trace.arrival_ns
    deadline = np.where(own == NONE, FAR, arrival + own) if own is not None else np.full(len(arrival), FAR)
    first = first_steps(tables)
    here = tables.requests["outcome"] != REJECTED
    for j in np.flatnonzero(tables.requests["first_scheduled_ns"] != NULL).tolist():
        waiting = here & (arrival <= tables.requests["first_scheduled_ns"][j]) & (first > first[j])
        assert (deadline[waiting] >= deadline[j]).all()


def _start_order(requests: list[int]) -> list[int]:
    return list(dict.fromkeys(requests))


def test_overtaking_happens_and_its_bound_is_tight() -> None:
    """The last request passes the one before while it saves more work than that one has aged, and no longer."""
    for gap, passes in ((9, True), (10, False)):
        trace = Trace(np.array([0, 1, 1 + gap]), np.array([1000, 30, 20]), np.ones(3, dtype=np.int64))
        run = Run(trace, "srjf-calibrated:lam=1e9+full", prefill_only())
        assert first_steps(run.simulate()).tolist() == ([0, 2, 1] if passes else [0, 1, 2])
