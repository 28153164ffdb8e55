"""Margins from residuals: the coverage that is promised, the range that is warned of, and JSON."""

from __future__ import annotations

import json
import random
import re
import warnings
from dataclasses import replace
from fractions import Fraction
from math import ceil
from typing import Any

import numpy as np
import pytest

from costmodels import CostModel, CostModelError, LinearCost, with_margin
from costmodels.calibrated import CalibratedCost, RangeWarning, ResidualTable, WithResiduals
from costmodels.checks import check_cost_model
from costmodels.conformal import calibrate, conformal_share, residual_table, split_conformal
from costmodels.io import cost_model_from_dict
from costmodels.linear_fit import LinearEstimator
from costmodels.margin import WithMargin
from costmodels.nnls_fit import NnlsEstimator
from tests.costmodels.made_profiles import made
from tests.seeded import cases, pick

STEPS, NS, SHAPES = made(noise=0.1, repeats=8)


@pytest.mark.parametrize("coverage", [0.9, 0.99])
@pytest.mark.parametrize("estimator", [LinearEstimator(), NnlsEstimator()], ids=["poor", "good"])
def test_it_covers_what_it_says_however_good_the_model(estimator: Any, coverage: float) -> None:
    """The mean over 20 splits of the share of held-out rows that are covered, within three standard errors."""
    covered = []
    for seed in range(20):
        order = np.random.default_rng(seed).permutation(len(NS))
        seen, held = order[: 2 * len(order) // 3], order[2 * len(order) // 3 :]
        model, share = split_conformal(estimator, STEPS[seen], NS[seen], coverage, held_out=0.5, seed=seed)
        covered.append(np.mean(NS[held] <= model.predict(STEPS[held]) * (1 + float(share))))
    # Both the order statistic and the share of held-out rows vary; a third of the rows are in either.
    error = np.sqrt(2 * coverage * (1 - coverage) / (len(NS) / 3) / 20)
    assert abs(np.mean(covered) - coverage) < 3 * error


def shares(rng: random.Random) -> list[float]:
    """Make ratios of times to predictions, in some lists few different ones."""
    n = rng.choice([rng.randint(1, 20), rng.randint(1, 300)])
    made = [rng.choice([0.5, 1.0, 3.0, *[rng.uniform(0.5, 3)] * 9]) for _ in range(n)]
    return made if rng.random() < 0.7 else rng.choices(made[:3], k=n)


@cases(120, shares, pick(0.5, 0.9, 0.95, 0.99))
def test_the_share_is_an_order_statistic(ratios: list[float], coverage: float) -> None:
    observed = np.array(ratios)
    rank = ceil((len(ratios) + 1) * Fraction(repr(coverage)))
    if rank > len(ratios):
        with pytest.raises(CostModelError, match=f"{len(ratios)} rows are too few for a coverage of"):
            conformal_share(observed, np.ones(len(ratios)), coverage)
        return
    share = conformal_share(observed, np.ones(len(ratios)), coverage)
    assert np.count_nonzero(observed <= 1 + float(share) + 1e-12) >= rank
    assert share == 0 or np.count_nonzero(observed < 1 + float(share) - 2e-9) < rank


def test_groups_stay_together() -> None:
    """With whole shapes held out the margin pays for what the model does not know of other shapes."""
    steps, ns, shapes = made(repeats=8)
    _, by_row = split_conformal(LinearEstimator(), steps, ns, 0.9)
    _, by_shape = split_conformal(LinearEstimator(), steps, ns, 0.9, groups=shapes)
    assert by_row > 0
    assert by_shape != by_row


@pytest.mark.parametrize("coverage", [0, 1, -1, 1.5])
def test_a_coverage_is_a_share(coverage: float) -> None:
    with pytest.raises(CostModelError, match="it must be above 0 and below 1"):
        conformal_share(np.ones(9), np.ones(9), coverage)


def test_a_residual_table_follows_batch_and_chunk() -> None:
    """Noise that grows with the batch has a margin that does; each cell holds the quantile of its rows."""
    rng = np.random.default_rng(0)
    n, c = rng.choice([1, 8, 64], 30_000), rng.choice([0, 256, 1024], 30_000)
    observed = 1 + rng.exponential(0.001 * n)
    table = residual_table(n, c, observed, np.ones(len(n)), 0.99)
    over = observed > np.array([1 + table.ppm(int(a), int(b)) / 1e6 for a, b in zip(n, c, strict=True)])
    assert all(np.mean(over[n == k]) < 0.013 for k in (1, 8, 64))
    assert table.ppm(1, 0) * 5 < table.ppm(64, 0) <= table.ppm(10_000, 10_000)


TABLE = ResidualTable((1, 8), (0, 256), ((10_000, 20_000), (10_000, 500_000)))
FITTED = CalibratedCost(
    LinearCost(), (64, 10**5, 4096, 1, 2048, 10**7), (("0.99", TABLE),), (("0.99", Fraction(1, 8)),)
)


def test_margins_of_a_calibrated_model() -> None:
    step = (8, 80, 10, 1, 300, 300)
    t = LinearCost().step_ns(*step)
    assert FITTED.step_ns(*step) == t
    assert with_margin(FITTED, "p99").step_ns(*step) == t + ceil(t * Fraction(1, 2))
    assert with_margin(FITTED, "c99").step_ns(*step) == t + ceil(t * Fraction(1, 8))
    assert with_margin(WithMargin(FITTED, 5), "c99").step_ns(*step) == t + ceil(t * Fraction(1, 8)) + 5
    with pytest.raises(CostModelError, match=re.escape("no margin that covers 0.9 of the steps (calibrated: 0.99)")):
        with_margin(FITTED, "c90")
    with pytest.raises(CostModelError, match="cost model linear has no calibrated coverage; give the margin in ms"):
        with_margin(LinearCost(), "c99")
    with pytest.raises(CostModelError, match="a coverage lies between c0 and c100"):
        with_margin(FITTED, "c100")


@pytest.mark.parametrize(
    "model", [FITTED, with_margin(FITTED, "p99"), with_margin(FITTED, "c99")], ids=["fitted", "p99", "c99"]
)
def test_it_passes_the_checks_and_comes_back_from_json(model: CostModel) -> None:
    assert check_cost_model(model) == []
    assert cost_model_from_dict(json.loads(json.dumps(model.to_dict(), allow_nan=False))) == model


def test_outside_the_range_there_is_one_warning_that_names_it() -> None:
    model = replace(FITTED)
    inside = (64, 10**5, 4096, 1, 2048, 10**7)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.step_ns(*inside)
        model.max_chunk(3, 30, 10, 0, 2048, 10**9)
        model.decode_run_ns(64, 5000, 100, 3)
    with pytest.warns(RangeWarning, match=re.escape("with n_decode = 65 (at most 64), prefill_pairs = 10000001 (at")):
        model.step_ns(65, 10, 1, 1, 1, 10**7 + 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.step_ns(65, 10, 1, 1, 1, 1)
    for use in (
        lambda m: m.max_chunk(3, 30, 10, 0, 9000, 10**9),
        lambda m: m.decode_run_ns(60, 10**5 - 70, 4000, 3),
    ):
        with pytest.warns(RangeWarning, match="was fitted to smaller steps than one with"):
            use(replace(FITTED))


def test_calibrate_fits_all_and_knows_its_margins() -> None:
    model = calibrate(NnlsEstimator(), STEPS, NS, "toy", groups=SHAPES, source="made up")
    assert model.model == NnlsEstimator().fit(STEPS, NS).compile("toy", "made up")
    assert model.within == tuple(STEPS.max(axis=0).astype(int))
    assert [q for q, _ in model.residuals] == ["0.5", "0.9", "0.99", "0.999"]
    shares = [share for _, share in model.coverage]
    assert shares == sorted(shares)
    assert 0.15 < dict(model.coverage)["0.99"] < 0.4
    assert [c for c, _ in calibrate(NnlsEstimator(), *made()[:2], "x", groups=made()[2]).coverage] == [
        "0.9",
        "0.95",
        "0.99",
    ]
    with pytest.raises(CostModelError, match="all rows are of one group"):
        calibrate(NnlsEstimator(), STEPS, NS, "toy", groups=np.zeros(len(NS)))


GOOD = FITTED.to_dict()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"within": {"n_decode": 3}}, "within: decode_context is missing"),
        ({"within": dict.fromkeys(GOOD["within"], 1.5)}, "within must be six whole numbers"),
        ({"coverage": {"0.99": 0.5}}, 'coverage 0.99 is 0.5; it must be a fraction like "1/20"'),
        ({"coverage": {"0.99": "-1/2"}}, "the share that covers 0.99 is negative"),
        ({"residuals": {"0.99": 3}}, "residuals is a number; it must be an object"),
        ({"residuals": {"0.99": TABLE.to_dict() | {"shares_ppm": [[2, 1], [2, 1]]}}}, "shares_ppm fall along"),
        ({"residuals": {"0.99": TABLE.to_dict() | {"shares_ppm": [1]}}}, "shares_ppm must be an array of arrays"),
        ({"residuals": {"0.99": TABLE.to_dict() | {"batches": [8, 1]}}}, "batches must be whole numbers that rise"),
        ({"model": {"kind": "nnls"}}, "model: step_fs is missing"),
        ({"version": 3}, "it was written by a newer version"),
    ],
)
def test_a_model_that_makes_no_sense_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(CostModelError, match=re.escape(message)):
        cost_model_from_dict(GOOD | change)


def test_residuals_read_back() -> None:
    model = WithResiduals(LinearCost(), TABLE)
    assert cost_model_from_dict(model.to_dict()) == model
