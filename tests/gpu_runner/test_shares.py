"""How a grant is handed out, and whom cache events touch."""

from __future__ import annotations

import random
from typing import Any

from gpu_runner.allotment import Allotment
from gpu_runner.watch import CacheWatch
from policies.views import Grant
from tests.seeded import cases, either, just, maybe, whole


def wants(rng: random.Random) -> list[int]:
    most = rng.choice((2, 30, 120))
    return [rng.randint(1, most) for _ in range(rng.randint(0, 8))]


@cases(
    100,
    either(just(0), whole(0, 12), whole(0, 300), whole(0, 300)),
    maybe(whole(1, 5)),
    maybe(either(whole(1, 3), whole(1, 100))),
    wants,
)
def test_shares_are_those_of_a_plain_loop(
    tokens: int, prefills: int | None, cap: int | None, wanted: list[int]
) -> None:
    allotment = Allotment(Grant(tokens, prefills, cap))
    shares = [allotment.share(i, 0, want) for i, want in enumerate(wanted)]
    left, given_out = tokens, []
    for want in wanted:
        if left == 0 or len(given_out) == (9 if prefills is None else prefills):
            break
        given_out.append(min(want, left, 999 if cap is None else cap))
        left -= given_out[-1]
    assert shares == given_out + [0] * (len(wanted) - len(given_out))
    assert [(s.request, s.tokens) for s in allotment.shares] == list(enumerate(given_out))
    assert allotment.open == (left > 0 and (prefills is None or len(given_out) < prefills))


def hashes(rng: random.Random) -> list[int]:
    return rng.sample(range(10), rng.randint(0, 5))


def some_of(*values: Any, most: int) -> Any:
    return lambda rng: rng.choices(values, k=rng.randint(0, most))


@cases(
    100,
    lambda rng: [hashes(rng) for _ in range(rng.randint(0, 6))],
    some_of(*range(6), most=6),
    either(some_of(*range(10), most=4), some_of(None, *range(10), most=4)),
    hashes,
)
def test_an_event_touches_whoever_has_its_block(
    watched: list[list[int]], numbers: list[int], changed: list[int | None], asked: list[int]
) -> None:
    gone = set(numbers)
    watch = CacheWatch()
    for number, own in enumerate(watched):
        watch.watch(number, own)
    for number in gone:
        watch.unwatch(number)
    left = {n: h for n, h in enumerate(watched) if n not in gone}
    expected = sorted(n for n, h in left.items() if None in changed or set(h) & set(changed))
    assert watch.touched(changed) == expected
    assert all((n in watch) == (n in left) for n in range(7))
    known = {h for own in left.values() for h in own}
    shared = next((i for i, h in enumerate(asked) if h not in known), len(asked))
    assert watch.shared(asked) == shared
