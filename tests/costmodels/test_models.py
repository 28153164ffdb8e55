"""The linear model and margins in exact integers, against their definitions and against the generic search."""

from __future__ import annotations

import random
import re
from fractions import Fraction
from math import ceil
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodels import CostModel, CostModelError, LinearCost, load_cost_model, with_margin
from costmodels.checks import check_cost_model
from costmodels.linear import MAX_NS
from costmodels.margin import WithMargin, parse_margin
from tests.costmodels.strategies import cost, linear_cost, nanoseconds, share
from tests.seeded import built, cases, either, whole, wide

quickly = settings(deadline=None, max_examples=150)
counts = either(whole(0, 2), whole(0, 1000), whole(0, 1000))
contexts = wide(10**6)


def test_the_worked_example_of_the_paper_is_exact() -> None:
    """T(4, 1355) is 10 ms (§4.1); in doubles it is 10.000000000000002 ms."""
    model = load_cost_model("sloweave-paper")
    assert (0.35 + (0.90 + 0.055 * 4)) + (0.40 + 0.006 * 1355) > 10
    assert model.step_ns(4, 0, 0, 1, 1355, 0) == 10_000_000
    assert model.max_chunk(4, 0, 0, 0, 4096, 10_000_000) == 1355
    assert model.max_chunk(4, 0, 0, 0, 4096, 9_999_999) == 1354


@cases(150, counts, wide(8192))
def test_the_default_is_the_paper_s_formula(n: int, c: int) -> None:
    """0.35 + 1[n > 0](0.90 + 0.055 n) + 1[c > 0](0.40 + 0.006 c) ms."""
    ms = Fraction("0.35")
    if n:
        ms += Fraction("0.90") + Fraction("0.055") * n
    if c:
        ms += Fraction("0.40") + Fraction("0.006") * c
    assert LinearCost().step_ns(n, 50 * n, 100, int(c > 0), c, c * c) == ms * 10**6


@cases(200, cost, counts, contexts, wide(10**5), wide(10**5, 1), lambda rng: rng)
def test_a_closed_form_finds_what_bisection_finds(
    model: CostModel, n: int, total: int, context: int, limit: int, rng: random.Random
) -> None:
    c = rng.choice([rng.randint(1, limit), rng.randint(1, limit), limit, limit + 1])
    pairs = c * context + c * (c + 1) // 2
    # Budgets at and beside the end of a chunk, where "before" and "at" part, and any.
    budget = rng.choice([model.step_ns(n, total, total, 1, c, pairs) + rng.randint(-1, 1), wide(10**13, -5)(rng)])
    asked = (n, total, total, context, limit, budget)
    assert model.max_chunk(*asked) == CostModel.max_chunk(model, *asked)


@cases(150, cost, wide(1000, 1), contexts, whole(0, 30))
def test_a_run_of_decodes_is_step_by_step(model: CostModel, n: int, total: int, steps: int) -> None:
    run = model.decode_run_ns(n, total, total, steps)
    assert run.tolist() == CostModel.decode_run_ns(model, n, total, total, steps).tolist()


@cases(200, linear_cost, nanoseconds, share, counts, wide(10**5))
def test_a_margin_is_added_exactly(model: LinearCost, constant: int, share: Fraction, n: int, c: int) -> None:
    """T + δ with δ rounded up to a nanosecond."""
    step = (n, n, n, int(c > 0), c, c)
    t = model.step_ns(*step)
    assert WithMargin(model, constant, share).step_ns(*step) == t + constant + ceil(share * t)


@cases(150, built(lambda us: Fraction(us, 1000), wide(10**6)), counts)
def test_margins_as_they_are_typed(value: Fraction, n: int) -> None:
    text = f"{float(value):.3f}"
    step = (n, 0, 0, 1, 10, 0)
    t = LinearCost().step_ns(*step)
    assert with_margin(LinearCost(), text).step_ns(*step) == t + value * 10**6
    assert with_margin(LinearCost(), f"{text}%").step_ns(*step) == t + ceil(t * value / 100)


def test_a_constant_margin_below_a_nanosecond_is_rounded_up() -> None:
    assert (
        with_margin(LinearCost(), "0.0000001").step_ns(0, 0, 0, 1, 1, 1) == LinearCost().step_ns(0, 0, 0, 1, 1, 1) + 1
    )


def test_no_margin_is_the_model_itself() -> None:
    model = LinearCost()
    assert with_margin(model, "0") is model
    assert with_margin(model, " 0% ") is model


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ("0.5", "constant", Fraction(1, 2)),
        ("2", "constant", Fraction(2)),
        ("5%", "relative", Fraction(1, 20)),
        ("12.5%", "relative", Fraction(1, 8)),
        ("p99", "quantile", Fraction(99, 100)),
        ("p99.9", "quantile", Fraction(999, 1000)),
    ],
)
def test_the_forms_of_a_margin(text: str, kind: str, value: Fraction) -> None:
    assert parse_margin(text) == (kind, value)


@quickly
@given(st.text() | st.from_regex(r"p?[-+0-9.e]{1,5}%?", fullmatch=True) | st.just("9" * 5000))
def test_any_text_is_a_margin_or_a_cost_model_error(text: str) -> None:
    try:
        kind, value = parse_margin(text)
    except CostModelError:
        return
    assert value >= 0
    assert kind != "quantile" or 0 < value < 1


def test_quantiles() -> None:
    model = LinearCost(residual_quantiles={"0.5": 10, "0.99": 700, "0.999": 900})
    step = (3, 30, 10, 1, 100, 5050)
    for text, extra in (("p50", 10), ("p99", 700), ("p99.9", 900)):
        careful = with_margin(model, text)
        assert careful.step_ns(*step) == model.step_ns(*step) + extra
        assert check_cost_model(careful) == []
    assert WithMargin(model, 5).at_quantile(0.99).step_ns(*step) == model.step_ns(*step) + 705
    with pytest.raises(CostModelError, match=re.escape("no quantile 0.9 of its residuals, only 0.5, 0.99, 0.999")):
        with_margin(model, "p90")
    with pytest.raises(CostModelError, match=re.escape("give the margin in ms (margin=0.5) or as a share of the")):
        with_margin(LinearCost(), "p90")


@pytest.mark.parametrize("name", ["step", "decode", "per_decode", "prefill", "per_token"])
@pytest.mark.parametrize("value", [-1, 1.0, 1.5, True, None, "5", float("nan"), MAX_NS + 1])
def test_a_coefficient_is_a_whole_number(name: str, value: Any) -> None:
    with pytest.raises(CostModelError, match=re.escape(f"{name}_ns is {value!r}; it must be a whole number of")):
        LinearCost(**{name: value})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"step": 0, "prefill": 0, "per_token": 0}, "a step would take no time"),
        ({"step": 0, "decode": 0, "per_decode": 0}, "a step would take no time"),
        ({"residual_quantiles": {"0.5": 2, "0.9": 1}}, "the residual quantile 0.9 is below 0.5's"),
        ({"residual_quantiles": {"0.9": -1}}, "the residual quantile 0.9 is -1; it must be a whole number"),
        ({"residual_quantiles": {"0.9": True}}, "the residual quantile 0.9 is True; it must be a whole number"),
        ({"residual_quantiles": {"0.90": 1}}, "'0.90' must be a decimal between 0 and 1 in its shortest form"),
        ({"residual_quantiles": {"p90": 1}}, "'p90' must be a decimal between 0 and 1"),
        ({"residual_quantiles": {"1.0": 1}}, "'1.0' must be a decimal between 0 and 1"),
        ({"residual_quantiles": {"nan": 1}}, "'nan' must be a decimal between 0 and 1"),
        ({"residual_quantiles": {0.9: 1}}, "0.9 must be a decimal between 0 and 1"),
    ],
)
def test_a_model_that_makes_no_sense_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(CostModelError, match=re.escape(message)):
        LinearCost(**arguments)


@pytest.mark.parametrize("arguments", [{"constant_ns": -1}, {"relative": Fraction(-1, 9)}])
def test_a_margin_is_not_negative(arguments: dict[str, Any]) -> None:
    with pytest.raises(CostModelError, match="neither may be negative"):
        WithMargin(LinearCost(), **arguments)


def test_a_model_can_be_a_key() -> None:
    """A cache of fitted models needs it, quantiles or not."""
    quantiles = LinearCost(residual_quantiles={"0.5": 3})
    assert {LinearCost(): 1, quantiles: 2}[LinearCost()] == 1
    assert quantiles != LinearCost()
