"""The study of margins: true costs that are not the predicted ones, and what its runs say."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from costmodels import LinearCost
from costmodels.base import CostModel
from experiments.margins.study import MARGINS, predictor, run, truths
from experiments.margins.truth import DriftingCost, TrueCost

TRUTHS = truths()
EXACT = predictor(TRUTHS["as predicted"])

NOISY = TrueCost(LinearCost(), sigma=0.05, overruns=0.01)


def test_noise_has_the_spread_that_it_says() -> None:
    factors = np.array([NOISY.step_ns(8, 1000 + k, 200, 0, 0, 0) for k in range(20_000)]) / LinearCost().step_ns(
        8, 0, 0, 0, 0, 0
    )
    ordinary = np.log(factors[factors < 1.25])
    assert abs(ordinary.std() - 0.05) < 0.002
    assert abs(ordinary.mean()) < 0.002
    assert 0.006 < np.mean(factors > 1.2) < 0.014


def test_equal_steps_take_equal_time_and_a_run_is_step_by_step() -> None:
    assert NOISY.step_ns(3, 30, 10, 0, 0, 0) == NOISY.step_ns(3, 30, 10, 0, 0, 0)
    assert NOISY.step_ns(3, 30, 10, 0, 0, 0) != replace(NOISY, seed=1).step_ns(3, 30, 10, 0, 0, 0)
    assert NOISY.decode_run_ns(3, 30, 10, 40).tolist() == CostModel.decode_run_ns(NOISY, 3, 30, 10, 40).tolist()


def test_tiles_and_bias() -> None:
    truth = TrueCost(LinearCost(), tile=128, bias=0.5)
    assert truth.step_ns(0, 0, 0, 1, 1, 1) == truth.step_ns(0, 0, 0, 1, 128, 1)
    assert truth.step_ns(0, 0, 0, 1, 128, 1) == 1.5 * LinearCost().step_ns(0, 0, 0, 1, 128, 1)


def test_drift_sets_in_after_so_many_steps() -> None:
    cost = DriftingCost(LinearCost(), LinearCost(step=10**9), 3)
    assert [cost.step_ns(0, 0, 0, 1, 1, 1) > 10**9 for _ in range(5)] == [False, False, False, True, True]


@pytest.mark.parametrize("margin", MARGINS)
def test_where_predictions_hold_no_margin_makes_anybody_late(margin: str) -> None:
    assert run(TRUTHS["as predicted"], EXACT, MARGINS[margin], 0)["late_gaps"] == 0


def test_a_guard_sees_drift_that_a_profile_could_not() -> None:
    truth = TRUTHS["10 % longer after an update"]
    believed = predictor(truth)
    calibrated = run(truth, believed, MARGINS["conformal 99 %"], 0)
    guarded = run(truth, believed, MARGINS["guard, 1000 steps"], 0)
    assert guarded["late_requests"] < 0.05 < 0.3 < calibrated["late_requests"]
    assert guarded["goodput"] > 2 * calibrated["goodput"]
