"""The chunkings of neighbouring systems: P-PAS's two budgets, and deadline filling over several prefills."""

from __future__ import annotations

import random

import pytest

from costmodels import CostModel, LinearCost, with_margin
from policies import BatchView, Candidate, Chunking, Grant, PolicyError, RequestView, parse_policy
from tests.engine.costs import GrowingCost
from tests.policies.strategies import MS
from tests.seeded import cases, either, pick, whole, wide

PAPER = LinearCost()


def chunking(text: str, model: CostModel = PAPER) -> Chunking:
    policy = parse_policy(f"fcfs+{text}")
    policy.reset(model)
    return policy.chunking


@cases(150, wide(50), whole(0, 3), whole(0, 3), either(wide(10**5, 1), pick(65_535, 65_536)))
def test_p_pas_lowers_its_budget_under_pressure(n: int, started: int, waiting: int, left: int) -> None:
    """Two prefills that run or wait, and a decode; P-PAS+ also one large prefill beside two decodes."""
    candidates = tuple(Candidate(RequestView(i, 0, left), 0, left) for i in range(started))
    batch = BatchView(0, n, 9 * n, 9 * bool(n), None, candidates, waiting)
    pressed = n >= 1 and started + waiting >= 2
    assert chunking("p-pas").grant(batch) == Grant((2048 if pressed else 16_384) - n, None)
    pressed = pressed or (started == 1 and n >= 2 and left >= 65_536)
    assert chunking("p-pas:large=65536").grant(batch) == Grant((2048 if pressed else 16_384) - n, None)


@pytest.mark.parametrize(
    ("text", "engine", "seats"),
    [("", None, 256), ("", 300, 300), ("low=100", None, 100), ("low=100,seqs=64", 80, 64), ("low=64", 64, 64)],
)
def test_how_many_may_run_under_p_pas(text: str, engine: int | None, seats: int) -> None:
    made = chunking(f"p-pas:{text}")
    assert made.seat_limit(engine) == seats
    assert made.step_limit(seats, 10**6) == 16_384


def test_budgets_of_p_pas_that_cannot_be_are_refused() -> None:
    with pytest.raises(PolicyError, match="low=9 is above high=8, but pressure should lower the budget"):
        chunking("p-pas:low=9,high=8")
    with pytest.raises(PolicyError, match="p-pas: low=63 is below the 64 requests that may run at once"):
        chunking("p-pas:low=63").seat_limit(64)


COSTS = pick(PAPER, GrowingCost(base=900_000, batch=90, context=4000, tokens=5500, pairs=40))


def places(rng: random.Random) -> list[tuple[int, int]]:
    """Make the contexts of one to six prefills and what is left of each."""
    return [(wide(4000)(rng), wide(900, 1)(rng)) for _ in range(rng.randint(1, 6))]


def step_of(cost: CostModel, n: int, places: list[tuple[int, int]], tokens: int) -> tuple[int, int]:
    """Return a step's duration when tokens are handed out as a host does, one by one, and how many prefills it has."""
    given_out = [0] * len(places)
    for _ in range(tokens):
        i = next(i for i, (_, remaining) in enumerate(places) if given_out[i] < remaining)
        given_out[i] += 1
    chunks = [(context, c) for (context, _), c in zip(places, given_out, strict=True) if c]
    pairs = sum(sum(range(context + 1, context + c + 1)) for context, c in chunks)
    return cost.step_ns(n, 100 * n, 100 * bool(n), len(chunks), tokens, pairs), len(chunks)


@cases(60, COSTS, places, whole(1, 6), whole(1, 60), whole(0, 30 * MS), pick("0", "0.7", "7%"))
def test_slots_are_filled_up_to_the_deadline(
    cost: CostModel, places: list[tuple[int, int]], slots: int, n: int, slack: int, margin: str
) -> None:
    """Neither a token fewer nor one more, priced as the host hands them out; with one slot it is deadline-fill."""
    candidates = tuple(
        Candidate(RequestView(i, 0, context + left), context, left) for i, (context, left) in enumerate(places)
    )
    batch = BatchView(0, n, 100 * n, 100, slack, candidates[:slots], 0)
    cap = 1200
    made = chunking(f"deadline-slots:slots={slots},margin={margin},cap={cap}", cost)
    grant = made.grant(batch)
    careful, open_to = with_margin(cost, margin), places[:slots]
    most = min(cap, sum(left for _, left in open_to))
    assert 0 <= grant.tokens <= most
    if grant.tokens:
        ends, prefills = step_of(careful, n, open_to, grant.tokens)
        assert ends <= slack
        assert grant.prefills is not None
        assert prefills <= grant.prefills <= slots
    if grant.tokens < most:
        assert step_of(careful, n, open_to, grant.tokens + 1)[0] > slack
    alone = chunking(f"deadline-fill:margin={margin},cap={cap}", cost).grant(batch)
    assert grant.tokens >= alone.tokens
    if slots == 1:
        assert grant == alone


def test_slots_without_a_deadline_take_all() -> None:
    candidates = tuple(Candidate(RequestView(i, 0, 100), 0, 100) for i in range(3))
    made = chunking("deadline-slots:slots=3,cap=250")
    assert made.grant(BatchView(0, 5, 9, 9, None, candidates, 9)) == Grant(250, 3)
    assert made.grant(BatchView(0, 0, 0, 0, None, candidates[:2], 9)) == Grant(200, 3)
    assert made.step_limit(10, 50) == 160
    assert made.lookahead == 3


def test_an_aged_prefill_overruns_the_deadline_alone() -> None:
    """The exception is for the one that has waited; the next gets nothing of it."""
    ends = PAPER.step_ns(4, 400, 100, 1, 100, 5050)
    views = (RequestView(0, 0, 200), RequestView(1, 0, 50))
    candidates = tuple(Candidate(v, 0, v.prompt_tokens) for v in views)
    batch = BatchView(10**12, 4, 400, 100, 10**12 + ends - 3 * MS, candidates, 2)
    assert chunking("deadline-slots:age=20,overrun=3").grant(batch) == Grant(100, exception=True)
