"""What must not change a run: when it begins, the unit of time, names, and requests that come after its end."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from costmodels import CostModel, LinearCost
from sim.engine import simulate
from sim.limits import Limits
from sim.objectives import Objectives
from sim.records import NULL, Columns
from tests.engine import strategies
from tests.engine.compare import assert_same_columns, assert_same_run
from tests.engine.strategies import Run, ms
from tests.seeded import built, cases, either, fields, pick, rarely, whole, wide
from tests.tables import RunTables
from traces import Trace

MOMENTS = ("arrival_ns", "first_scheduled_ns", "first_token_ns", "finished_ns", "start_ns", "decided_ns")
DURATIONS = (
    "ttft_ns",
    "tpot_mean_ns",
    "tpot_p99_ns",
    "itl_max_ns",
    "jct_ns",
    "slo_ttft_ns",
    "slo_tpot_ns",
    "duration_ns",
    "predicted_ns",
    "busy_ns",
)


def mapped(run: RunTables, moment: int = 0, factor: int = 1) -> RunTables:
    """Return the tables with times multiplied by ``factor`` and moments moved by ``moment``; nulls stay."""

    def of(table: Columns) -> Columns:
        out = dict(table)
        for name in set(table) & {*MOMENTS, *DURATIONS}:
            shift = moment if name in MOMENTS else 0
            out[name] = np.where(table[name] == NULL, table[name], table[name] * factor + shift)
        return out

    return RunTables(of(run.requests), of(run.steps), run.chunks, run.reasons, run.preemptions)


@cases(60, strategies.runs(), either(whole(1, 300), wide(10**15, 10**9)))
def test_shifting_all_arrivals_shifts_all_times(run: Run, shift: int) -> None:
    horizon = None if run.limits.horizon_ns is None else run.limits.horizon_ns + shift
    shifted = replace(
        run,
        trace=replace(run.trace, arrival_ns=run.trace.arrival_ns + shift),
        limits=replace(run.limits, horizon_ns=horizon),
    )
    assert_same_run(shifted.simulate(), mapped(run.simulate(), moment=shift))


SCALABLE_ORDERINGS = (
    *("fcfs", "srjf-static", "srjf-calibrated:lam={lam}", "edf:ttft={ttft}", "edf", "test-hrrn"),
    *("hrrn", "lars:ttft={ttft},jct=perfect", "two-lane:short=9,wait={ttft}", "fair:weights=batch:3"),
    *("qoserve:ttft={ttft},alpha={age}", "k-lpm:k=2"),
)
SCALABLE_CHUNKINGS = (
    *("full", "fixed:chunk=7", "token-budget:budget=16,seqs=5", "deadline-fill:margin=10%"),
    "deadline-fill:tpot={tpot},margin={margin},age={age},overrun={overrun},margins=batch:{own}",
    *("deadline-slots:tpot={tpot},margin={margin},slots=3", "p-pas:low=9,high=16,seqs=5"),
)
SCALABLE_ADMISSIONS = (
    *("", "+decode-saturation:tpot={tpot}", "+decode-saturation:fraction=0.5", "+queue-limit:limit=3"),
)
SCALABLE = built(
    lambda *made: made,
    built("{}+{}{}".format, pick(*SCALABLE_ORDERINGS), pick(*SCALABLE_CHUNKINGS), pick(*SCALABLE_ADMISSIONS)),
    fields(
        ttft=whole(1, 500),
        tpot=pick(30, 80, 150),
        margin=whole(0, 20),
        age=whole(1, 100),
        overrun=whole(0, 100),
        own=whole(0, 20),
    ),
    fields(lam=pick(0, 2**20, 2**27, 2**30)),
)
"""A policy with placeholders, its times in ns, and its rates in tokens per second."""


@cases(
    60,
    strategies.traces(),
    SCALABLE,
    strategies.LINEAR_COSTS,
    pick(None, 60, 120),
    rarely(whole(300, 3000)),
    whole(1, 10),
)
def test_scaling_all_times_scales_all_times(
    trace: Trace,
    policy: tuple[str, dict[str, int], dict[str, int]],
    cost: LinearCost,
    objective: int | None,
    horizon: int | None,
    k: int,
) -> None:
    """Powers of two keep floats exact. Reasons quote times, so only whom they are for is compared."""
    text, times, rates = policy

    def at(factor: int) -> RunTables:
        written = {n: ms(t * factor) for n, t in times.items()} | {n: f"{r / factor!r}" for n, r in rates.items()}
        scaled = {
            c: np.where(v == NULL, NULL, v * factor)
            for c in ("arrival_ns", "slo_ttft_ns", "slo_tpot_ns")
            if (v := getattr(trace, c)) is not None
        }
        coefficients = ("step", "decode", "per_decode", "prefill", "per_token")
        tables = Run(
            replace(trace, **scaled),
            text.format(**written),
            LinearCost(**{c: getattr(cost, c) * factor for c in coefficients}),
            objectives=Objectives(ttft=objective and objective * factor, tpot_p99=objective and objective * factor),
            limits=Limits(horizon_ns=horizon and horizon * factor),
        ).simulate()
        return RunTables(tables.requests, tables.steps, tables.chunks, dict.fromkeys(tables.reasons, ""))

    assert_same_run(at(2**k), mapped(at(1), factor=2**k))


@cases(
    60,
    strategies.traces(),
    strategies.such_that(
        lambda o: not o.startswith(("srjf-calibrated", "edf", "lars", "two-lane", "qoserve")), strategies.ANY_ORDERING
    ),
    pick("full", "fixed:chunk=7", "token-budget:budget=16,seqs=5", "test-pair"),
    strategies.LINEAR_COSTS,
)
def test_a_gpu_twice_as_fast_at_twice_the_rate_takes_the_same_order(
    trace: Trace, ordering: str, chunking: str, cost: LinearCost
) -> None:
    """P6, for policies without times of their own."""
    slow = Run(
        replace(trace, arrival_ns=2 * trace.arrival_ns),
        f"{ordering}+{chunking}",
        LinearCost("slow", *(2 * c for c in (cost.step, cost.decode, cost.per_decode, cost.prefill, cost.per_token))),
    ).simulate()
    fast = Run(trace, f"{ordering}+{chunking}", cost).simulate()
    assert_same_columns(slow.chunks, fast.chunks, "chunks")
    assert (slow.requests["finished_ns"] == 2 * fast.requests["finished_ns"]).all()


@cases(60, strategies.runs(), whole(0, 2**32))
def test_labels_label_nothing_else(run: Run, seed: int) -> None:
    n = len(run.trace)
    labels = np.random.default_rng(seed).permutation(n)
    labelled = replace(
        run.trace,
        id=np.array([f"request-{i}" for i in labels], dtype=object),
        session=np.array([f"user-{i % 3}" for i in labels], dtype=object),
        name="labelled",
    )
    assert_same_run(replace(run, trace=labelled).simulate(), run.simulate())


@cases(
    60,
    strategies.such_that(lambda t: t.tenant is not None, strategies.traces(min_size=4)),
    whole(0, 60),
    whole(0, 60),
    pick(40, 90, 150),
    strategies.LINEAR_COSTS,
)
def test_tenants_may_have_any_names(trace: Trace, first: int, second: int, tpot: int, cost: LinearCost) -> None:
    def with_names(a: str, b: str) -> RunTables:
        tenants = np.where(trace.tenant == strategies.TENANTS[0], a, b).astype(object)
        policy = f"sloweave:tpot={ms(tpot)},margins={a}:{ms(first)}|{b}:{ms(second)}"
        return Run(replace(trace, tenant=tenants), policy, cost).simulate()

    assert_same_run(with_names("interactive", "batch"), with_names("zeta", "alpha"))


@cases(60, strategies.runs(), strategies.traces(max_size=5), whole(0, 50))
def test_requests_after_the_end_change_nothing_before_it(run: Run, late: Trace, gap: int) -> None:
    run = replace(run, limits=replace(run.limits, horizon_ns=None))
    before = run.simulate()
    end = int(max(before.steps["start_ns"] + before.steps["duration_ns"], default=0))
    last = int(run.trace.arrival_ns[-1])
    arrivals = late.arrival_ns + max(end, last) + gap
    columns = {
        "arrival_ns": np.concatenate([run.trace.arrival_ns, arrivals]),
        **{c: np.concatenate([getattr(run.trace, c), getattr(late, c)]) for c in ("prompt_tokens", "output_tokens")},
        **{
            c: np.concatenate([v, np.full(len(late), fill)])
            for c, fill in (("slo_ttft_ns", 77), ("slo_tpot_ns", 55), ("tenant", "batch"))
            if (v := getattr(run.trace, c)) is not None
        },
    }
    after = replace(run, trace=Trace(**columns)).simulate()
    n, k = len(run.trace), len(before.steps["start_ns"])
    requests = {c: v[:n] for c, v in after.requests.items()}
    # A request that was turned away after the last step is visible at a step only if there is a later one.
    requests["visible_step"] = np.where(requests["visible_step"] < k, requests["visible_step"], NULL)
    assert_same_columns(requests, before.requests, "requests")
    assert_same_columns({c: v[:k] for c, v in after.steps.items()}, before.steps, "steps")
    assert {i: r for i, r in after.reasons.items() if i < n} == before.reasons


@cases(
    60,
    strategies.traces(max_size=8),
    either(pick("fcfs+test-learning:start=9"), strategies.POLICIES),
    either(strategies.LINEAR_COSTS, strategies.GROWING_COSTS),
)
def test_a_policy_object_can_run_again(trace: Trace, policy: str, cost: CostModel) -> None:
    """``reset`` forgets what was learned."""
    run = Run(trace, policy, cost)
    reused = run.build()
    fresh = run.simulate()
    for _ in range(2):
        assert_same_run(simulate(trace, reused, cost), fresh)
