"""Chunkings beyond what engine runs show: margins by tenant, objectives out of reach, seats, extreme deadlines."""

from __future__ import annotations

import re

import pytest

from costmodels import CostModelError, LinearCost, with_margin
from policies import BatchView, Candidate, Chunking, Grant, PolicyError, RequestView, parse_policy
from policies.views import ServiceClass
from tests.policies.strategies import MS
from tests.seeded import built, cases, either, just, maybe, pick, whole, wide

PAPER = LinearCost()
QUANTILES = LinearCost(residual_quantiles={"0.5": 0, "0.99": 730_000})


def chunking(text: str, model: LinearCost = PAPER) -> Chunking:
    policy = parse_policy(f"fcfs+{text}")
    policy.reset(model)
    return policy.chunking


def batch(n: int, slack: int | None, remaining: int = 100_000, now: int = 0, waited: int = 0) -> BatchView:
    candidate = Candidate(RequestView(0, now - waited, remaining), 0, remaining)
    return BatchView(now, n, 100 * n, 100, None if slack is None else now + slack, (candidate,), 0)


@cases(150, whole(1, 300), wide(40 * MS), pick("p50", "p99"))
def test_a_quantile_margin_is_the_model_s_own(n: int, slack: int, quantile: str) -> None:
    extra = {"p50": 0, "p99": 730_000}[quantile]
    tokens = chunking(f"deadline-fill:margin={quantile}", QUANTILES).grant(batch(n, slack)).tokens
    assert tokens == chunking("deadline-fill").grant(batch(n, slack - extra)).tokens


def test_a_quantile_that_the_model_has_not_is_refused_at_the_start() -> None:
    with pytest.raises(CostModelError, match="cost model linear has no quantiles of its residuals; give the margin"):
        chunking("deadline-fill:margin=p99")
    with pytest.raises(CostModelError, match=re.escape("no quantile 0.9 of its residuals, only 0.5, 0.99")):
        chunking("deadline-fill:margin=p90", QUANTILES)


requests = built(
    RequestView,
    just(0),
    just(0),
    just(10),
    slo_tpot_ns=maybe(wide(10**9, 1)),
    tenant=pick(None, "interactive", "batch", "other"),
)


@cases(150, requests, maybe(whole(1, 1000)))
def test_a_tenant_s_margin_comes_off_its_d(request: RequestView, tpot_ms: int | None) -> None:
    own = "" if tpot_ms is None else f"tpot={tpot_ms},"
    made = chunking(f"deadline-fill:{own}margins=interactive:2|batch:0.000001")
    d = request.slo_tpot_ns if tpot_ms is None else tpot_ms * MS
    margin = {"interactive": 2 * MS, "batch": 1}.get(request.tenant or "", 0)
    assert made.deadline_ns(request) == (None if d is None else max(1, d - margin))


@pytest.mark.parametrize("tpot", ["inf", "1e300"])
def test_without_end_there_is_no_deadline(tpot: str) -> None:
    made = chunking(f"deadline-fill:tpot={tpot},cap=300,margins=interactive:2")
    assert made.deadline_ns(RequestView(0, 0, 10, slo_tpot_ns=MS, tenant="interactive")) is None
    assert made.grant(batch(50, None)) == Grant(300)
    assert made.grant(batch(50, None, remaining=7)) == Grant(7)


@cases(150, wide(1 << 62), wide(10**7, 1), wide(10**7, 1), whole(1, 5000))
def test_however_far_the_deadline_no_more_than_cap_and_prompt(now: int, cap: int, remaining: int, n: int) -> None:
    made = chunking(f"deadline-fill:cap={cap}")
    assert made.grant(batch(n, 1 << 62, remaining, now)) == Grant(min(cap, remaining))


@cases(150, whole(1, 400), built(lambda n: -n, wide(10**12)), pick("0", "3", "7%"))
def test_a_deadline_that_has_passed_leaves_a_decode_only_step(n: int, slack: int, margin: str) -> None:
    assert chunking(f"deadline-fill:margin={margin}").grant(batch(n, slack)) == Grant(0)


@cases(
    150,
    whole(1, 400),
    either(whole(-5 * MS, 30 * MS), wide(30 * MS)),
    whole(0, 20),
    whole(0, 40),
    pick("0", "0.7", "7%"),
)
def test_an_exception_overruns_by_a_bounded_time(n: int, slack: int, overrun: int, waited: int, margin: str) -> None:
    """§3.4: only after the wait, only where it helps, and the margin is kept even then."""
    made = chunking(f"deadline-fill:age=20,overrun={overrun},margin={margin}")
    grant = made.grant(batch(n, slack, waited=waited * MS, now=10**12))
    plain = chunking(f"deadline-fill:margin={margin}").grant(batch(n, slack))
    careful = with_margin(PAPER, margin)
    if grant.exception:
        assert waited > 20
        assert grant.tokens > plain.tokens
        pairs = grant.tokens * (grant.tokens + 1) // 2
        assert slack < careful.step_ns(n, 100 * n, 100, 1, grant.tokens, pairs) <= slack + overrun * MS
    else:
        assert grant == plain


@pytest.mark.parametrize(("waited", "late"), [(19 * MS, 0), (20 * MS, 0), (20 * MS + 1, 100)])
def test_an_exception_is_exact_in_wait_and_time(waited: int, late: int) -> None:
    """The step of 100 tokens ends exactly as late as it may; a nanosecond less and it is one of 99."""
    made = chunking("deadline-fill:age=20,overrun=3")
    ends = PAPER.step_ns(4, 400, 100, 1, 100, 5050)
    grant = made.grant(batch(4, ends - 3 * MS, waited=waited, now=10**12))
    assert grant == (Grant(100, exception=True) if late else Grant(0))
    grant = made.grant(batch(4, ends - 3 * MS - 1, waited=waited, now=10**12))
    assert grant == (Grant(99, exception=True) if late else Grant(0))


def classes(*d_and_tenant: tuple[float | None, str | None]) -> list[ServiceClass]:
    return [ServiceClass(None, None if d is None else round(d * MS), tenant) for d, tenant in d_and_tenant]


@pytest.mark.parametrize(
    ("text", "having", "message"),
    [
        (
            "",
            classes((None, None), (None, "a")),
            "deadline-fill has no TPOT objective D to fill steps up to: give --slo",
        ),
        ("margins=a:1", classes((None, "a")), "deadline-fill has no TPOT objective D"),
        (
            "tpot=1.3",
            classes((25, None)),
            "deadline-fill: D is 1.3 ms, smaller than any step can be: with one decode cost model linear predicts "
            "1.305 ms",
        ),
        ("", classes((25, "a"), (1, "b")), "deadline-fill: D is 1 ms, smaller than any step can be"),
        ("tpot=2,margin=1", classes((25, None)), "one decode cost model linear predicts 2.305 ms with margin"),
        ("tpot=1.4,margin=10%", classes((25, None)), "predicts 1.4355 ms with margin"),
        (
            "margins=a:24",
            classes((25, "a"), (25, "b")),
            "deadline-fill: D less the margin of tenant a is 1 ms, smaller",
        ),
        ("margins=a:26", classes((25, "a")), "deadline-fill: D less the margin of tenant a is -1 ms, smaller"),
        (
            "margins=c:1",
            classes((25, "b"), (25, "a")),
            "no request has a tenant that margins='c:1' names (tenants: a, b)",
        ),
        ("margins=c:1", classes((25, None)), "no request has a tenant that margins='c:1' names (tenants: none)"),
    ],
)
def test_objectives_that_no_run_could_meet_are_refused(text: str, having: list[ServiceClass], message: str) -> None:
    with pytest.raises(PolicyError, match=re.escape(message)) as e:
        parse_policy(f"sloweave:{text}").check_objectives(having, PAPER)
    assert "\n" not in str(e.value)


@pytest.mark.parametrize(
    ("text", "having"),
    [
        ("", []),
        ("", classes((25, None))),
        ("", classes((25, None), (None, None))),
        ("tpot=25", classes((None, None))),
        ("tpot=inf", classes((None, None))),
        ("tpot=1.305", classes((None, None))),
        ("tpot=25", classes((1, None))),
        ("margins=a:1|c:1", classes((25, "a"), (25, "b"))),
    ],
)
def test_objectives_in_reach_are_not_refused(text: str, having: list[ServiceClass]) -> None:
    parse_policy(f"sloweave:{text}").check_objectives(having, PAPER)


def test_it_needs_a_cost_model() -> None:
    with pytest.raises(PolicyError, match="deadline-fill needs a cost model"):
        parse_policy("sloweave:tpot=25").reset(None)


@pytest.mark.parametrize(
    ("text", "engine", "seats"),
    [
        ("", None, 256),
        ("", 300, 300),
        ("budget=100", None, 100),
        ("budget=100,seqs=64", None, 64),
        ("budget=100,seqs=64", 32, 32),
        ("budget=100,seqs=64", 80, 64),
        ("seqs=1000", None, 1000),
        ("budget=64", 64, 64),
    ],
)
def test_how_many_may_run_beside_a_token_budget(text: str, engine: int | None, seats: int) -> None:
    assert chunking(f"token-budget:{text}").seat_limit(engine) == seats


@pytest.mark.parametrize(("text", "engine"), [("budget=63,seqs=64", None), ("budget=63", 64), ("", 2049)])
def test_a_budget_below_the_seats_is_refused(text: str, engine: int | None) -> None:
    """As in vLLM: a decode could miss its step."""
    with pytest.raises(PolicyError, match=r"token-budget: budget=\d+ is below the \d+ requests that may run at once"):
        chunking(f"token-budget:{text}").seat_limit(engine)


@cases(100, whole(0, 63), maybe(wide(100, 1)))
def test_a_token_budget_is_shared_with_the_decodes(n: int, threshold: int | None) -> None:
    text = "budget=64" + ("" if threshold is None else f",threshold={threshold}")
    view = BatchView(0, n, 0, 0, None, (), 3)
    assert chunking(f"token-budget:{text}").grant(view) == Grant(64 - n, None, threshold)


@pytest.mark.parametrize("text", ["full", "fixed:chunk=7", "token-budget", "deadline-fill"])
def test_other_chunkings_leave_d_and_seats_alone(text: str) -> None:
    made = chunking(text)
    assert made.deadline_ns(RequestView(0, 0, 1)) is None
    assert made.deadline_ns(RequestView(0, 0, 1, slo_tpot_ns=5)) == 5
    assert made.seat_limit(9) == 9
    if text != "token-budget":
        assert made.seat_limit(None) is None
