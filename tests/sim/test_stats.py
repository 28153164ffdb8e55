"""Intervals and comparisons against closed forms, scipy and simulated coverage."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from scipy import stats as scipy_stats

from sim.stats import (
    Interval,
    bootstrap_interval,
    holm,
    jain,
    p_value,
    paired,
    percentiles,
    pooled_ratio,
    ranking,
    reproduction_interval,
    t_interval,
    weighted_percentile,
)
from tests.seeded import Maker, cases, either, pick, whole

NOTHING = Interval(None, None, None)


def value(rng: random.Random) -> float:
    """Make a value of any size, whole ones and ends among them."""
    size = 10.0 ** rng.randint(-3, 6)
    any_of_it = round(rng.uniform(-size, size), 3)
    return rng.choice([0.0, float(rng.randint(-5, 5)), size, -size, any_of_it, any_of_it])


def listed(maker: Maker, low: int, high: int) -> Maker:
    """Make a list, short ones as often as long ones, and some of few different values."""

    def make(rng: random.Random) -> list:
        n = rng.randint(low, rng.choice([min(high, low + 2), high]))
        made = [maker(rng) for _ in range(n)]
        return rng.choices(made[:2], k=n) if n and rng.random() < 0.2 else made

    return make


def binomial_bound(p: float, n: int) -> float:
    """Four standard errors of a share: exceeded once in 16,000 draws of the seed, and the seeds here are fixed."""
    return 4 * math.sqrt(p * (1 - p) / n)


def test_t_interval_of_one_two_three() -> None:
    """Mean 2, s = 1; with two degrees of freedom t(p) has the closed form (2p − 1) √(2 / (4p (1 − p)))."""
    t = 0.95 * math.sqrt(2 / (4 * 0.975 * 0.025))
    mean, lo, hi = t_interval([1, 2, 3])
    assert mean == 2
    assert (lo, hi) == pytest.approx((2 - t / math.sqrt(3), 2 + t / math.sqrt(3)), rel=1e-12)


@cases(100, listed(value, 2, 30), pick(0.5, 0.9, 0.95, 0.99))
def test_t_interval_equals_scipy_s(sample: list[float], confidence: float) -> None:
    if min(sample) == max(sample):
        return
    expected = scipy_stats.t.interval(confidence, len(sample) - 1, np.mean(sample), scipy_stats.sem(sample))
    assert t_interval(sample, confidence)[1:] == pytest.approx(expected, rel=1e-9, abs=1e-9)


@cases(100, value, whole(2, 30))
def test_equal_values_have_an_interval_of_no_width(value: float, n: int) -> None:
    assert t_interval([value] * n) == (value, value, value)
    assert bootstrap_interval([value] * n) == (pytest.approx(value), pytest.approx(value), pytest.approx(value))
    assert paired([value] * n, [value] * n) == ((0, 0, 0), None, False)
    assert paired([value + 1] * n, [value] * n).significant
    assert p_value([value + 1] * n, [value] * n) == 0


def test_too_few_values_have_no_interval() -> None:
    for interval in (t_interval, reproduction_interval, bootstrap_interval):
        assert interval([]) == NOTHING
        assert interval([None]) == NOTHING
        assert interval([3.5]) == (3.5, None, None)
        assert interval([None, 3.5, None]) == (3.5, None, None)
    assert paired([1], [2]) == ((-1, None, None), None, False)
    assert paired([], []) == (NOTHING, None, False)
    assert p_value([1], [2]) == 1


def test_seeds_without_a_value_are_left_out() -> None:
    assert t_interval([1, None, 2, 4]) == t_interval([1, 2, 4])
    assert paired([1, None, 2, 4], [5, 6, None, 9]) == paired([1, 4], [5, 9])
    assert bootstrap_interval([1, None, 2, 4]) == bootstrap_interval([1, 2, 4])


@pytest.mark.parametrize("confidence", [0, 1, -0.5, 95, math.nan])
def test_a_confidence_lies_between_zero_and_one(confidence: float) -> None:
    for interval in (t_interval, reproduction_interval):
        with pytest.raises(ValueError, match="a confidence lies between 0 and 1"):
            interval([1, 2], confidence=confidence)
    with pytest.raises(ValueError, match="a confidence lies between 0 and 1"):
        bootstrap_interval([1, 2], confidence=confidence)
    with pytest.raises(ValueError, match="a confidence lies between 0 and 1"):
        ranking({"a": [1, 2]}, confidence=confidence)


def test_t_interval_covers_as_often_as_it_says() -> None:
    rng = np.random.default_rng(20)
    runs = 4000
    for confidence in (0.5, 0.95):
        intervals = [t_interval(sample, confidence) for sample in rng.normal(7, 3, (runs, 5)).tolist()]
        share = np.mean([i.lo <= 7 <= i.hi for i in intervals])  # type: ignore[operator]
        assert abs(share - confidence) <= binomial_bound(confidence, runs)


def test_reproduction_interval_covers_another_study_s_mean() -> None:
    """The mean of 5 seeds lies in the interval of our 20 as often as it says, if both draw from one distribution."""
    rng = np.random.default_rng(21)
    runs = 4000
    paper = rng.normal(7, 3, (runs, 5)).mean(axis=1)
    intervals = [reproduction_interval(sample) for sample in rng.normal(7, 3, (runs, 20)).tolist()]
    share = np.mean([i.lo <= p <= i.hi for i, p in zip(intervals, paper, strict=True)])  # type: ignore[operator]
    assert abs(share - 0.95) <= binomial_bound(0.95, runs)


def test_reproduction_interval_is_t_s_root() -> None:
    """t(0.975; 19) = 2.093024; s of 0 to 19 is √35."""
    mean, _, hi = reproduction_interval(range(20), 5)
    assert mean == 9.5
    assert hi == pytest.approx(9.5 + 2.0930240544 * math.sqrt(35) * math.sqrt(1 / 5 + 1 / 20), rel=1e-9)
    with pytest.raises(ValueError, match="at least 1 seed, not 0"):
        reproduction_interval([1, 2], paper_seeds=0)


@cases(120, listed(lambda rng: (value(rng), value(rng)), 2, 20))
def test_paired_equals_scipy_s_t_test(pairs: list[tuple[float, float]]) -> None:
    a, b = (list(column) for column in zip(*pairs, strict=True))
    differences = np.subtract(a, b)
    if np.std(differences) <= 1e-9 * (1 + np.abs(differences).max()):
        return  # a spread that is rounding error is no spread; scipy warns there
    expected = scipy_stats.ttest_rel(a, b)
    result = paired(a, b)
    assert p_value(a, b) == pytest.approx(expected.pvalue, rel=1e-6, abs=1e-12)
    assert result.difference[1:] == pytest.approx(tuple(expected.confidence_interval()), rel=1e-6, abs=1e-6)
    if abs(expected.pvalue - 0.05) > 1e-9:
        assert result.significant == (expected.pvalue < 0.05)
    mirrored = paired(b, a).difference
    assert mirrored == pytest.approx((-result.difference.mean, -result.difference.hi, -result.difference.lo))  # type: ignore[operator]


def test_common_random_numbers_reduce_variance_as_theory_says() -> None:
    """With correlation r and equal variances, var a + var b is 1/(1 − r) times var(a − b)."""
    rng = np.random.default_rng(3)
    common, x, y = rng.standard_normal((3, 200_000))
    r = 0.9
    a, b = (math.sqrt(r) * common + math.sqrt(1 - r) * own for own in (x, y))
    reduction = paired(a.tolist(), b.tolist()).variance_reduction
    assert reduction == pytest.approx(1 / (1 - r), rel=0.02)


def test_pairs_must_be_of_the_same_seeds() -> None:
    with pytest.raises(ValueError, match="same seeds on both sides, not 2 and 3"):
        paired([1, 2], [1, 2, 3])


def test_holm_by_hand() -> None:
    """Sorted 0.005, 0.01, 0.03, 0.04 become 4·0.005, 3·0.01, 2·0.03, and 0.06 again, for it may not fall."""
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []


def hypotheses(rng: random.Random) -> tuple[list[float], float]:
    """Make p-values, on all sides of the level and of its parts, and the level."""
    alpha = rng.choice([0.001, 0.05, 0.5, rng.uniform(0.001, 0.5)])

    def p(rng: random.Random) -> float:
        return rng.choice([0.0, 1.0, alpha / rng.randint(1, 12), rng.random() * alpha, rng.random()])

    return listed(p, 1, 12)(rng), alpha


@cases(150, hypotheses)
def test_holm_rejects_what_the_step_down_rule_does(drawn: tuple[list[float], float]) -> None:
    p, alpha = drawn
    adjusted = holm(p)
    rejected = set()
    for rank, i in enumerate(sorted(range(len(p)), key=lambda i: p[i])):
        if p[i] * (len(p) - rank) > alpha:
            break
        rejected.add(i)
    assert {i for i, q in enumerate(adjusted) if q <= alpha} == rejected


def test_ranking_separates_what_differs_and_ties_what_does_not() -> None:
    rng = np.random.default_rng(0)
    common, noise = rng.normal(0, 5, 20), rng.normal(0, 0.1, (4, 20))
    per_seed = {
        "worst": (common + noise[0]).tolist(),
        "best": (common + noise[1] + 9).tolist(),
        "middle": (common + noise[2] + 4).tolist(),
        "as good": (common + noise[3] + 4).tolist(),
        "never measured": [None] * 20,
    }
    groups = ranking(per_seed)
    assert [set(group) for group in groups] == [{"best"}, {"middle", "as good"}, {"worst"}]
    assert [set(group) for group in ranking(per_seed, higher_is_better=False)] == [set(g) for g in reversed(groups)]
    assert ranking({}) == []
    assert ranking({"a": [1.0], "b": [2.0]}) == [["b", "a"]]


def test_a_chain_of_ties_is_one_group() -> None:
    """First and last differ, but the one between is tied with both, so no order of groups is supported."""
    noise = np.array([1.0, -1.0] * 10)
    per_seed = {"a": np.full(20, 0.9), "b": 0.45 + 1.2 * noise, "c": 0.1 * np.roll(noise, 1)}
    lists = {name: column.tolist() for name, column in per_seed.items()}
    assert p_value(lists["a"], lists["c"]) < 0.001
    assert ranking(lists) == [["a", "b", "c"]]


def test_a_noisy_best_policy_is_tied_with_all_that_differ_below_it() -> None:
    noise = np.array([1.0, -1.0] * 10)
    per_seed = {
        "noisy": (9 + 20 * noise).tolist(),
        **{name: (level + 0.1 * np.roll(noise, level)).tolist() for level, name in ((7, "b"), (6, "c"), (4, "d"))},
    }
    assert ranking({name: per_seed[name] for name in "bcd"}) == [["b"], ["c"], ["d"]]
    assert ranking(per_seed) == [["noisy", "b", "c", "d"]]


@cases(100, whole(0, 2**32), whole(1, 6), pick(False, True))
def test_groups_end_only_where_all_pairs_across_differ(seed: int, n: int, higher: bool) -> None:
    rng = np.random.default_rng(seed)
    noise = rng.choice([0.1, 1, 5], n)
    per_seed = {f"p{i}": (rng.integers(0, 4) + noise[i] * rng.standard_normal(8)).tolist() for i in range(n)}
    groups = ranking(per_seed, higher)
    order = [name for group in groups for name in group]
    means = [float(np.mean(per_seed[name])) for name in order]
    assert sorted(order) == sorted(per_seed)
    assert means == sorted(means, reverse=higher)
    pairs = [(i, j) for i in range(n) for j in range(i + 1, n)]
    adjusted = dict(zip(pairs, holm([p_value(per_seed[order[i]], per_seed[order[j]]) for i, j in pairs]), strict=True))
    ends = set(np.cumsum([len(group) for group in groups]).tolist())
    for cut in range(1, n):
        across = all(adjusted[i, j] < 0.05 for i in range(cut) for j in range(cut, n))
        assert across == (cut in ends)


def test_rankings_of_equal_policies_are_printed_no_more_often_than_the_level() -> None:
    rng = np.random.default_rng(9)
    runs = 1500
    alarms = 0
    for _ in range(runs):
        common = rng.normal(0, 3, 10)
        alarms += len(ranking({f"p{i}": (common + rng.standard_normal(10)).tolist() for i in range(4)})) > 1
    assert alarms / runs <= 0.05 + binomial_bound(0.05, runs)


@cases(20, whole(0, 2**32), whole(5, 25))
def test_bootstrap_equals_scipy_s_bca(seed: int, n: int) -> None:
    sample = np.random.default_rng(seed).exponential(size=n)
    expected = scipy_stats.bootstrap(
        (sample,), np.mean, n_resamples=999, method="BCa", random_state=np.random.default_rng(4)
    ).confidence_interval
    result = bootstrap_interval(sample.tolist(), resamples=999, seed=4)
    assert result == (pytest.approx(sample.mean()), expected.low, expected.high)
    assert bootstrap_interval(sample.tolist(), resamples=999, seed=4) == result


def test_bootstrap_draws_seeds_and_not_requests() -> None:
    """A thousand times the requests with the same share in every seed are not a bit more certain."""
    met = np.array([90, 70, 85, 99, 60, 88, 92, 75])
    counts = np.column_stack([met, np.full(8, 100)])
    few, many = (bootstrap_interval(c, pooled_ratio, resamples=999) for c in (counts, 1000 * counts))
    assert few == pytest.approx(many, rel=1e-12)
    assert few.mean == pytest.approx(met.sum() / 800)
    assert few.lo < few.mean < few.hi  # type: ignore[operator]


def test_bootstrap_of_a_ratio_pools_the_counts() -> None:
    counts = [[1, 10], [90, 100], [45, 50]]
    assert bootstrap_interval(counts, pooled_ratio, resamples=99).mean == pytest.approx(136 / 160)


@pytest.mark.parametrize("sample", [[0, 0, 0, 0, 1], [1, 2], [1, 1, 1, 1, 1, 1, 1, 1, 1, 1 + 1e-15], [0.0, 1e-300]])
def test_bootstrap_of_degenerate_samples_gives_ordered_ends_without_a_warning(sample: list[float]) -> None:
    mean, lo, hi = bootstrap_interval(sample, resamples=499)
    assert min(sample) <= lo <= mean <= hi <= max(sample)  # type: ignore[operator]


def test_bootstrap_of_a_ratio_over_nothing_is_nothing() -> None:
    assert bootstrap_interval([[0, 0], [0, 0]], pooled_ratio) == NOTHING


@cases(100, listed(lambda rng: abs(value(rng)), 1, 30), pick(0.01, 0.3, 7.0, 100.0))
def test_jain_lies_between_one_over_n_and_one_and_ignores_units(sample: list[float], unit: float) -> None:
    if max(sample) <= 1e-3:
        return
    index = jain(sample)
    assert index is not None
    assert 1 / len(sample) - 1e-12 <= index <= 1 + 1e-12
    assert jain([x * unit for x in sample]) == pytest.approx(index)


def test_jain_of_known_shares() -> None:
    """Of n users k with equal shares and the others with none: k / n (Jain 1984)."""
    assert jain([5, 5, 5]) == 1
    assert jain([7, 7, 0, 0, 0]) == pytest.approx(0.4)
    assert jain([0, 0]) is None
    assert jain([]) is None


def integers(seed: random.Random) -> np.ndarray:
    rng = np.random.default_rng(seed.getrandbits(64))
    return rng.integers(0, seed.choice([1, 3, 2**20, 2**40]), seed.choice([1, 2, 3, seed.randint(1, 200)]))


def floats(seed: random.Random) -> np.ndarray:
    rng = np.random.default_rng(seed.getrandbits(64))
    drawn = rng.uniform(-1, 1, seed.choice([1, 2, 3, seed.randint(1, 200)])) * 10.0 ** seed.randint(-300, 9)
    return drawn if seed.random() < 0.5 else np.where(rng.random(len(drawn)) < 0.3, 0, rng.choice(drawn, len(drawn)))


numbers = either(integers, floats)
qs = pick(0, 0.1, 25, 50, 90, 99, 99.9, 100)


@cases(150, numbers, listed(qs, 1, 4))
def test_percentiles_are_numpy_s_to_the_last_bit(sample: np.ndarray, wanted: list[float]) -> None:
    assert percentiles(sample, wanted) == np.percentile(sample, wanted).tolist()


@cases(150, numbers, qs, whole(0, 2**32), pick(False, True))
def test_weighted_percentile_is_that_of_the_expanded_sample(
    sample: np.ndarray, q: float, seed: int, ones: bool
) -> None:
    weights = np.random.default_rng(seed).integers(0, 2 if ones else 30, len(sample))
    expanded = np.repeat(sample, weights)
    expected = float(np.percentile(expanded, q)) if len(expanded) else None
    assert weighted_percentile(sample, weights, q) == expected
