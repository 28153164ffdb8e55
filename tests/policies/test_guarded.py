"""Guarded deadline filling: the margin is the worst residual of the window, and fallback lasts while it is exceeded."""

from __future__ import annotations

from math import ceil

import pytest

from costmodels import LinearCost
from policies import BatchView, Candidate, Grant, RequestView, StepRecord, parse_policy
from policies.chunking.deadline_fill import DeadlineFill
from policies.chunking.guarded import PPM, Guarded
from tests.seeded import cases, whole, wide

MS = 1_000_000
MODEL = LinearCost()


def made(text: str = "guarded") -> Guarded:
    part = parse_policy(f"fcfs+{text}").chunking
    assert isinstance(part, Guarded)
    part.reset(MODEL)
    return part


def batch(slack: int, n: int = 4, waited: int = 0) -> BatchView:
    candidate = Candidate(RequestView(0, 10**9 - waited, 50_000), 0, 50_000)
    return BatchView(10**9, n, 100 * n, 100 * bool(n), 10**9 + slack if n else None, (candidate,), 0)


def record(per_mille: int, n: int = 4, tokens: int = 100) -> StepRecord:
    """A step that takes so many thousandths of its prediction."""
    features = (n, 100 * n, 100, int(tokens > 0), tokens, tokens * (tokens + 1) // 2)
    return StepRecord(0, 0, MODEL.step_ns(*features) * per_mille // 1000, *features)


@cases(
    150,
    lambda rng: [rng.randint(700, 1500) for _ in range(rng.choice([rng.randint(0, 5), rng.randint(0, 60)]))],
    whole(1, 12),
)
def test_the_margin_is_the_worst_residual_of_the_window(history: list[int], window: int) -> None:
    part = made(f"guarded:window={window}")
    for per_mille in history:
        part.observe(record(per_mille))
    over = []
    for per_mille in history[-window:]:
        step = record(per_mille)
        predicted = MODEL.step_ns(*step[3:])
        over.append(max(0, ceil((step.duration_ns - predicted) * PPM / predicted)))
    assert part._share_ppm == max(over, default=0)


@cases(150, wide(1500, 1000), whole(5 * MS, 60 * MS), wide(200, 1))
def test_a_step_that_overruns_by_no_more_than_seen_meets_the_deadline(per_mille: int, slack: int, n: int) -> None:
    part = made()
    part.observe(record(per_mille))
    part.observe(record(1000, tokens=0))
    tokens = part.grant(batch(slack, n)).tokens
    believed = MODEL.step_ns(n, 0, 0, 1, tokens, 0)
    if tokens:
        assert believed * per_mille // 1000 <= slack
    if tokens < 4096:
        longer = MODEL.step_ns(n, 0, 0, 1, tokens + 1, 0)
        assert longer + ceil(longer * part._share_ppm / PPM) > slack


@cases(150, wide(60 * MS), wide(200))
def test_without_under_prediction_it_is_deadline_filling(slack: int, n: int) -> None:
    part = made()
    plain = parse_policy("fcfs+deadline-fill").chunking
    assert isinstance(plain, DeadlineFill)
    plain.reset(MODEL)
    for per_mille in (1000, 900, 1000):
        part.observe(record(per_mille))
    assert part.grant(batch(slack, n)) == plain.grant(batch(slack, n))


def test_it_falls_back_while_a_residual_exceeds_the_margin() -> None:
    """SLOWeave, Table 1: decode-only steps until one has kept to the margin, which has meanwhile grown."""
    part = made("guarded:margin=5%")
    part.observe(record(1050))
    assert part.grant(batch(25 * MS)).tokens > 0
    part.observe(record(1200))
    assert part.grant(batch(25 * MS)) == Grant(0)
    part.observe(record(1300, tokens=0))
    assert part.grant(batch(25 * MS)) == Grant(0)
    part.observe(record(1300, tokens=0))
    assert part.grant(batch(25 * MS)).tokens > 0
    assert [row.fallback for row in part.telemetry] == [False, False, True, True]
    assert [row.slack_ns >= 0 for row in part.telemetry] == [True, False, False, True]
    part.reset(MODEL)
    assert part.grant(batch(25 * MS)) == made("guarded:margin=5%").grant(batch(25 * MS))
    assert not part.telemetry


def test_fallback_is_for_deadlines_only() -> None:
    part = made("guarded:age=30,overrun=5")
    part.observe(record(2000))
    assert part.grant(batch(25 * MS)) == Grant(0)
    assert part.grant(batch(0, n=0)) == Grant(4096)
    assert part.grant(batch(25 * MS, waited=31 * MS)).tokens > 0


def test_steps_without_decodes_say_nothing() -> None:
    """They have no deadline, and their residuals would widen margins for nothing."""
    part = made()
    part.observe(record(5000, n=0))
    assert not part.telemetry
    assert part.grant(batch(25 * MS)) == made().grant(batch(25 * MS))


def test_telemetry_adds_up() -> None:
    part = made("guarded:margin=1")
    for per_mille in (1000, 1500, 900):
        part.observe(record(per_mille))
    first, second, third = part.telemetry
    assert first.predicted_ns == MODEL.step_ns(*record(1000)[3:]) + MS
    assert first.slack_ns == MS
    assert second.slack_ns == second.predicted_ns - second.observed_ns < 0
    assert third.share_ppm == ceil((second.observed_ns - second.predicted_ns) * PPM / second.predicted_ns)
    assert third.slack_ns == pytest.approx(second.observed_ns - third.observed_ns, abs=100)
