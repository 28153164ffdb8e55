"""A machine that is faster or slower throughout."""

from __future__ import annotations

import json
import math

import pytest

from costmodels import load_cost_model
from costmodels.base import CostModelError
from costmodels.checks import check_cost_model
from costmodels.io import cost_model_from_dict
from costmodels.linear import LinearCost
from costmodels.scaled import ScaledCost
from tests.seeded import built, cases, wide

STEP = built(lambda *features: features, *[wide(5000)] * 6)


@cases(100, STEP, wide(5_000_000, 1))
def test_every_step_is_scaled_and_rounded_up(step: tuple[int, ...], factor: int) -> None:
    base = LinearCost()
    exact = base.step_ns(*step) * factor
    assert ScaledCost(base, factor / 10**6).step_ns(*step) == math.ceil(exact / 10**6) or exact > 2**50


def test_a_file_gives_the_model_back() -> None:
    model = ScaledCost(LinearCost(), 1.25)
    assert cost_model_from_dict(json.loads(json.dumps(model.to_dict()))) == model
    for wrong in ("1.25", True, None, 0):
        with pytest.raises(CostModelError, match=r"must be a number|only by a positive number"):
            cost_model_from_dict(model.to_dict() | {"factor": wrong})


def test_it_is_certified_and_scales_quantiles_and_stages() -> None:
    base = load_cost_model("prefill:llm=llama-3.1-8b,gpu=l4,link=pcie,pp=2")
    assert check_cost_model(ScaledCost(base, 1.1)) == []
    assert ScaledCost(base, 2).stages() == tuple(ScaledCost(stage, 2) for stage in base.stages())
    measured = load_cost_model("a100-llama3.1-8b")
    assert ScaledCost(measured, 2).at_quantile(0.99) == ScaledCost(measured.at_quantile(0.99), 2)


@pytest.mark.parametrize("factor", [0.0, -1.0, math.inf, math.nan, 1e5])
def test_other_factors_are_refused(factor: float) -> None:
    with pytest.raises(CostModelError, match="only by a positive number"):
        ScaledCost(LinearCost(), factor)
