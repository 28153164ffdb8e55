"""Arrival processes against their theory, by intervals narrow enough that a bias of 3 % fails."""

import numpy as np
import pytest
from scipy import stats

from traces import arrivals
from traces.schema import IntArray, TraceError

RUNS = 40
"""Independent runs behind each interval."""


def runs(draw) -> list[IntArray]:
    seeds = np.random.SeedSequence(20).spawn(RUNS)
    return [draw(np.random.default_rng(s)) for s in seeds]


def assert_mean(values: list[float], theory: float, narrow: float = 0.012) -> None:
    """The 99.9 % interval of the mean has the theory in it, and is too narrow to reach it from a bias of 3 %."""
    half = stats.t.ppf(0.9995, len(values) - 1) * stats.sem(values)
    assert half < narrow * theory
    assert abs(np.mean(values) - theory) <= half


def gaps_s(times: IntArray) -> np.ndarray:
    return np.diff(np.concatenate([[0], times])) / 1e9


def test_poisson_has_its_rate_and_exponential_gaps() -> None:
    drawn = runs(lambda rng: arrivals.poisson(5_000, 80.0, rng))
    assert_mean([gaps_s(t).mean() for t in drawn], 1 / 80)
    assert_mean([gaps_s(t).var(ddof=1) for t in drawn], 1 / 80**2, 0.03)
    assert stats.kstest(np.concatenate([gaps_s(t) for t in drawn]), stats.expon(scale=1 / 80).cdf).pvalue > 0.001


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_gamma_has_its_rate_and_variation(burstiness: float) -> None:
    drawn = runs(lambda rng: arrivals.gamma(40_000, 80.0, burstiness, rng))
    assert_mean([gaps_s(t).mean() for t in drawn], 1 / 80)
    # vLLM's burstiness is the shape: squared coefficient of variation 1 / burstiness.
    assert_mean([gaps_s(t).var(ddof=1) * 80**2 for t in drawn], 1 / burstiness, 0.015)
    law = stats.gamma(burstiness, scale=1 / (80 * burstiness))
    gaps = np.concatenate([gaps_s(t) for t in drawn])
    for share in (0.1, 0.25, 0.5, 0.75, 0.9):
        # Rounding to a nanosecond moves no gap that is this long across a quantile.
        assert law.ppf(share) > 1e-6
        assert stats.binomtest(int(np.sum(gaps <= law.ppf(share))), len(gaps), share).pvalue > 1e-4


HIGH, LOW, DWELL = 105.0, 35.0, 2.0
HORIZON = 2_000


@pytest.fixture(scope="module")
def bursts() -> list[IntArray]:
    """Two-state arrivals of a fixed time, for counts without the bias of a fixed number."""
    drawn = runs(lambda rng: arrivals.two_state(170_000, HIGH, LOW, DWELL, rng))
    assert min(t[-1] for t in drawn) > HORIZON * 10**9
    return [t[t < HORIZON * 10**9] for t in drawn]


def test_two_state_has_the_mean_of_its_rates(bursts: list[IntArray]) -> None:
    assert_mean([len(t) / HORIZON for t in bursts], (HIGH + LOW) / 2)


def dispersion(times: IntArray, window: float) -> float:
    """Variance over mean of the counts in windows; 1 for Poisson arrivals."""
    counts = np.histogram(times / 1e9, bins=np.arange(0, HORIZON + window / 2, window))[0]
    return float(counts.var(ddof=1) / counts.mean())


@pytest.mark.parametrize("window", [0.5, 2.0])
def test_two_state_counts_are_as_dispersed_as_a_modulated_poisson_process(
    bursts: list[IntArray], window: float
) -> None:
    # The rate is m ± s with correlation exp(-2t/dwell): Var N(w) = m w + 2 s² ∫ (w − u) exp(−a u) du, a = 2/dwell.
    mean, swing, a = (HIGH + LOW) / 2, (HIGH - LOW) / 2, 2 / DWELL
    integral = window / a - (1 - np.exp(-a * window)) / a**2
    theory = 1 + 2 * swing**2 * integral / (mean * window)
    assert theory > 7
    assert_mean([dispersion(t, window) for t in bursts], theory, 0.03)


def test_poisson_counts_are_not_dispersed() -> None:
    drawn = runs(lambda rng: arrivals.poisson(160_000, 70.0, rng))
    assert_mean([dispersion(t[t < HORIZON * 10**9], 2.0) for t in drawn], 1.0, 0.03)


def test_two_state_starts_in_either_state_equally_often() -> None:
    # Where the rates are vastly different, an early first arrival means the high state, from the start or by then.
    early = [
        arrivals.two_state(1, 1e6, 1e-6, 1.0, np.random.default_rng(s))[0] < 10**8
        for s in np.random.SeedSequence(7).spawn(4_000)
    ]
    assert stats.binomtest(sum(early), len(early), 0.5 + 0.5 * (1 - np.exp(-0.1))).pvalue > 0.001


@pytest.mark.parametrize("n", [0, 1, 100])
def test_all_at_once_and_replayed(n: int) -> None:
    assert arrivals.all_at_once(n).tolist() == [0] * n
    times = np.arange(100, dtype=np.int64) * 7
    assert arrivals.replayed(n, times).tolist() == times[:n].tolist()
    with pytest.raises(TraceError, match=r"there are 100 arrival times to replay for 101 requests"):
        arrivals.replayed(101, times)


@pytest.mark.parametrize("n", [0, 1, 1000])
def test_processes_give_sorted_integers(n: int) -> None:
    rng = np.random.default_rng(1)
    for times in (arrivals.poisson(n, 5, rng), arrivals.gamma(n, 5, 0.1, rng), arrivals.two_state(n, 9, 1, 0.1, rng)):
        assert times.dtype == np.int64
        assert len(times) == n
        assert np.all(np.diff(times) >= 0)
        assert np.all(times >= 0)


@pytest.mark.parametrize("rate", [0.0, -1.0, float("nan"), float("inf")])
def test_rates_are_positive_numbers(rate: float) -> None:
    rng = np.random.default_rng(0)
    with pytest.raises(TraceError, match=r"^rate must be a positive number of requests per second, not"):
        arrivals.poisson(3, rate, rng)
    with pytest.raises(TraceError, match=r"^rate must be a positive number"):
        arrivals.gamma(3, rate, 1.0, rng)
    with pytest.raises(TraceError, match=r"^burstiness must be a positive number, not"):
        arrivals.gamma(3, 1.0, rate, rng)
    with pytest.raises(TraceError, match=r"^the high rate must be"):
        arrivals.two_state(3, rate, 1.0, 1.0, rng)
    with pytest.raises(TraceError, match=r"^the low rate must be"):
        arrivals.two_state(3, 1.0, rate, 1.0, rng)
    with pytest.raises(TraceError, match=r"^the mean dwell must be a positive number of seconds"):
        arrivals.two_state(3, 1.0, 1.0, rate, rng)


def test_a_rate_that_64_bits_cannot_hold_is_refused() -> None:
    with pytest.raises(TraceError, match="the rate is so low that arrivals come later than 64 bits"):
        arrivals.poisson(100, 1e-9, np.random.default_rng(0))
