"""The orderings of neighbouring systems: each one's definition, limits, theorem or toy."""

from __future__ import annotations

import random
from fractions import Fraction

import pytest

from costmodels import CostModel, LinearCost
from costmodels.jct import jct_model
from policies import (
    Ordering,
    PolicyError,
    PolicyQueue,
    RequestView,
    parse_policy,
)
from tests.engine.costs import GrowingCost
from tests.policies.strategies import MS, queue
from tests.seeded import cases, maybe, pick, whole, wide

PAPER = LinearCost()


def ordering(text: str, model: CostModel | None = None) -> Ordering:
    policy = parse_policy(f"{text}+full")
    policy.reset(model)
    return policy.ordering


def served(made: Ordering, requests: list[RequestView], now: int = 0) -> list[int]:
    """Return the numbers of requests that all wait, in the order in which a queue gives them out at one moment."""
    queue = PolicyQueue(made)
    for request in requests:
        queue.add(request)
    return [queue.pop(now).number for _ in requests]


def same_order(made: Ordering, other: Ordering, requests: list[RequestView], now: int = 0) -> None:
    assert served(made, requests, now) == served(other, requests, now)


@cases(150, queue(), wide(10**14))
def test_hrrn_takes_the_highest_response_ratio(requests: list[RequestView], later: int) -> None:
    now = max(r.arrival_ns for r in requests) + later

    def ratio(r: RequestView) -> Fraction:
        return Fraction(now - r.arrival_ns + r.uncached_tokens, r.uncached_tokens)

    chosen = ordering("hrrn").choose(requests, now)
    assert chosen.number == min(requests, key=lambda r: (-ratio(r), r.arrival_ns, r.number)).number


@cases(150, queue(), wide(10**14))
def test_hrrn_lies_between_short_first_and_fcfs(requests: list[RequestView], now: int) -> None:
    """Of equal waits the shortest goes first, of equal work the oldest; in a long queue the oldest in any case."""
    together = [r._replace(arrival_ns=7) for r in requests]
    same_order(ordering("hrrn"), ordering("srjf-static"), together, 8 + now)
    alike = [r._replace(prompt_tokens=50, cached_tokens=10, generated_tokens=0) for r in requests]
    same_order(ordering("hrrn"), ordering("fcfs"), alike, requests[-1].arrival_ns + now)
    if len(requests) > 3:
        assert ordering("hrrn:most=3").choose(requests, requests[-1].arrival_ns + now) is requests[0]


def test_hrrn_lets_nobody_starve() -> None:
    """A long request among an endless stream of short ones that saturate the engine: lpm and srjf never take it."""
    long, now = RequestView(0, 0, 1000), 10
    for made, waits in ((ordering("hrrn"), True), (ordering("srjf-static"), False)):
        queue = PolicyQueue(made)
        queue.add(long)
        taken = -1
        for i in range(1, 500):
            queue.add(RequestView(i, i * now, 10))
            if queue.pop(i * now + now).number == 0:
                taken = i
                break
        assert (taken > 0) == waits


@cases(
    150,
    queue(),
    wide(10**11),
    pick(LinearCost(step=5, prefill=0, per_token=7), GrowingCost(), PAPER),
    maybe(whole(1, 1000)),
    pick("1.0", "1.1", "5"),
    pick("linear", "attention", "perfect"),
)
def test_lars_takes_the_least_relative_slack(
    requests: list[RequestView], now: int, cost: CostModel, ttft_ms: int | None, stretch: str, jct: str
) -> None:
    own = "" if ttft_ms is None else f"ttft={ttft_ms},"
    made = ordering(f"lars:{own}stretch={stretch},jct={jct},longest=2000", cost)
    ns = jct_model(jct, cost, 2000).ns

    def relative(r: RequestView) -> Fraction:
        ttft = r.slo_ttft_ns if ttft_ms is None else ttft_ms * MS
        alone = Fraction(stretch) * ns(r.prompt_tokens, 0)
        allowed = max(1, -(-alone.numerator // alone.denominator), ttft or 0)
        left = ns(r.prompt_tokens + r.generated_tokens, r.cached_tokens)
        return Fraction(r.arrival_ns + allowed - now - left, allowed)

    expected = min(requests, key=lambda r: (relative(r), r.arrival_ns, r.number))
    assert made.choose(requests, now).number == expected.number


def test_lars_takes_a_short_request_before_a_long_one_with_as_much_slack() -> None:
    """The convoy that Medha is about: edf and least slack would let a million tokens go before a short question."""
    cost = LinearCost(step=0, decode=0, per_decode=1, prefill=0, per_token=1000)
    long, short = RequestView(0, 0, 1_000_000), RequestView(1, 0, 1000, slo_ttft_ns=10 * MS)
    made = ordering("lars:stretch=2,jct=perfect", cost)
    # The long one has a slack of its own 1000 ms to spare, the short one of 9 ms.
    assert made.choose([long, short], 5 * MS) is short
    assert made.choose([long, short], 0) is long
    assert ordering("edf:ttft=10").choose([long, short], 5 * MS) is long


def test_lars_needs_a_cost_model() -> None:
    with pytest.raises(PolicyError, match="lars needs a cost model to estimate times from"):
        ordering("lars")
    with pytest.raises(PolicyError, match="lars cannot choose before its reset with a cost model"):
        parse_policy("lars+full").ordering.choose([RequestView(0, 0, 1)], 0)


# k-LPM


@cases(150, queue(), whole(1, 5))
def test_k_lpm_is_the_paper_s_loop(requests: list[RequestView], k: int) -> None:
    """Serve the oldest, then k - 1 times the one with the longest prefix."""
    waiting, loop = list(requests), []
    while waiting:
        for turn in range(min(k, len(waiting))):
            chosen = min(waiting, key=lambda r: (-r.cached_tokens * (turn > 0), r.arrival_ns, r.number))
            waiting.remove(chosen)
            loop.append(chosen.number)
    assert served(ordering(f"k-lpm:k={k}"), requests) == loop


@cases(150, queue(max_size=12), whole(1, 5), whole(0, 12), whole(0, 12))
def test_a_look_ahead_changes_nobody_s_turn(requests: list[RequestView], k: int, taken: int, ahead: int) -> None:
    queue = PolicyQueue(ordering(f"k-lpm:k={k}"))
    for request in requests:
        queue.add(request)
    expected = served(ordering(f"k-lpm:k={k}"), requests)
    taken = min(taken, len(requests))
    assert [queue.pop(0).number for _ in range(taken)] == expected[:taken]
    assert [r.number for r in queue.first(ahead, 0)] == expected[taken : taken + ahead]
    assert [queue.pop(0).number for _ in range(len(queue))] == expected[taken:]


@cases(150, queue())
def test_the_limits_of_k(requests: list[RequestView]) -> None:
    """With k = 1 it is fcfs; with k beyond the queue all after the first is lpm."""
    same_order(ordering("k-lpm:k=1"), ordering("fcfs"), requests)
    assert served(ordering("k-lpm:k=99"), requests)[1:] == served(ordering("lpm"), requests[1:])


@cases(150, queue(min_size=2, max_size=20), whole(1, 5))
def test_the_oldest_waits_for_fewer_than_k_others(requests: list[RequestView], k: int) -> None:
    """The bound that lpm lacks: of any k taken in a row one was the oldest."""
    order = served(ordering(f"k-lpm:k={k}"), requests)
    oldest = [number == min(order[i:]) for i, number in enumerate(order)]
    assert all(any(oldest[i : i + k]) for i in range(len(order) - k + 1))


def test_a_preempted_request_takes_nobody_s_turn() -> None:
    queue = PolicyQueue(ordering("k-lpm:k=2"))
    for i in range(4):
        queue.add(RequestView(i, i, 100, 16 * i))
    back = queue.pop(0)
    queue.push_front(back)
    assert [queue.pop(0).number for _ in range(4)] == [0, 3, 1, 2]


def test_dfs_weight_walks_the_busiest_branch_first() -> None:
    """A root with branches [ABC] -> [DE] of one request and [F] of two, and [XY] of one; counted anew each time."""
    requests = [
        RequestView(0, 0, 99, 0),
        RequestView(1, 1, 99, 8, tenant="XY"),
        RequestView(2, 2, 99, 24, tenant="ABC", session="DE"),
        RequestView(3, 3, 99, 16, tenant="ABC"),
        RequestView(4, 4, 99, 24, tenant="ABC", session="F"),
        RequestView(5, 5, 99, 24, tenant="ABC", session="F"),
        RequestView(6, 6, 99, 0, tenant="ABC", session="F"),
    ]
    assert served(ordering("dfs-weight"), requests) == [4, 2, 5, 1, 3, 0, 6]


@cases(150, queue())
def test_dfs_weight_without_cached_prefixes_is_fcfs(requests: list[RequestView]) -> None:
    same_order(ordering("dfs-weight"), ordering("fcfs"), [r._replace(cached_tokens=0) for r in requests])


@cases(150, queue())
def test_dfs_weight_is_the_walk_of_the_whole_tree(requests: list[RequestView]) -> None:
    """Its first is that of the recursive walk; a request without a tenant hangs under its session alone."""
    tree = [r._replace(session=(None, "a", "b")[r.number % 3]) for r in requests]

    def path(r: RequestView) -> list[str]:
        return [name for name in (r.tenant and "t" + r.tenant, r.session) if name and r.cached_tokens]

    def walk(below: list[RequestView], depth: int) -> list[RequestView]:
        branches: dict[str, list[RequestView]] = {}
        for r in below:
            if len(path(r)) > depth:
                branches.setdefault(path(r)[depth], []).append(r)
        ranked = sorted(branches.values(), key=lambda branch: -len(branch))
        return [r for branch in ranked for r in walk(branch, depth + 1)] + [r for r in below if len(path(r)) == depth]

    assert ordering("dfs-weight").choose(tree, 0) is walk(tree, 0)[0]


WEIGHTS = {"interactive": Fraction(3), "batch": Fraction("0.5"), None: Fraction(1), "café": Fraction(1)}
FAIR = "fair:weights=interactive:3|batch:0.5"


@cases(150, queue(min_size=2, max_size=24), lambda rng: rng)
def test_two_tenants_that_both_wait_get_their_shares(requests: list[RequestView], rng: random.Random) -> None:
    """Start-time fair queueing, theorem 1: over any time in which both wait, work by weight differs by two requests."""
    order = [requests[i] for i in served(ordering(FAIR), requests)]
    names = sorted({r.tenant for r in requests}, key=str)
    a, b = rng.choice(names), rng.choice(names)
    last = min(max(i for i, r in enumerate(order) if r.tenant == t) for t in (a, b))
    for i in range(last + 1):
        for j in range(i, last + 1):
            work = {t: sum(r.uncached_tokens for r in order[i:j] if r.tenant == t) / WEIGHTS[t] for t in (a, b)}
            most = {t: max(r.uncached_tokens for r in requests if r.tenant == t) / WEIGHTS[t] for t in (a, b)}
            assert abs(work[a] - work[b]) <= most[a] + most[b]


@cases(150, queue(max_size=20))
def test_a_tenant_s_own_requests_stay_in_order_and_one_tenant_is_fcfs(requests: list[RequestView]) -> None:
    order = served(ordering(FAIR), requests)
    for tenant in WEIGHTS:
        own = [i for i in order if requests[i].tenant == tenant]
        assert own == sorted(own)
    same_order(ordering("fair"), ordering("fcfs"), [r._replace(tenant="one") for r in requests])


def test_weights_are_shares_of_tokens() -> None:
    """Three times the weight, three times the tokens; the first of each come before anybody's second."""
    requests = [RequestView(i, 0, 60, tenant="interactive" if i % 2 else "batch") for i in range(16)]
    order = served(ordering("fair:weights=interactive:3"), requests)
    assert [requests[i].tenant for i in order[:10]] == [
        *("batch", "interactive", "interactive", "interactive"),
        *("batch", "interactive", "interactive", "interactive"),
        *("batch", "interactive"),
    ]


def test_who_was_away_has_saved_nothing_up() -> None:
    """After a hundred requests of one tenant another one comes: they alternate from there on."""
    queue = PolicyQueue(ordering("fair"))
    for i in range(120):
        queue.add(RequestView(i, i, 10, tenant="a"))
    for _ in range(100):
        queue.pop(0)
    for i in range(120, 140):
        queue.add(RequestView(i, i, 10, tenant="b"))
    taken = [queue.pop(0).tenant for _ in range(20)]
    assert taken.count("a") == 10


def test_who_leaves_or_is_taken_is_forgotten() -> None:
    made = ordering("fair")
    queue = PolicyQueue(made)
    for i in range(100):
        queue.add(RequestView(i, i, 10, tenant="ab"[i % 2]))
        queue.update(RequestView(i, i, 10, 5, tenant="ab"[i % 2]))
    for i in range(50):
        queue.remove(2 * i)
    assert [queue.pop(0).number for _ in range(50)] == list(range(1, 100, 2))
    assert not vars(made)["_tags"]


@pytest.mark.parametrize(
    ("weights", "says"),
    [
        *((w, "should read tenant:weight") for w in ("a", "a:", ":1", "a:0", "a:-1", "a:nan", "a:inf", "a:x")),
        ("a:1|a:2", "gives tenant a twice"),
        ("a:1e-999999999", "should read tenant:weight"),
    ],
)
def test_weights_that_cannot_be_used_are_refused(weights: str, says: str) -> None:
    with pytest.raises(PolicyError, match=says) as e:
        ordering(f"fair:weights={weights}")
    assert "\n" not in str(e.value)


@cases(150, queue(), whole(1, 10), whole(0, 20))
def test_a_long_request_is_passed_by_short_ones_for_a_while(requests: list[RequestView], short: int, wait: int) -> None:
    order = served(ordering(f"two-lane:short={short},wait={wait / MS:.6f}"), requests)
    rank = {number: i for i, number in enumerate(order)}
    for a in requests:
        for b in requests:
            long_a, long_b = a.uncached_tokens > short, b.uncached_tokens > short
            if long_a == long_b:
                assert (rank[a.number] < rank[b.number]) == ((a.arrival_ns, a.number) < (b.arrival_ns, b.number)) or (
                    a is b
                )
            elif long_a:
                passes = (b.arrival_ns, b.arrival_ns, b.number) < (a.arrival_ns + wait, a.arrival_ns, a.number)
                assert (rank[b.number] < rank[a.number]) == passes


@cases(150, queue(), whole(1, 10))
def test_the_limits_of_two_lanes(requests: list[RequestView], short: int) -> None:
    by_lane = sorted(requests, key=lambda r: (r.uncached_tokens > short, r.arrival_ns, r.number))
    assert served(ordering(f"two-lane:short={short},wait=inf"), requests) == [r.number for r in by_lane]
    same_order(ordering(f"two-lane:short={short},wait=0"), ordering("fcfs"), requests)
    same_order(ordering("two-lane:short=9999999"), ordering("fcfs"), requests)


@cases(150, queue(), whole(1, 1000), pick("0", "0.000001", "8", "0.1"))
def test_qoserve_s_key_is_deadline_plus_weighted_work(requests: list[RequestView], ttft: int, alpha: str) -> None:
    made = ordering(f"qoserve:ttft={ttft},alpha={alpha}")
    for r in requests:
        assert made.key(r) == r.arrival_ns + ttft * MS + Fraction(alpha) * MS * r.uncached_tokens
    same_order(ordering(f"qoserve:ttft={ttft},alpha=0"), ordering(f"edf:ttft={ttft}"), requests)
    same_order(ordering("qoserve:ttft=1,alpha=1e15"), ordering("srjf-static"), requests)
