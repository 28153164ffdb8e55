"""SLOWeave §3: chunks end before the earliest next-token deadline, and are as long as they can be (Proposition 1)."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

import numpy as np
import pytest

from costmodels import CostModel, LinearCost
from policies import BatchView, Candidate, Grant, RequestView, parse_policy
from sim.least import FAR
from tests.engine import strategies
from tests.engine.compare import assert_same_run
from tests.engine.costs import PAPER, GrowingCost
from tests.engine.strategies import Run, ms
from tests.seeded import built, cases, either, pick, whole
from traces import NONE, Trace


@dataclass(frozen=True)
class Batch:
    """Decodes beside one prefill."""

    n_decode: int
    decode_context: int
    decode_context_max: int
    context: int
    remaining: int

    def step(self, cost: CostModel, chunk: int) -> int:
        """Return the duration of a step that prefills ``chunk`` tokens."""
        pairs = sum(range(self.context + 1, self.context + chunk + 1))
        return cost.step_ns(*self.decodes, 1 if chunk else 0, chunk, pairs)

    @property
    def decodes(self) -> tuple[int, int, int]:
        return self.n_decode, self.decode_context, self.decode_context_max

    def grant(self, policy: str, cost: CostModel, slack: int, waited: int = 0) -> Grant:
        """Return what a policy grants when the earliest deadline is ``slack`` away."""
        chunking = parse_policy(policy).chunking
        chunking.reset(cost)
        now = 10**6
        request = RequestView(0, now - waited, self.context + self.remaining)
        candidate = Candidate(request, self.context, self.remaining)
        return chunking.grant(BatchView(now, *self.decodes, now + slack, (candidate,), 0))


def batch(rng: random.Random) -> Batch:
    n, tallest = rng.randint(1, 20), rng.randint(1, 500)
    total = tallest + rng.randint(0, (n - 1) * tallest)
    return Batch(n, total, tallest, rng.randint(0, 300), rng.randint(1, 300))


batches = built(lambda *drawn: drawn, batch, strategies.COSTS, either(whole(-50, 400), whole(0, 4000)))
"""A batch, a cost model and the time that is left to the earliest deadline."""

Drawn = tuple[Batch, CostModel, int]


@cases(200, batches, whole(1, 400), lambda rng: rng)
def test_proposition_1_safe_and_maximal(drawn: Drawn, cap: int, rng: random.Random) -> None:
    batch, cost, slack = drawn
    if rng.random() < 0.5:
        # A deadline exactly at the end of some chunk is where "before" and "at" part.
        slack = batch.step(cost, rng.randint(1, batch.remaining)) + rng.randint(-1, 1)
    tokens = batch.grant(f"sloweave:cap={cap}", cost, slack).tokens
    limit = min(cap, batch.remaining)
    assert 0 <= tokens <= limit
    if tokens:
        assert batch.step(cost, tokens) <= slack
    if tokens < limit:
        assert batch.step(cost, tokens + 1) > slack


@cases(200, batches, whole(1, 400), whole(0, 300))
def test_a_later_deadline_never_grants_less(drawn: Drawn, cap: int, more: int) -> None:
    batch, cost, slack = drawn
    policy = f"sloweave:cap={cap}"
    assert batch.grant(policy, cost, slack + more).tokens >= batch.grant(policy, cost, slack).tokens


@cases(200, batches, whole(1, 12), whole(0, 3000))
def test_more_decodes_never_get_a_longer_chunk(drawn: Drawn, more: int, context: int) -> None:
    batch, cost, slack = drawn
    fuller = replace(batch, n_decode=batch.n_decode + more, decode_context=batch.decode_context + context)
    assert fuller.grant("sloweave", cost, slack).tokens <= batch.grant("sloweave", cost, slack).tokens


@cases(200, batches, whole(0, 200), whole(0, 30))
def test_a_margin_is_kept_free(drawn: Drawn, margin: int, percent: int) -> None:
    batch, cost, slack = drawn
    for text, extra in ((ms(margin), lambda t: margin), (f"{percent}%", lambda t: -(-t * percent // 100))):
        tokens = batch.grant(f"sloweave:margin={text}", cost, slack).tokens
        if tokens:
            t = batch.step(cost, tokens)
            assert t + extra(t) <= slack
        if tokens < batch.remaining:
            t = batch.step(cost, tokens + 1)
            assert t + extra(t) > slack


@cases(200, batches, whole(0, 200), pick(0, 19, 20, 21, 22, 500))
def test_an_aged_prefill_overruns_by_no_more_than_allowed(drawn: Drawn, overrun: int, waited: int) -> None:
    batch, cost, slack = drawn
    age = 20
    plain = batch.grant("sloweave", cost, slack)
    aged = batch.grant(f"sloweave:age={ms(age)},overrun={ms(overrun)}", cost, slack, waited)
    late = batch.grant("sloweave", cost, slack + overrun)
    assert aged == (late._replace(exception=True) if waited > age and late.tokens > plain.tokens else plain)


@cases(200, batches)
def test_the_cost_model_s_own_search_is_the_bisection(drawn: Drawn) -> None:
    """Closed forms (linear, margins) answer what ``CostModel.max_chunk`` finds with ``step_ns`` alone."""
    batch, cost, slack = drawn
    arguments = (*batch.decodes, batch.context, batch.remaining, slack)
    assert cost.max_chunk(*arguments) == CostModel.max_chunk(cost, *arguments)


@cases(200, strategies.COSTS, whole(1, 20), whole(1, 500), whole(0, 40))
def test_the_cost_model_s_own_decode_run_is_step_by_step(cost: CostModel, n: int, tallest: int, steps: int) -> None:
    run = cost.decode_run_ns(n, n * tallest, tallest, steps)
    assert run.dtype == np.int64
    assert run.tolist() == [cost.step_ns(n, n * (tallest + j), tallest + j, 0, 0, 0) for j in range(steps)]


def test_the_worked_example_of_the_paper_is_exact() -> None:
    """T(4, 1355) is 10 ms to the nanosecond (§4.1); doubles make it 10.000000000000002 and answer 1354."""
    batch = Batch(4, 4000, 1000, 0, 4096)
    assert batch.step(PAPER, 1355) == 10_000_000
    assert batch.step(PAPER, 1356) > 10_000_000
    assert batch.grant("sloweave", PAPER, 10_000_000).tokens == 1355
    assert batch.grant("sloweave", PAPER, 9_999_999).tokens == 1354


@pytest.mark.parametrize(("tpot_ms", "most"), [(10, 159), (25, 431), (50, 886)])
def test_the_largest_batch_whose_decodes_fit(tpot_ms: int, most: int) -> None:
    """A decode-only step breaks D first at 160, 432 and 887 requests (§3.4's admission threshold)."""
    assert PAPER.step_ns(most, 0, 0, 0, 0, 0) <= tpot_ms * 1_000_000
    assert PAPER.step_ns(most + 1, 0, 0, 0, 0, 0) > tpot_ms * 1_000_000
    assert Batch(most + 1, 0, 0, 0, 100).grant("sloweave", PAPER, tpot_ms * 1_000_000).tokens == 0


def allowed_gaps(trace: Trace, tpot: int | None, margins: dict[str, int]) -> np.ndarray:
    """Return each request's D, the policy's own, else the request's, else none, less its tenant's margin."""
    if tpot is not None:
        allowed = np.full(len(trace), tpot)
    elif trace.slo_tpot_ns is not None:
        allowed = np.where(trace.slo_tpot_ns == NONE, FAR, trace.slo_tpot_ns)
    else:
        allowed = np.full(len(trace), FAR)
    tenants = [None] * len(trace) if trace.tenant is None else trace.tenant.tolist()
    return np.maximum(allowed - np.array([margins.get(t, 0) for t in tenants]), 1)


@cases(
    150,
    strategies.traces(min_size=3, max_prompt=90, max_output=25),
    strategies.COSTS,
    pick(None, 40, 90, 150, 250),
    pick("fcfs", "srjf-static", "test-hrrn"),
    pick({}, {}, {"interactive": 30}, {"interactive": 9, "batch": 2}),
)
def test_exact_predictions_violate_no_deadline_that_decoding_alone_meets(
    trace: Trace, cost: CostModel, tpot: int | None, ordering: str, margins: dict[str, int]
) -> None:
    """A step longer than the D of anyone who decodes in it prefills nothing; so no prefill is to blame for any gap."""
    own = [f"tpot={ms(tpot)}"] if tpot else []
    own += ["margins=" + "|".join(f"{t}:{ms(v)}" for t, v in margins.items())] if margins else []
    tables = Run(trace, f"{ordering}+deadline-fill:{','.join(own)}", cost).simulate()
    allowed = allowed_gaps(trace, tpot, margins)
    first, finished = tables.requests["first_token_ns"], tables.requests["finished_ns"]
    for start, duration, prefill in zip(
        *(tables.steps[c].tolist() for c in ("start_ns", "duration_ns", "prefill_tokens")), strict=True
    ):
        tightest = allowed[(first <= start) & (finished > start)].min(initial=FAR)
        assert duration <= tightest or not prefill
    decodes = (tables.steps[c].tolist() for c in ("n_decode", "decode_context", "decode_context_max"))
    if all(not n or cost.step_ns(n, c, m, 0, 0, 0) <= allowed.min() for n, c, m in zip(*decodes, strict=True)):
        assert (tables.requests["itl_max_ns"] <= allowed).all()


def test_a_tenant_s_margin_comes_off_its_own_deadline() -> None:
    """A margin of 2 ms shortens the chunks beside its own tenant's decodes, and beside nobody else's."""
    trace = Trace(
        *(np.array(c) for c in ([0, 1_000_000], [10, 4000], [50, 1])), tenant=np.array(["interactive", "batch"], object)
    )
    cost = LinearCost(step=1_000_000, decode=0, per_decode=0, prefill=0, per_token=5000)
    granted = {
        margins: int(Run(trace, f"sloweave:tpot=10{margins}", cost).simulate().steps["prefill_tokens"][1])
        for margins in ("", ",margins=interactive:2", ",margins=batch:2")
    }
    assert granted == {"": 1800, ",margins=interactive:2": 1400, ",margins=batch:2": 1800}


@cases(
    60,
    strategies.traces(min_size=3, max_prompt=90, max_output=25, own_objectives=False),
    strategies.GROWING_COSTS,
    whole(0, 30),
    pick(60, 120, 200),
)
def test_a_margin_covers_an_optimistic_predictor(trace: Trace, believed: GrowingCost, error: int, tpot: int) -> None:
    """Proposition 1 with a one-sided error: steps up to δ longer than predicted, margin δ, no gap above D."""
    true = replace(believed, base=believed.base + error)
    run = Run(trace, f"sloweave:tpot={ms(tpot)},margin={ms(error)}", true, predictor=believed)
    steps = run.simulate().steps
    mixed = (steps["n_decode"] > 0) & (steps["prefill_tokens"] > 0)
    assert (steps["duration_ns"][mixed] <= tpot).all()
    assert (steps["duration_ns"] == steps["predicted_ns"] + error).all()


@cases(60, strategies.traces(), strategies.COSTS, strategies.ANY_ORDERING, whole(1, 50))
def test_without_a_deadline_it_is_a_fixed_chunk_of_the_cap(
    trace: Trace, cost: CostModel, ordering: str, cap: int
) -> None:
    """P1, D = ∞; only what is granted beyond a prompt's end, and whether a prediction is kept, tell them apart."""
    assert_same_run(
        Run(trace, f"{ordering}+deadline-fill:tpot=inf,cap={cap}", cost).simulate(),
        Run(trace, f"{ordering}+fixed:chunk={cap}", cost).simulate(),
        ignore={"granted_tokens", "predicted_ns"},
    )


@cases(60, strategies.traces(), strategies.COSTS, strategies.ANY_ORDERING, whole(0, 10))
def test_a_chunk_as_long_as_the_longest_prompt_is_full_prefill(
    trace: Trace, cost: CostModel, ordering: str, extra: int
) -> None:
    chunk = int(trace.prompt_tokens.max()) + extra
    assert_same_run(
        Run(trace, f"{ordering}+fixed:chunk={chunk}", cost).simulate(),
        Run(trace, f"{ordering}+full", cost).simulate(),
        ignore={"granted_tokens"},
    )
