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
    return rng.choice((0, MAX_NS, rng.randint(0, 5), rng.randint(0, 10**7), rng.randint(0, MAX_NS)))


shares = st.fractions(0, 3, max_denominator=10**6) | st.sampled_from([Fraction(0), Fraction(1, 20), Fraction(1, 3)])


def costs() -> st.SearchStrategy[CostModel]:
    """Draw a linear model, with up to two margins on it."""
    return st.builds(_with_margins, linear_costs(), st.lists(st.tuples(nanoseconds, shares), max_size=2))


def _with_margins(model: CostModel, margins: list[tuple[int, Fraction]]) -> CostModel:
    for constant, share in margins:
        model = WithMargin(model, constant, share)
    return model
