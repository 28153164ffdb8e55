"""How a grant is handed out, and whom cache events touch."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gpu_runner.allotment import Allotment
from gpu_runner.watch import CacheWatch
from policies.views import Grant

COUNTS = st.one_of(st.none(), st.integers(1, 5))


@given(
    tokens=st.integers(0, 300),
    prefills=COUNTS,
    cap=st.one_of(st.none(), st.integers(1, 100)),
    wanted=st.lists(st.integers(1, 120), max_size=8),
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


HASHES = st.lists(st.integers(0, 9), max_size=5, unique=True)


@given(
    watched=st.lists(HASHES, max_size=6),
    gone=st.sets(st.integers(0, 5)),
    changed=st.lists(st.one_of(st.none(), st.integers(0, 9)), max_size=4),
    asked=HASHES,
)
def test_an_event_touches_whoever_has_its_block(
    watched: list[list[int]], gone: set[int], changed: list[int | None], asked: list[int]
) -> None:
    watch = CacheWatch()
    for number, hashes in enumerate(watched):
        watch.watch(number, hashes)
    for number in gone:
        watch.unwatch(number)
    left = {n: h for n, h in enumerate(watched) if n not in gone}
    expected = sorted(n for n, h in left.items() if None in changed or set(h) & set(changed))
    assert watch.touched(changed) == expected
    assert all((n in watch) == (n in left) for n in range(7))
    known = {h for hashes in left.values() for h in hashes}
    shared = next((i for i, h in enumerate(asked) if h not in known), len(asked))
    assert watch.shared(asked) == shared
