"""The study of margins: true costs that are not the predicted ones, and what its runs say."""

from __future__ import annotations

import pytest

from costmodels import LinearCost
from experiments.margins.study import MARGINS, predictor, run, truths
from experiments.margins.truth import DriftingCost

TRUTHS = truths()
EXACT = predictor(TRUTHS["as predicted"])


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
