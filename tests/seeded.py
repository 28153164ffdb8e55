"""Values that a seed decides: Hypothesis draws the seed, which costs less than drawing each value."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from hypothesis import given, note, settings
from hypothesis import strategies as st

Maker = Callable[[random.Random], Any]

seeds = st.integers(0, 2**32)


def seeded(maker: Maker) -> st.SearchStrategy:
    """Draw what ``maker`` makes of a seed."""
    return st.builds(lambda seed: maker(random.Random(seed)), seeds)


def cases(n: int, *makers: Maker) -> Callable[[Callable[..., None]], Callable[[], None]]:
    """Give a test at least ``n`` cases, a few to each seed: where a case is quick, most time goes into Hypothesis."""
    each = max(1, n // 25)

    def decorate(test: Callable[..., None]) -> Callable[[], None]:
        def run(seed: int) -> None:
            for k in range(each):
                rng = random.Random(each * seed + k)
                arguments = [maker(rng) for maker in makers]
                try:
                    test(*arguments)
                except AssertionError:
                    note(f"{test.__name__} of {arguments}")
                    raise

        run.__name__, run.__qualname__, run.__module__ = test.__name__, test.__qualname__, test.__module__
        run.__doc__ = test.__doc__
        return settings(deadline=None, max_examples=-(-n // each))(given(seeds)(run))

    return decorate


def just(value: object) -> Maker:
    return lambda rng: value


def whole(low: int, high: int) -> Maker:
    """Make any integer from ``low`` to ``high``."""
    return lambda rng: rng.randint(low, high)


def wide(high: int, low: int = 0) -> Maker:
    """Make an integer from ``low`` to ``high`` that differs from ``low`` in any number of digits."""
    span = high - low
    return lambda rng: low + rng.randint(0, min(span, 10 ** rng.randint(0, len(str(span)))))


def pick(*values: object) -> Maker:
    """Make one of some values."""
    return lambda rng: rng.choice(values)


def either(*makers: Maker) -> Maker:
    """Make what one of some makers makes."""
    return lambda rng: rng.choice(makers)(rng)


def built(make: Callable[..., Any], *makers: Maker, **named: Maker) -> Maker:
    """Call ``make`` with what some makers make."""
    return lambda rng: make(*(own(rng) for own in makers), **{name: own(rng) for name, own in named.items()})


def maybe(maker: Maker) -> Maker:
    """Make ``None`` in a half of all cases."""
    return either(just(None), maker)


def rarely(maker: Maker) -> Maker:
    """Make ``None`` in five cases of six."""
    return lambda rng: None if rng.randrange(6) else maker(rng)


def fields(**makers: Maker) -> Maker:
    """Make a dictionary."""
    return lambda rng: {name: maker(rng) for name, maker in makers.items()}
