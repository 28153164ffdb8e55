"""Random linear cost models and margins."""

from __future__ import annotations

import random
from fractions import Fraction

from hypothesis import strategies as st

from costmodels import CostModel, LinearCost
from costmodels.linear import MAX_NS
from costmodels.margin import WithMargin

nanoseconds = st.one_of(st.integers(0, 5), st.integers(0, 10**7), st.integers(0, MAX_NS))


def linear_costs() -> st.SearchStrategy[LinearCost]:
    """Draw a linear model; its prices come from a seed: each one drawn takes longer than most tests of it."""
    return st.builds(_linear, st.integers(0, 2**64), st.text(max_size=5))


def _linear(seed: int, name: str) -> LinearCost:
    rng = random.Random(seed)
    step, decode, per_decode, prefill, per_token = (_price(rng) for _ in range(5))
    if not step:
        decode, per_token = decode or 1, per_token or 1
    levels = [level for level in ("0.5", "0.9", "0.99", "0.999") if rng.random() < 0.5]
    extras = sorted(_price(rng) for _ in levels)
    residuals = dict(zip(levels, extras, strict=True))
    return LinearCost(name, step, decode, per_decode, prefill, per_token, residuals, name[::-1])


def _price(rng: random.Random) -> int:
    return rng.randint(0, rng.choice((5, 5, 10**7, MAX_NS)))


shares = st.fractions(0, 3, max_denominator=10**6) | st.sampled_from([Fraction(0), Fraction(1, 20), Fraction(1, 3)])


def costs() -> st.SearchStrategy[CostModel]:
    """Draw a linear model, most often with one margin or two on it."""
    return st.builds(_with_margins, linear_costs(), st.integers(0, 2**64))


def _with_margins(model: CostModel, seed: int) -> CostModel:
    rng = random.Random(seed)
    for _ in range(rng.choice((0, 1, 1, 2, 2))):
        share = rng.choice((Fraction(0), Fraction(1, 20), Fraction(1, 3), Fraction(rng.randint(0, 3 * 10**6), 10**6)))
        model = WithMargin(model, _price(rng), share)
    return model
