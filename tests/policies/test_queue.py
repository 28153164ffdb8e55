"""PolicyQueue is a list that is looked through each time, only faster."""

from __future__ import annotations

import copy
import itertools
import random
from collections.abc import Callable, Sequence
from unittest.mock import patch

import pytest

from policies import Ordering, PolicyError, PolicyQueue, QueueObserver, RequestView
from policies import queue as queues
from policies.ordering.fair import Fair
from policies.ordering.fcfs import Fcfs
from policies.ordering.k_lpm import KLpm
from policies.ordering.srjf import SrjfCalibrated
from tests.seeded import cases, pick, whole


class LastComeFirst(Ordering):
    """The latest arrival goes first: every key is below those before it."""

    name = "last-come-first"

    def key(self, request: RequestView) -> int:
        return -request.arrival_ns


class AllAlike(Ordering):
    """Nothing but ties."""

    name = "all-alike"

    def key(self, request: RequestView) -> int:
        return 0


class SlowestGrowth(Ordering):
    """A choice that changes with the clock, as no key can."""

    name = "slowest-growth"

    def choose(self, waiting: Sequence[RequestView], now_ns: int) -> RequestView:
        return min(waiting, key=lambda r: ((now_ns - r.arrival_ns) % (3 + r.uncached_tokens), -r.number))


class NaiveQueue:
    """The same queue as a list: every request is looked at for every answer."""

    def __init__(self, ordering: Ordering) -> None:
        self.ordering = ordering
        self.observer = ordering if isinstance(ordering, QueueObserver) else None
        self.front: list[RequestView] = []
        self.waiting: list[RequestView] = []

    def all(self) -> list[RequestView]:
        return self.front + sorted(self.waiting, key=lambda r: (r.arrival_ns, r.number))

    def in_order(self, now: int) -> list[RequestView]:
        taken, rest = list(self.front), sorted(self.waiting, key=lambda r: (r.arrival_ns, r.number))
        ordering = copy.deepcopy(self.ordering)
        while rest:
            chosen = ordering.choose(rest, now)
            rest.remove(chosen)
            taken.append(chosen)
            if isinstance(ordering, QueueObserver):
                ordering.taken(chosen)
        return taken

    def add(self, view: RequestView) -> None:
        self.waiting.append(view)
        if self.observer:
            self.observer.entered(view)

    def take(self, number: int, *, served: bool) -> None:
        for view in self.waiting:
            if self.observer and view.number == number:
                (self.observer.taken if served else self.observer.withdrawn)(view)
        self.front = [r for r in self.front if r.number != number]
        self.waiting = [r for r in self.waiting if r.number != number]

    def replace(self, view: RequestView) -> None:
        self.front = [view if r.number == view.number else r for r in self.front]
        self.waiting = [view if r.number == view.number else r for r in self.waiting]


DOINGS = (
    *("arrive", "look_ahead", "wait"),
    *("put_back_a_preempted_one", "come_again"),
    *("see_the_cache_change", "see_many_caches_change", "lose_a_client", "pop"),
)
"""At any time, with somebody who was taken, with somebody who waits."""


class Pair:
    """Both queues through everything that a host may do; small numbers make ties and stale entries frequent."""

    def __init__(self, ordering: Ordering, rng: random.Random) -> None:
        self.queue = PolicyQueue(copy.deepcopy(ordering))
        self.naive = NaiveQueue(copy.deepcopy(ordering))
        self.rng = rng
        self.left: list[RequestView] = []
        self.next_number = 0
        self.now = 10
        # Each life has its own habits: in some the queue grows, in some it is rarely looked at.
        self.habits = {name: rng.choice([0, 1, 1, 4]) for name in DOINGS} | {"arrive": rng.choice([1, 4])}

    def somebody(self) -> RequestView:
        return self.rng.choice(self.naive.all())

    def add(self, view: RequestView) -> None:
        self.queue.add(view)
        self.naive.add(view)

    def arrive(self) -> None:
        self.next_number += 1
        self.add(
            RequestView(
                self.next_number, self.rng.randint(0, 6), self.rng.randint(1, 6), tenant=self.rng.choice([None, "a"])
            )
        )

    def put_back_a_preempted_one(self) -> None:
        view = self.left.pop()
        self.queue.push_front(view)
        self.naive.front.insert(0, view)

    def come_again(self) -> None:
        self.add(self.left.pop(0))

    def see_the_cache_change(self) -> None:
        view = self.somebody()
        view = view._replace(cached_tokens=self.rng.randint(0, view.prompt_tokens - 1))
        self.queue.update(view)
        self.naive.replace(view)

    def see_many_caches_change(self) -> None:
        """A burst: many read at once, most of which find what they had."""
        cached = self.rng.randint(0, 3)
        share = self.rng.random()
        touched = {view for view in self.naive.all() if self.rng.random() < share}
        hits = {(v.number, v.prompt_tokens): min(cached, v.prompt_tokens - 1) for v in touched}
        changed = self.queue.reread((v.number for v in touched), lambda number, tokens: hits[number, tokens])
        assert changed == any(v.cached_tokens != hits[v.number, v.prompt_tokens] for v in touched)
        for view in touched:
            self.naive.replace(view._replace(cached_tokens=hits[view.number, view.prompt_tokens]))

    def lose_a_client(self) -> None:
        number = self.somebody().number
        self.queue.remove(number)
        self.naive.take(number, served=False)

    def pop(self) -> None:
        expected = self.naive.in_order(self.now)[0]
        assert self.queue.pop(self.now) == expected
        self.naive.take(expected.number, served=True)
        self.left.append(expected)

    def look_ahead(self) -> None:
        n = self.rng.randint(0, 9)
        assert self.queue.first(n, self.now) == self.naive.in_order(self.now)[:n]

    def wait(self) -> None:
        self.now += self.rng.randint(1, 5)

    def step(self) -> None:
        doings = [*DOINGS[:3], *(DOINGS[3:5] if self.left else []), *(DOINGS[5:] if self.naive.all() else [])]
        (name,) = self.rng.choices(doings, [self.habits[name] for name in doings])
        getattr(self, name)()

    def compare(self) -> None:
        """The head at even times only, so that a queue that was not looked at is popped as well."""
        held = self.naive.all()
        assert list(self.queue) == held
        assert len(self.queue) == self.queue.size == len(held)
        assert bool(self.queue) == bool(held)
        if held and self.now % 2 == 0:
            assert self.queue.peek(self.now) == self.naive.in_order(self.now)[0]


ORDERINGS = [
    Fcfs(),
    LastComeFirst(),
    AllAlike(),
    SrjfCalibrated(lam=1e9),
    SlowestGrowth(),
    Fair(weights="a:2"),
    KLpm(k=3),
]


@pytest.mark.parametrize("ordering", ORDERINGS, ids=lambda o: o.name)
def test_the_queue_equals_a_list(ordering: Ordering) -> None:
    """Whatever happens; few steps would never fill the heap of a real queue, so it is merged sooner."""

    @cases(100, pick(0, 3, queues.LEAST_MERGED), whole(1, 60), lambda rng: rng)
    def holds(least: int, steps: int, rng: random.Random) -> None:
        pair = Pair(ordering, rng)
        with patch.object(queues, "LEAST_MERGED", least):
            for _ in range(steps):
                pair.step()
                pair.compare()

    holds()


def entries(queue: PolicyQueue) -> int:
    return len(queue._run) + len(queue._heap) + len(queue._fresh)


def test_updates_without_end_leave_a_small_queue() -> None:
    """A cache event a step re-keys requests for hours; what they were before must not pile up."""
    queue = PolicyQueue(SrjfCalibrated())
    requests = [RequestView(i, i, 1000) for i in range(10)]
    for request in requests:
        queue.add(request)
    latest = {}
    for turn in range(5000):
        view = requests[turn % 10]._replace(cached_tokens=turn * 7919 % 999)
        latest[view.number] = view
        queue.update(view)
        if len(latest) == 10:
            assert queue.peek(0) is min(latest.values(), key=SrjfCalibrated().key)
        assert entries(queue) <= 2 * len(queue) + 65
    assert len(queue) == 10


def test_requests_that_have_left_are_forgotten() -> None:
    """Millions come, are updated while they wait, and go."""
    queue = PolicyQueue(SrjfCalibrated())
    for i in range(3000):
        queue.add(RequestView(i, i, 1000))
        queue.update(RequestView(i, i, 1000, i * 7919 % 999))
        if i % 3 == 2:
            queue.remove(queue.peek(0).number)
            queue.pop(0)
            queue.pop(0)
        assert entries(queue) <= 2 * len(queue) + 65
    assert len(queue) == 0
    assert not queue._entries()


def test_an_update_that_changes_no_key_leaves_no_trace() -> None:
    """What is cached may change without changing who is next: a tenant's name, a hit that no key reads."""
    queue = PolicyQueue(Fcfs())
    for i in range(5):
        queue.add(RequestView(i, i, 100))
    for turn in range(200):
        queue.update(RequestView(turn % 5, turn % 5, 100, turn % 100))
    assert entries(queue) == 5
    assert [r.cached_tokens for r in queue.first(5, 0)] == [95, 96, 97, 98, 99]


def test_updating_is_as_good_as_adding_in_comparisons() -> None:
    """O(log n) per update over the whole run, sweeps included: counted, not timed."""
    compared = 0

    class Key(int):
        def __lt__(self, other: object) -> bool:
            nonlocal compared
            compared += 1
            return int.__lt__(self, other)  # type: ignore[operator]

    class Counted(Ordering):
        name = "counted"

        def key(self, request: RequestView) -> int:
            return Key(request.uncached_tokens * 10**6 + request.arrival_ns)

    def per_update(waiting: int) -> float:
        nonlocal compared
        queue = PolicyQueue(Counted())
        for i in range(waiting):
            queue.add(RequestView(i, i, 1000))
        compared = 0
        for turn in range(4 * waiting):
            i = turn * 7919 % waiting
            queue.update(RequestView(i, i, 1000, turn * 104729 % 999))
            queue.peek(0)
        return compared / (4 * waiting)

    few, many = per_update(100), per_update(2_000)
    assert many <= 2 * few + 20


@pytest.mark.parametrize("act", [lambda q: q.update(RequestView(7, 0, 1)), lambda q: q.remove(7)])
def test_who_does_not_wait_cannot_be_updated_or_removed(act: Callable[[PolicyQueue], None]) -> None:
    queue = PolicyQueue(Fcfs())
    queue.add(RequestView(0, 0, 1))
    queue.push_front(RequestView(1, 1, 1))
    with pytest.raises(KeyError, match="request 7 does not wait"):
        act(queue)
    assert len(list(queue)) == len(queue) == 2


@pytest.mark.parametrize(
    "answer",
    [RequestView(7, 0, 1), RequestView(0, 0, 1), None],
    ids=["somebody else", "an equal copy", "nobody"],
)
def test_a_choice_that_does_not_wait_is_refused(answer: RequestView | None) -> None:
    class Wrong(Ordering):
        name = "wrong"

        def choose(self, waiting: Sequence[RequestView], now_ns: int) -> RequestView:
            return answer  # type: ignore[return-value]

    queue = PolicyQueue(Wrong())
    queue.add(RequestView(0, 0, 1))
    with pytest.raises(PolicyError, match=r"ordering wrong: choose returned .*, which is not one of the waiting"):
        queue.peek(0)
    queue.add(RequestView(1, 0, 1))
    with pytest.raises(PolicyError, match="is not one of the waiting"):
        queue.first(2, 0)


def test_a_key_that_never_settles_is_an_error_and_no_endless_loop() -> None:
    class Restless(Ordering):
        name = "restless"
        cache_aware = True
        answers = itertools.count()

        def key(self, request: RequestView) -> int:
            return next(self.answers)

    queue = PolicyQueue(Restless())
    for number in range(5):
        queue.add(RequestView(number, number, 10))
    queue.reread([1], lambda number, tokens: 4)
    with pytest.raises(PolicyError, match="restless: key answers something else"):
        queue.peek(0)
