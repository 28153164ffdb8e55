"""A machine that is faster or slower throughout."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodels.base import CostModelError
from costmodels.linear import LinearCost
from costmodels.scaled import ScaledCost

STEP = st.tuples(*[st.integers(0, 5000)] * 6)


@given(step=STEP, factor=st.integers(1, 5_000_000))
def test_every_step_is_scaled_and_rounded_up(step: tuple[int, ...], factor: int) -> None:
    base = LinearCost()
    exact = base.step_ns(*step) * factor
    assert ScaledCost(base, factor / 10**6).step_ns(*step) == math.ceil(exact / 10**6) or exact > 2**50


@pytest.mark.parametrize("factor", [0.0, -1.0, math.inf, math.nan])
def test_other_factors_are_refused(factor: float) -> None:
    with pytest.raises(CostModelError, match="only by a positive number"):
        ScaledCost(LinearCost(), factor)
