"""Values that a seed decides: Hypothesis draws the seed, at a tenth of the cost of drawing each value."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

Maker = Callable[[random.Random], Any]

seeds = st.integers(0, 2**32)


def seeded(maker: Maker) -> st.SearchStrategy:
    """Draw what ``maker`` makes of a seed."""
    return st.builds(lambda seed: maker(random.Random(seed)), seeds)


def just(value: object) -> Maker:
    return lambda rng: value


def whole(low: int, high: int) -> Maker:
    """Make any integer from ``low`` to ``high``."""
    return lambda rng: rng.randint(low, high)


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
