"""The paper's linear form, fitted."""

from __future__ import annotations

import numpy as np
import pytest

from costmodels import LinearCost
from costmodels.linear_fit import LinearEstimator
from tests.costmodels.made_profiles import GRID
from tests.seeded import cases, either, whole, wide

prices = either(whole(0, 1), wide(10**6), whole(0, 10**6))


@cases(50, wide(10**6, 1), prices, prices, prices, prices)
def test_it_finds_the_model_that_made_the_profile(
    step: int, decode: int, per_decode: int, prefill: int, per_token: int
) -> None:
    truth = LinearCost("truth", step, decode, per_decode, prefill, per_token)
    ns = np.array([truth.step_ns(*map(int, step)) for step in GRID])
    found = LinearEstimator().fit(GRID, ns).compile("truth")
    again = np.array([found.step_ns(*map(int, step)) for step in GRID])
    assert np.abs(again / ns - 1).max() < 1e-3


def test_the_paper_s_model_comes_back_to_the_nanosecond() -> None:
    """SLOWeave §4.1."""
    truth = LinearCost()
    ns = [truth.step_ns(*map(int, step)) for step in GRID]
    assert LinearEstimator().fit(GRID, ns).coef_ == {
        "step": 350_000,
        "decode": 900_000,
        "per_decode": 55_000,
        "prefill": 400_000,
        "per_token": 6_000,
    }


@pytest.mark.parametrize("decodes", [False, True])
def test_steps_of_one_kind_alone_leave_no_step_without_time(decodes: bool) -> None:
    """All of them prefill, or decode: the least that this costs is then what any step costs."""
    count = np.arange(1, 40)
    zero = np.zeros_like(count)
    if decodes:
        steps = np.column_stack([count, 100 * count, 100 + zero, zero, zero, zero])
    else:
        steps = np.column_stack([zero, zero, zero, 1 + zero, 50 * count, 50 * count * (50 * count + 1) // 2])
    model = LinearEstimator().fit(steps, 2_000_000 + 1000.0 * count).compile("one-kind")
    assert model.step == pytest.approx(2_000_000, rel=1e-6)
    assert model.step_ns(*(1, 10, 10, 0, 0, 0)) >= model.step
