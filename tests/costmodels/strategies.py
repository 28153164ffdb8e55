"""Random linear cost models and margins."""

from __future__ import annotations

from fractions import Fraction

from hypothesis import strategies as st

from costmodels import CostModel, LinearCost
from costmodels.linear import MAX_NS
from costmodels.margin import WithMargin

nanoseconds = st.one_of(st.integers(0, 5), st.integers(0, 10**7), st.integers(0, MAX_NS))


@st.composite
def linear_costs(draw: st.DrawFn) -> LinearCost:
    step, decode, per_decode, prefill, per_token = (draw(nanoseconds) for _ in range(5))
    if not step:
        decode, per_token = decode or 1, per_token or 1
    levels = draw(st.sets(st.sampled_from(["0.5", "0.9", "0.99", "0.999"])))
    extras = sorted(draw(st.lists(nanoseconds, min_size=len(levels), max_size=len(levels))))
    return LinearCost(
        draw(st.text(max_size=5)),
        step,
        decode,
        per_decode,
        prefill,
        per_token,
        dict(zip(sorted(levels, key=float), extras, strict=True)),
        draw(st.text(max_size=5)),
    )


shares = st.fractions(0, 3, max_denominator=10**6) | st.sampled_from([Fraction(0), Fraction(1, 20), Fraction(1, 3)])


@st.composite
def costs(draw: st.DrawFn) -> CostModel:
    """Draw a linear model, with up to two margins on it."""
    model: CostModel = draw(linear_costs())
    for _ in range(draw(st.integers(0, 2))):
        model = WithMargin(model, draw(nanoseconds), draw(shares))
    return model
