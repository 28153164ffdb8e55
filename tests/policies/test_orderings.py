"""Keys of the orderings against their definitions in exact fractions."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest

from costmodels import CostModel, LinearCost, load_cost_model
from costmodels.jct import jct_model, ns_per_token
from policies import Ordering, PolicyError, RequestView, parse_policy
from policies.views import ServiceClass
from tests.engine.costs import GrowingCost
from tests.policies.strategies import MS, queue, request_view
from tests.seeded import built, cases, either, just, maybe, pick, wide

NS = 10**9

lams = either(
    pick("0", "0.1", "0.333", "500", "1e-9", "2000", "1e22", "123456.789", "3e-300"),
    lambda rng: f"{rng.randint(1, 10 ** rng.randint(1, 24))}e-12",
)


def ordering(text: str) -> Ordering:
    return parse_policy(f"{text}+full").ordering


def order(by: Callable[[RequestView], Any], requests: list[RequestView]) -> list[int]:
    """Return the numbers in order of ``by``, ties by arrival, then number."""
    return [r.number for r in sorted(requests, key=lambda r: (by(r), r.arrival_ns, r.number))]


def calibrated(lam: str) -> tuple[Ordering, Fraction]:
    """Return the ordering, and λ as it was typed, or as the nearest double where that says no more."""
    made = ordering(f"srjf-calibrated:lam={lam}")
    return made, Fraction(str(float(lam)))


@pytest.mark.parametrize("lam", ["0.1", "0.333", "500", "1e-9", "0.0001", "2000", "1e22"])
def test_lam_is_taken_as_typed(lam: str) -> None:
    """0.1 tokens a second is a tenth, not the double nearest to it."""
    made, _ = calibrated(lam)
    scale = Fraction(made.key(RequestView(0, 0, 1)))
    assert made.key(RequestView(0, 1, 1)) / scale == 1 + Fraction(lam) / NS
    assert made.key(RequestView(0, 10**18, 3)) / scale == 3 + Fraction(lam) * NS


@cases(150, lams, request_view(), request_view())
def test_a_calibrated_key_is_work_plus_aged_arrival_exactly(lam: str, a: RequestView, b: RequestView) -> None:
    """§6.3 with the common clock taken out, up to one scale for all requests."""
    made, exact = calibrated(lam)
    scale = made.key(RequestView(0, 0, 1))
    for r in (a, b):
        key = made.key(r)
        assert type(key) is int
        assert Fraction(key, scale) == r.uncached_tokens + exact * Fraction(r.arrival_ns, NS)


@cases(150, lams, queue(), wide(10**14))
def test_the_calibrated_order_is_the_paper_s_rescan_at_any_time(
    lam: str, requests: list[RequestView], now: int
) -> None:
    """Algorithm 1 subtracts λ·(now − arrival) from everybody's work at every decision (P2)."""
    made, exact = calibrated(lam)

    def score(r: RequestView) -> Fraction:
        return r.uncached_tokens - exact * Fraction(now - r.arrival_ns, NS)

    assert order(made.key, requests) == order(score, requests)


@cases(150, built(lambda lam: lam if lam != "0" else "0.2", lams), queue(min_size=2))
def test_nobody_overtakes_by_more_than_lam_allows(lam: str, requests: list[RequestView]) -> None:
    """P3: j arrives after i and goes first only if the seconds between them weigh less than the work saved."""
    made, exact = calibrated(lam)
    rank = {number: position for position, number in enumerate(order(made.key, requests))}
    for i in requests:
        for j in requests:
            if j.arrival_ns > i.arrival_ns and rank[j.number] < rank[i.number]:
                saved = i.uncached_tokens - j.uncached_tokens
                assert exact * Fraction(j.arrival_ns - i.arrival_ns, NS) <= saved


@cases(150, queue())
def test_the_limits_of_lam(requests: list[RequestView]) -> None:
    assert order(ordering("srjf-calibrated:lam=0").key, requests) == order(ordering("srjf-static").key, requests)
    assert order(ordering("srjf-calibrated:lam=inf").key, requests) == order(ordering("fcfs").key, requests)
    assert order(ordering("fcfs").key, requests) == [r.number for r in requests]


@cases(150, request_view())
def test_static_work_is_what_the_cache_does_not_serve(request: RequestView) -> None:
    work = request.prompt_tokens + request.generated_tokens - request.cached_tokens
    assert ordering("srjf-static").key(request) == request.uncached_tokens == work > 0


COSTS = pick(LinearCost(step=5, prefill=0, per_token=7), GrowingCost(), LinearCost(), load_cost_model("sloweave-paper"))
TIMES = pick("linear", "attention", "perfect")
LONGEST = 2000


@cases(150, lams, TIMES, COSTS, request_view(), request_view())
def test_an_estimated_time_ages_by_what_a_token_takes(
    lam: str, jct: str, cost: CostModel, a: RequestView, b: RequestView
) -> None:
    """Decision 3 of the architecture: jct + λ * (ns per uncached token) * arrival, up to one scale for all."""
    made = ordering(f"srjf-calibrated:lam={lam},jct={jct},longest={LONGEST}")
    made.reset(cost)
    estimate = jct_model(jct, cost, LONGEST)
    weight = Fraction(str(float(lam))) * ns_per_token(cost, LONGEST)

    def exact(r: RequestView) -> Fraction:
        work = estimate.ns(r.prompt_tokens + r.generated_tokens, r.cached_tokens)
        return work + weight * Fraction(r.arrival_ns, NS)

    keys = made.key(a), made.key(b)
    assert all(type(key) is int for key in keys)
    scale = weight.denominator * NS
    assert [Fraction(key, scale) for key in keys] == [exact(a), exact(b)]


@cases(150, TIMES, COSTS, queue(), pick("0", "500", "inf"))
def test_the_limits_of_lam_by_time(jct: str, cost: CostModel, requests: list[RequestView], lam: str) -> None:
    """λ = 0 is the static order, λ = inf fcfs; by its own time a linear cost model orders like uncached tokens."""
    made = ordering(f"srjf-calibrated:lam={lam},jct={jct},longest={LONGEST}")
    static = ordering(f"srjf-static:jct={jct},longest={LONGEST}")
    for part in (made, static):
        part.reset(cost)
    estimate = jct_model(jct, cost, LONGEST).ns
    assert order(static.key, requests) == order(
        lambda r: estimate(r.prompt_tokens + r.generated_tokens, r.cached_tokens), requests
    )
    if lam == "0":
        assert order(made.key, requests) == order(static.key, requests)
    if lam == "inf":
        assert order(made.key, requests) == [r.number for r in requests]
    if cost == LinearCost() and jct != "perfect" and lam == "500":
        assert order(made.key, requests) == order(ordering("srjf-calibrated:lam=500").key, requests)


@pytest.mark.parametrize("name", ["srjf-static", "srjf-calibrated"])
def test_only_times_need_a_cost_model(name: str) -> None:
    """And the order follows the one that is believed in this run, not one before."""
    assert not parse_policy(f"{name}+full").needs_predictor
    timed = parse_policy(f"{name}:jct=perfect+full")
    assert timed.needs_predictor
    with pytest.raises(PolicyError, match=f"{name} needs a cost model to estimate times from; jct=tokens does without"):
        timed.reset(None)
    with pytest.raises(PolicyError, match="no keys before its reset with a cost model"):
        timed.ordering.key(RequestView(0, 0, 1))
    view = RequestView(0, 0, 100)
    keys = []
    for per_token in (1, 2):
        timed.reset(LinearCost(step=0, prefill=0, per_token=per_token))
        keys.append(timed.ordering.key(view))
    assert keys[1] == 2 * keys[0]


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ("jct=token", "jct=token: input should be 'tokens', 'linear', 'attention' or 'perfect'"),
        ("longest=999", "longest=999: input should be greater than or equal to 1000"),
    ],
)
def test_a_wrong_estimator_is_refused(wrong: str, says: str) -> None:
    for name in ("srjf-static", "srjf-calibrated"):
        with pytest.raises(PolicyError, match=f"ordering {name}: {says}"):
            ordering(f"{name}:{wrong}")


@cases(150, queue())
def test_longest_prefix_first(requests: list[RequestView]) -> None:
    made = ordering("lpm")
    assert order(made.key, requests) == order(lambda r: -r.cached_tokens, requests)
    cold = [r._replace(cached_tokens=0) for r in requests]
    assert order(made.key, cold) == order(ordering("fcfs").key, requests)


@cases(150, queue(), maybe(wide(10**6, 1)))
def test_edf_is_arrival_plus_objective(requests: list[RequestView], ttft_ms: int | None) -> None:
    """The policy's own objective before the request's; requests without one last, in order of arrival."""
    made = ordering("edf" if ttft_ms is None else f"edf:ttft={ttft_ms}")

    def deadline(r: RequestView) -> float:
        ttft = r.slo_ttft_ns if ttft_ms is None else ttft_ms * MS
        return float("inf") if ttft is None else r.arrival_ns + ttft

    assert order(made.key, requests) == order(deadline, requests)


@cases(150, queue())
def test_edf_without_end_is_fcfs(requests: list[RequestView]) -> None:
    assert order(ordering("edf:ttft=inf").key, requests) == order(ordering("fcfs").key, requests)


objectives = wide(10**10, 1)


@cases(
    100,
    lambda rng: [built(ServiceClass, maybe(objectives), objectives, just(None))(rng) for _ in range(rng.randint(0, 4))],
)
def test_edf_is_refused_where_nobody_has_a_deadline(classes: list[ServiceClass]) -> None:
    policy = parse_policy("edf+full")
    if classes and all(c.slo_ttft_ns is None for c in classes):
        with pytest.raises(
            PolicyError, match=r"edf has no TTFT objective to order by: give --slo ttft:MS, or edf:ttft="
        ):
            policy.check_objectives(classes, None)
    else:
        policy.check_objectives(classes, None)
    parse_policy("edf:ttft=1000+full").check_objectives(classes, None)
