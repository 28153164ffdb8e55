"""Models that err on purpose: by how much, the same everywhere, kept as files and read from names."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from costmodels import CostModel, CostModelError, LinearCost, load_cost_model, save_cost_model, with_margin
from costmodels.checks import check_cost_model
from costmodels.erring import RANGES, ErringCost
from costmodels.io import cost_model_from_dict, load_card
from tests.seeded import built, cases, either, just, pick, whole, wide

STEP = built(lambda *features: features, *[wide(5000)] * 6)
NOISY = ErringCost(LinearCost(), noise_ppm=50_000, overruns_ppm=10_000, longer_ppm=300_000)
KNOWN = [1_837_406, 3_397_294, 26_598_860]
PIPELINE = "prefill:llm=llama-3.1-8b,gpu=l4,link=pcie,pp=2"


erring_costs = built(
    ErringCost,
    just(LinearCost()),
    either(pick(0, -500_000, 1_000_000), whole(-500_000, 1_000_000)),
    pick(0, 30_000, 1_000_000),
    pick(0, 10_000),
    pick(0, 300_000),
    pick(1, 128),
    wide(RANGES["seed"][1]),
)


@cases(100, STEP, either(wide(9_000_000), whole(-999_999, 0), pick(-999_999, 9_000_000)))
def test_a_biased_step_is_rounded_up(step: tuple[int, ...], bias: int) -> None:
    exact = LinearCost().step_ns(*step) * (10**6 + bias)
    assert ErringCost(LinearCost(), bias).step_ns(*step) == -(-exact // 10**6)


def test_noise_has_the_spread_that_it_says() -> None:
    exact = LinearCost().step_ns(8, 0, 0, 0, 0, 0)
    factors = np.array([NOISY.step_ns(8, 1000 + k, 200, 0, 0, 0) for k in range(20_000)]) / exact
    ordinary = np.log(factors[factors < 1.25])
    assert abs(ordinary.std() - 0.05) < 0.002
    assert abs(ordinary.mean()) < 0.002
    assert 0.006 < np.mean(factors > 1.2) < 0.014


def test_noise_of_neighbours_is_independent() -> None:
    steps = np.log([NOISY.step_ns(8, 1000 + 8 * k, 200 + k, 0, 0, 0) for k in range(10_000)])
    other = np.log([replace(NOISY, seed=1).step_ns(8, 1000 + 8 * k, 200 + k, 0, 0, 0) for k in range(10_000)])
    assert abs(np.corrcoef(steps[1:], steps[:-1])[0, 1]) < 0.04
    assert abs(np.corrcoef(steps, other)[0, 1]) < 0.04


def test_noise_is_the_same_on_every_machine() -> None:
    steps = [(8, 1000, 200, 0, 0, 0), (8, 1000, 200, 1, 256, 32_896), (0, 0, 0, 1, 4096, 8_390_656)]
    assert [NOISY.step_ns(*step) for step in steps] == KNOWN


def test_tiles() -> None:
    model = ErringCost(LinearCost(), 500_000, tile=128)
    assert model.step_ns(0, 0, 0, 1, 1, 1) == model.step_ns(0, 0, 0, 1, 128, 1)
    assert model.step_ns(0, 0, 0, 1, 128, 1) == 1.5 * LinearCost().step_ns(0, 0, 0, 1, 128, 1)


@cases(25, erring_costs)
def test_a_model_comes_back_from_its_file_and_from_its_name(model: ErringCost) -> None:
    named = replace(model, model=load_cost_model("sloweave-paper"))
    if not model.overruns_ppm:
        named = replace(named, longer_ppm=0)
    assert cost_model_from_dict(json.loads(json.dumps(model.to_dict()))) == model
    assert load_cost_model(named.name) == named


@cases(4, erring_costs)
def test_bias_and_tiles_are_certified_and_noise_is_not(model: ErringCost) -> None:
    problems = check_cost_model(model)
    if not (model.noise_ppm or model.overruns_ppm):
        assert problems == []
    assert all("takes" in problem for problem in problems)
    assert check_cost_model(replace(model, noise_ppm=100_000)) != []


@cases(150, erring_costs, wide(10**8), wide(5000))
def test_the_chunk_that_is_found_fits(model: ErringCost, budget: int, limit: int) -> None:
    c = model.max_chunk(8, 800, 200, 100, limit, budget)
    assert 0 <= c <= limit
    assert c == 0 or model.step_ns(8, 800, 200, 1, c, c * 100 + c * (c + 1) // 2) <= budget


def test_a_run_of_decodes_is_step_by_step() -> None:
    assert NOISY.decode_run_ns(3, 30, 10, 40).tolist() == CostModel.decode_run_ns(NOISY, 3, 30, 10, 40).tolist()


def test_stages_of_a_pipeline_err_too() -> None:
    right = load_cost_model(PIPELINE)
    wrong = load_cost_model(f"erring:of={PIPELINE},bias=10%")
    step = (0, 0, 0, 1, 2000, 2_001_000)
    assert [w.step_ns(*step) for w in wrong.stages()] == [
        math.ceil(r.step_ns(*step) * 1.1 - 1e-6) for r in right.stages()
    ]


def test_margins_are_those_of_the_model_that_is_right() -> None:
    right = load_cost_model("a100-llama3.1-8b")
    wrong = load_cost_model("erring:of=a100-llama3.1-8b,bias=-10%")
    step = (16, 8000, 1000, 1, 512, 131_328)
    for margin in ("c99", "p99"):
        assert with_margin(wrong, margin).step_ns(*step) == -(-with_margin(right, margin).step_ns(*step) * 9 // 10)
    with pytest.raises(CostModelError, match=r"covers 0\.5"):
        with_margin(wrong, "c50")
    with pytest.raises(CostModelError, match="no calibrated coverage"):
        with_margin(load_cost_model("erring:of=sloweave-paper"), "c99")


def test_its_card_says_nothing_of_a_fit() -> None:
    card, right = load_card("erring:of=a100-llama3.1-8b,bias=1%"), load_card("a100-llama3.1-8b")
    assert card == {key: value for key, value in right.items() if key != "fit"}


def test_a_saved_one_is_loaded(tmp_path: Path) -> None:
    path = tmp_path / "wrong.json"
    save_cost_model(NOISY, path)
    assert load_cost_model(str(path)) == NOISY
    assert load_cost_model(f"erring:of={path},bias=1%") == ErringCost(NOISY, 10_000)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected name=value, not ''"),
        ("bias=5%", "of is missing; name the model that is right, as in of=sloweave-paper"),
        ("of=erring:of=sloweave-paper", "which errs already"),
        ("of=sloweave-paper,bais=5%", "unknown parameter 'bais=5%'; did you mean bias?"),
        ("of=sloweave-paper,bias=5%,bias=6%", "bias is given twice"),
        ("of=sloweave-paper,bias=5", "bias is '5'; it must be a share in per cent, like 5%"),
        ("of=sloweave-paper,bias=-100%", "bias is -100%; it must lie between -99.9999% and 900%"),
        ("of=sloweave-paper,noise=0.00001%", "in steps of 0.0001%"),
        ("of=sloweave-paper,overruns=1%", "it should read 1%:30%"),
        ("of=sloweave-paper,tile=0", "tile is '0'; it must be a whole number from 1 to 65536"),
        ("of=sloweave-paper,seed=-1", "seed is '-1'; it must be a whole number"),
        ("of=sloweave-papr", "did you mean sloweave-paper?"),
        ("of=prefill:llm=llama-3.1-8b,gpu=l4,bais=4", "unknown parameter 'bais=4'"),
    ],
)
def test_a_mistake_is_one_sentence(text: str, message: str) -> None:
    with pytest.raises(CostModelError) as e:
        load_cost_model(f"erring:{text}")
    assert message in str(e.value)
    assert "\n" not in str(e.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"bias_ppm": 0.5}, "bias_ppm is 0.5; it must be a whole number from -999999 to 9000000"),
        ({"seed": True}, "seed is True"),
        ({"tile": 0}, "tile is 0"),
        ({"noise": 1}, "unknown field noise; did you mean noise_ppm?"),
        ({"model": 3}, "erring: model: a cost model is a JSON object, not a number"),
    ],
)
def test_a_wrong_file_is_one_sentence(change: dict[str, object], message: str) -> None:
    with pytest.raises(CostModelError) as e:
        cost_model_from_dict({**NOISY.to_dict(), **change}, "erring")
    assert message in str(e.value)
