"""JCT estimators: fits recover what is there, integers order alike everywhere, proxies are as good as they are."""

from __future__ import annotations

import math
import random
import re
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from scipy.stats import kendalltau, spearmanr

from costmodels import CostModel, CostModelError, LinearCost, load_cost_model
from costmodels.jct import ESTIMATORS, STEP, UNIT, FittedJct, jct_model, ns_per_token, profile, request_ns
from costmodels.prefill import PrefillCost
from costmodels.proxies import _disorder, _spread, correlation_table, ordering_error, trusted_length
from tests.seeded import cases, pick, wide

A100 = "prefill:llm=qwen-32b-fp8,gpu=a100-40"
REAL = load_cost_model(A100)
LINEAR = LinearCost()
SQUARE = PrefillCost("square", token_fs=10 * 10**6, pair_fs=2 * 10**6, host_fs=7 * 10**6)
"""7 + 10 c + 2 pairs nanoseconds; 2 pairs of a prompt is n² - k² + (n - k)."""

fitted = cache(jct_model)
"""A fit does not depend on the request that is asked about."""


def requests(rng: random.Random) -> tuple[int, int]:
    """Make a prompt's length and how much of it is cached, often nothing or all but one token."""
    n_input = wide(200_000, 1)(rng)
    return n_input, rng.choice([0, n_input - 1, *(rng.randint(0, n_input - 1) for _ in range(4))])


def test_the_profile_covers_every_thousand_with_something_left_to_compute() -> None:
    assert list(profile(4_500)) == [(n, k) for n in (1000, 2000, 3000, 4000) for k in range(0, n, 1000)]
    assert {n for n, _ in profile(10)} == {2, 4, 6, 8, 10}
    assert STEP == 1_000


@cases(100, requests)
def test_a_request_is_one_step_of_what_is_not_cached(request: tuple[int, int]) -> None:
    n, k = request
    assert request_ns(SQUARE, n, k) == 7 + 10 * (n - k) + (n * n - k * k + n - k)
    assert request_ns(SQUARE, n, n) == request_ns(SQUARE, n, n - 1)


@cases(100, requests, pick(8, 500, 20_000))
def test_fits_of_a_linear_cost_are_exact(request: tuple[int, int], longest: int) -> None:
    n, k = request
    true = request_ns(LINEAR, n, k)
    for name in ("linear", "attention", "perfect"):
        assert fitted(name, LINEAR, longest).ns(n, k) == true
    assert fitted("tokens", LINEAR, longest).ns(n, k) == 6_000 * (n - k) == true - 750_000


@cases(100, requests)
def test_the_attention_fit_of_a_quadratic_cost_is_exact(request: tuple[int, int]) -> None:
    fit = fitted("attention", SQUARE, 20_000)
    assert fit == FittedJct("attention", 7 * UNIT, 11 * UNIT, -11 * UNIT, UNIT)
    assert fit.ns(*request) == request_ns(SQUARE, *request)


def fine_ns(rng: random.Random) -> int:
    """Make a time in parts of a nanosecond, often at or beside a half."""
    fine = wide(10**15)(rng) * rng.choice([-1, 1])
    return rng.choice([fine, fine // UNIT * UNIT + UNIT // 2 + rng.randint(-1, 1)])


@cases(150, fine_ns)
def test_estimates_are_rounded_half_up(fine: int) -> None:
    assert FittedJct("drawn", constant=fine).ns(0, 0) == math.floor(Fraction(fine, UNIT) + Fraction(1, 2))


@pytest.mark.parametrize("name", ["linear", "attention"])
def test_a_fit_is_numpy_s_least_squares(name: str) -> None:
    cost = REAL
    fit = jct_model(name, cost, 30_000)
    assert isinstance(fit, FittedJct)
    pairs = np.array(list(profile(30_000)))
    n, k = pairs.T.astype(float)
    columns = [np.ones_like(n), n, k] + ([n * n - k * k] if name == "attention" else [])
    true = np.array([request_ns(cost, int(a), int(b)) for a, b in pairs], dtype=float)
    expected = np.linalg.lstsq(np.column_stack(columns), true, rcond=None)[0]
    found = np.array([fit.constant, fit.per_input, fit.per_cached, fit.per_square][: len(columns)]) / UNIT
    np.testing.assert_allclose(found, expected, rtol=1e-6)


@cases(120, requests, pick(*sorted(ESTIMATORS)), wide(1000))
def test_more_to_compute_never_takes_less(request: tuple[int, int], name: str, more: int) -> None:
    jct = fitted(name, REAL, 6_000)
    n, k = request
    assert type(jct.ns(n, k)) is int
    assert jct.ns(n, max(0, k - more)) >= jct.ns(n, k)
    assert jct.ns(n + more, k) >= jct.ns(n, k)


def test_a_token_s_price_is_the_slope() -> None:
    assert ns_per_token(LINEAR) == 6_000
    assert ns_per_token(LinearCost(per_token=0)) == 1
    # 20,000 tokens of a quadratic cost: between the first token's price and the last's.
    assert 11 < ns_per_token(SQUARE) < 11 + 2 * 20_000


@pytest.mark.parametrize(
    ("name", "longest", "step", "message"),
    [
        ("token", 1_000, 1_000, "unknown JCT estimator 'token'; did you mean tokens? (estimators: tokens, linear"),
        ("linear", 3, 1_000, "longest is 3; it must be a whole number, at least 4"),
        ("linear", 8, 0, "step is 0; it must be a whole number, at least 1"),
        ("attention", 8.0, 1_000, "longest is 8.0; it must be a whole number"),
    ],
)
def test_a_mistake_is_one_sentence(name: str, longest: int, step: int, message: str) -> None:
    with pytest.raises(CostModelError, match=re.escape(message)):
        jct_model(name, LINEAR, longest, step)


def times(rng: random.Random) -> list[tuple[int, int]]:
    """Make pairs of few different numbers."""
    guessed, true = rng.choice([0, 1, 6, 6]), rng.choice([0, 1, 6, 6])
    return [(rng.randint(0, guessed), rng.randint(0, true)) for _ in range(rng.randint(2, 12))]


@cases(100, times)
def test_disorder_counts_pairs_and_ties_half(points: list[tuple[int, int]]) -> None:
    guessed, true = np.array(points, dtype=np.int64).T
    wrong = [0.5 if g == h else float((g < h) != (t < u)) for (g, t), (h, u) in combinations(points, 2) if t != u]
    assert _disorder(guessed, true) == pytest.approx(np.mean(wrong) if wrong else 0)


def test_disorder_without_ties_is_kendall_s() -> None:
    rng = np.random.default_rng(3)
    guessed, true = rng.permutation(200), rng.permutation(200)
    tau = kendalltau(guessed, true).statistic
    assert _disorder(guessed, true) == pytest.approx((1 - tau) / 2)


@cases(20, wide(200_000, 4))
def test_sampled_requests_are_spread_evenly(longest: int) -> None:
    n, k = np.array(list(_spread(longest))).T
    assert ((k >= 0) & (k < n) & (n <= longest) & (n >= min(1_000, longest // 2))).all()
    if longest > 20_000:
        # Uniform on the triangle: both coordinates' means at 2/3 and 1/3 of the longest.
        assert n.mean() / longest == pytest.approx(2 / 3, abs=0.02)
        assert k.mean() / longest == pytest.approx(1 / 3, abs=0.02)


def test_proxies_of_a_linear_cost_are_perfect() -> None:
    for row in correlation_table([LINEAR], lengths=(1_000, 20_000)):
        assert row["pearson"] == pytest.approx(1)
        assert row["spearman"] == pytest.approx(1)
        assert row["ordering_error"] == 0
    assert trusted_length(LINEAR, "tokens") is None


def test_proxies_of_a_real_model_fail_where_attention_outgrows_the_rest() -> None:
    cost = REAL
    rows = {(r["proxy"], r["longest"]): r for r in correlation_table([cost], lengths=(10_000, 87_000))}
    for longest in (10_000, 87_000):
        tokens, linear, attention = (rows[proxy, longest] for proxy in ("tokens", "linear", "attention"))
        assert tokens["ordering_error"] > linear["ordering_error"] > attention["ordering_error"]
        assert tokens["pearson"] < linear["pearson"] < attention["pearson"]
    assert rows["tokens", 10_000]["pearson"] > rows["tokens", 87_000]["pearson"]
    spread = list(_spread(87_000))
    true = [request_ns(cost, n, k) for n, k in spread]
    assert rows["tokens", 87_000]["spearman"] == pytest.approx(spearmanr([n - k for n, k in spread], true).statistic)


def test_the_trusted_length_is_where_the_error_passes() -> None:
    cost = REAL
    length = trusted_length(cost, "tokens")
    assert length is not None
    errors = [ordering_error(jct_model("tokens", cost, n), cost, n) for n in (length - 1_000, length)]
    assert errors[0] <= 0.05 < errors[1]
    assert trusted_length(cost, "tokens", most=length - 1_000) is None
    assert trusted_length(cost, "attention") is None


@dataclass(frozen=True)
class Quirky(CostModel):
    """Anybody's cost model."""

    def step_ns(self, n: int, total: int, longest: int, n_prefill: int, tokens: int, pairs: int) -> int:
        return 5 + tokens + pairs // 1000

    def to_dict(self) -> dict[str, Any]:
        return {"kind": "quirky"}


def test_any_cost_model_can_be_profiled() -> None:
    for name in ESTIMATORS:
        assert jct_model(name, Quirky(), 50).name == name
