"""Calibrated SRJF as a heap is PrefillOnly's Algorithm 1 on every decision, whatever happens to the cache."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import NamedTuple

import pytest

from costmodels import CostModel
from costmodels.jct import jct_model, ns_per_token
from policies import Ordering, PolicyQueue, RequestView, parse_policy
from sim.content import ContentTree
from sim.kvcache import KVCache
from sim.pool import BlockPool
from sim.prefixstore import PrefixStore
from tests.engine.costs import GrowingCost
from tests.rescan import NS, Rescan
from tests.seeded import built, cases, pick, whole
from tests.sim.contents import contents
from traces import Trace

LONGEST = 1000

lams = pick("0", "1e7", "1e8", "333333333.3", "1e9", "2.5e9", "500")
estimators = pick("tokens", "tokens", "linear", "attention", "perfect")
costs = built(GrowingCost, base=whole(1, 9), tokens=whole(1, 5), pairs=whole(0, 3))


class Case(NamedTuple):
    """A policy and the algorithm that it must equal."""

    ordering: Ordering
    rescan: Rescan
    lam: str


def case(lam: str, jct: str, cost: CostModel) -> Case:
    ordering = parse_policy(f"srjf-calibrated:lam={lam},jct={jct},longest={LONGEST}+full").ordering
    ordering.reset(cost)
    if jct == "tokens":
        return Case(ordering, Rescan(lam), lam)
    return Case(ordering, Rescan(lam, jct_model(jct, cost, LONGEST).ns, ns_per_token(cost, LONGEST)), lam)


any_case = built(case, lams, estimators, costs)


class Decision(NamedTuple):
    """Who was taken, who could have been, and each one's work as it was read then."""

    chosen: RequestView
    preempted: bool
    waiting: dict[int, RequestView]
    works: dict[int, int]


def pool(trace: Trace, block: int, spare: int) -> KVCache:
    """Return vLLM's pool: room for the longest request, and little more."""
    needed = -(-int(trace.prompt_tokens.max()) // block)
    return BlockPool(ContentTree(trace, block), needed + 1 + spare)


def store(trace: Trace, block: int, spare: int) -> KVCache:
    """Return PrefillOnly's store, which may hold nothing at all."""
    return PrefixStore(ContentTree(trace, block), 2 * spare)


def drive(trace: Trace, cache: KVCache, case: Case, rng: random.Random) -> list[Decision]:
    """Serve a trace one request at a time, some of them preempted in the middle, and check each decision."""
    queue = PolicyQueue(case.ordering)
    waiting: dict[int, RequestView] = {}
    front: list[RequestView] = []
    made: list[Decision] = []
    arrived = now = 0
    gap = rng.choice([0, 3, 30])
    while arrived < len(trace) or queue.size:
        now += rng.randint(0, gap)
        while arrived < len(trace) and rng.random() < 0.6:
            tokens = int(trace.prompt_tokens[arrived])
            view = RequestView(arrived, now, tokens, cache.hit_tokens(arrived, tokens))
            queue.add(view)
            cache.watch(arrived)
            waiting[arrived] = view
            arrived += 1
            now += rng.randint(0, gap)
        queue.reread(cache.changes(), cache.hit_tokens)
        if not queue.size:
            continue
        if rng.random() < 0.3:
            queue.peek(now)
        expected = front[0] if front else case.rescan.best(waiting.values(), now, cache.hit_tokens)
        works = {i: case.rescan.work(r, cache.hit_tokens) for i, r in waiting.items()}
        chosen = queue.pop(now)
        assert chosen.number == expected.number
        made.append(Decision(chosen, bool(front), dict(waiting), works))
        _run(chosen, cache, rng, queue, waiting, front)
        assert queue.size == len(queue) == len(front) + len(waiting)
    return made


def _run(
    view: RequestView,
    cache: KVCache,
    rng: random.Random,
    queue: PolicyQueue,
    waiting: dict[int, RequestView],
    front: list[RequestView],
) -> None:
    """Prefill a request to its end, or preempt it, which puts it before all others with some of its work kept."""
    i, tokens = view.number, view.prompt_tokens + view.generated_tokens
    if front:
        front.pop(0)
    else:
        del waiting[i]
        cache.unwatch(i)
        hits = cache.hit_tokens(i, tokens)
        assert view.cached_tokens == hits, "the view of a request that starts is not up to date"
    hit = cache.start(i, tokens, 0)
    if cache.paged and rng.random() < 0.2:
        computed = rng.randint(hit, tokens)
        cache.extend(i, computed)
        cache.finish(i, computed)
        front.insert(0, view)
        queue.push_front(view)
        return
    cache.extend(i, tokens)
    cache.finish(i, tokens)


@pytest.mark.parametrize("cache_of", [pool, store])
def test_every_decision_is_the_rescan_s(cache_of: Callable[..., KVCache]) -> None:
    """On the same integers, with the real caches, arrivals, evictions and preemptions; P3 holds on the way."""

    @cases(120, contents(pick(1, 2, 4), 24), any_case, whole(0, 9), lambda rng: rng)
    def holds(drawn: tuple[Trace, int], case: Case, spare: int, rng: random.Random) -> None:
        trace, block = drawn
        made = drive(trace, cache_of(trace, block, spare), case, rng)
        assert sum(1 for d in made if not d.preempted) == len(trace)
        for decision in made:
            _check_overtaking(decision, case.rescan)

    holds()


def _check_overtaking(decision: Decision, rescan: Rescan) -> None:
    """P3: ``j`` passes an earlier ``i`` only if ``a_j - a_i <= (work_i - work_j) / λ``, as both were read then."""
    if decision.preempted:
        return
    j, works = decision.chosen, decision.works
    for i, waiting in decision.waiting.items():
        if waiting.arrival_ns < j.arrival_ns:
            gap = j.arrival_ns - waiting.arrival_ns
            assert rescan.weight * gap <= (works[i] - works[j.number]) * NS


@cases(120, any_case, lambda rng: rng)
def test_any_hits_at_all_give_the_rescan_s_decisions(case: Case, rng: random.Random) -> None:
    """Hits that jump anywhere, one or many at a time, as no real cache's do."""
    queue = PolicyQueue(case.ordering)
    waiting: dict[int, RequestView] = {}
    hits: dict[int, int] = {}
    now, most = 0, rng.choice([3, 50, 900])

    def hit_of(number: int, tokens: int) -> int:
        return min(hits[number], tokens - 1)

    for number in range(60):
        now += rng.randint(0, 5)
        hits[number] = rng.randint(0, most)
        tokens = rng.randint(1, most)
        waiting[number] = RequestView(number, now, tokens, hit_of(number, tokens))
        queue.add(waiting[number])
        touched = rng.sample(sorted(waiting), rng.randint(0, len(waiting)))
        for i in touched:
            hits[i] = rng.choice([0, hits[i], rng.randint(0, most)])
        if rng.random() < 0.5:
            queue.reread(touched, hit_of)
        else:
            for i in touched:
                queue.update(waiting[i]._replace(cached_tokens=hit_of(i, waiting[i].prompt_tokens)))
        for _ in range(rng.choice([0, 0, 1, 3])):
            if waiting:
                now += rng.randint(0, 5)
                expected = case.rescan.best(waiting.values(), now, hit_of)
                assert queue.first(rng.randint(1, 4), now)[0].number == expected.number
                assert queue.pop(now).number == expected.number
                del waiting[expected.number]


@pytest.mark.parametrize(
    ("policy", "order", "hits"),
    [("fcfs", "ABCD", 1), ("srjf-static", "ACBD", 1), ("srjf-calibrated:lam=500", "ADCB", 2), ("lpm", "ADBC", 2)],
)
def test_the_paper_s_toy(policy: str, order: str, hits: int) -> None:
    """PrefillOnly's Figure 5: A < C < B < D arrive at once, A and D begin alike, B and C too; one request is cached.

    The paper has no lpm, which of B and C takes the one that comes first.
    """
    profile, length = {"A": 1, "D": 1, "B": 2, "C": 2}, {"A": 100, "C": 110, "B": 120, "D": 130}
    ordering = parse_policy(f"{policy}+full").ordering
    queue = PolicyQueue(ordering)
    for number, me in enumerate("ABCD"):
        queue.add(RequestView(number, 0, length[me]))
    served, n_hits = "", 0
    while queue.size:
        me = "ABCD"[queue.pop(0).number]
        n_hits += bool(served) and profile[me] == profile[served[-1]]
        served += me
        cached = {r.number: 90 * (profile["ABCD"[r.number]] == profile[me]) for r in queue}
        if ordering.cache_aware:
            queue.reread(cached, lambda number, tokens, cached=cached: cached[number])  # type: ignore[misc]
    assert (served, n_hits) == (order, hits)
