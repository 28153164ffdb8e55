"""Random linear cost models and margins."""

from __future__ import annotations

import random
from fractions import Fraction

from costmodels import CostModel, LinearCost
from costmodels.linear import MAX_NS
from costmodels.margin import WithMargin
from tests.seeded import either, pick, whole

nanoseconds = either(whole(0, 5), whole(0, 10**7), whole(0, MAX_NS))


def linear_cost(rng: random.Random) -> LinearCost:
    """Make a linear model; its name may hold any characters."""
    name = "".join(chr(rng.choice([rng.randrange(128), rng.randrange(0xD800)])) for _ in range(rng.randint(0, 5)))
    step, decode, per_decode, prefill, per_token = (_price(rng) for _ in range(5))
    if not step:
        decode, per_token = decode or 1, per_token or 1
    levels = [level for level in ("0.5", "0.9", "0.99", "0.999") if rng.random() < 0.5]
    extras = sorted(_price(rng) for _ in levels)
    residuals = dict(zip(levels, extras, strict=True))
    return LinearCost(name, step, decode, per_decode, prefill, per_token, residuals, name[::-1])


def _price(rng: random.Random) -> int:
    return rng.randint(0, rng.choice((5, 5, 10**7, MAX_NS)))


def _fraction(rng: random.Random) -> Fraction:
    below = rng.randint(1, 10 ** rng.choice([1, 6]))
    return Fraction(rng.randint(0, 3 * below), below)


share = either(pick(Fraction(0), Fraction(1, 20), Fraction(1, 3)), _fraction)


def cost(rng: random.Random) -> CostModel:
    """Make a linear model, most often with one margin or two on it."""
    model: CostModel = linear_cost(rng)
    for _ in range(rng.choice((0, 1, 1, 2, 2))):
        model = WithMargin(model, _price(rng), share(rng))
    return model
