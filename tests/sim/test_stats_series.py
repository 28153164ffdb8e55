"""Warm-up detection and batch means of one long run."""

from __future__ import annotations

import numpy as np
import pytest

from sim.stats import BatchMeans, Interval, Warmup, batch_means, mser5, t_interval, warmup_warning
from tests.seeded import cases, either, pick, whole


def slow_mser5(series: list[float]) -> Warmup:
    """The rule as it is written down (White 1997), in fractions of nothing but loops."""
    batches = [float(np.mean(series[i : i + 5])) for i in range(0, len(series) // 5 * 5, 5)]
    n = len(batches)
    errors = []
    for d in range(n // 2 + 1):
        kept = batches[d:]
        mean = sum(kept) / len(kept)
        errors.append(sum((y - mean) ** 2 for y in kept) / len(kept) ** 2)
    best = min(range(len(errors)), key=errors.__getitem__)
    return Warmup(None, False) if best == n // 2 else Warmup(5 * best, True)


@cases(150, whole(0, 2**32), whole(50, 400), pick(0, 1, 20), pick(0, 0.001, 0.05))
def test_mser5_equals_its_definition(seed: int, n: int, jump: float, drift: float) -> None:
    rng = np.random.default_rng(seed)
    series = rng.standard_normal(n) + drift * np.arange(n)
    series[: rng.integers(0, n)] += jump
    assert mser5(series) == slow_mser5(series.tolist())


def test_mser5_cuts_a_constructed_transient() -> None:
    """The first 200 of 2,000 observations are ten standard deviations off."""
    series = np.random.default_rng(1).standard_normal(2000)
    series[:200] += 10
    start, stationary = mser5(series)
    assert stationary
    assert start is not None
    assert 200 <= start <= 250


def test_mser5_flags_a_series_that_drifts_to_its_end() -> None:
    drift = np.linspace(0, 100, 1000) + np.random.default_rng(2).standard_normal(1000)
    assert mser5(drift) == Warmup(None, False)
    assert mser5(drift[::-1]) == Warmup(None, False)


@cases(
    100,
    either(pick(0.0, 1.0, 0.1, -1e9, 1e9, 1e-300), lambda rng: rng.uniform(-1, 1) * 10.0 ** rng.randint(-9, 9)),
    whole(50, 300),
)
def test_mser5_keeps_all_of_a_constant_series(value: float, n: int) -> None:
    assert mser5(np.full(n, value)) == Warmup(0, True)


def test_mser5_says_nothing_of_a_short_series() -> None:
    assert [mser5(np.arange(n)) for n in range(50)] == [Warmup(None, True)] * 50


def test_warmup_warning_tells_drift_long_warmup_and_neither_apart() -> None:
    noise = np.random.default_rng(3).integers(0, 1000, 1000)
    late = np.where(np.arange(1000) < 400, 50_000, 0) + noise
    drifting = {"ttft_ns": 100 * np.arange(1000) + noise}
    assert warmup_warning({"ttft_ns": noise}) is None
    assert "not stationary" in (warmup_warning(drifting) or "")
    warning = warmup_warning({"ttft_ns": late})
    assert warning is not None
    assert "first 400 of 1000 requests are warm-up" in warning
    # Requests without a first token have no TTFT and are no part of the series.
    assert warmup_warning({"ttft_ns": np.concatenate([np.full(400, -1), noise])}) is None
    assert warmup_warning({"ttft_ns": np.full(10, -1)}) is None


def test_batch_means_of_an_alternating_series() -> None:
    """Means ±1 in turn: Σ y² = 20 and Σ y y' = −19, so the lag-1 autocorrelation is −0.95."""
    series = np.repeat([1.0, -1.0] * 10, 7)
    interval, lag1 = batch_means(np.concatenate([[99, 99], series]))
    assert interval == t_interval([1.0, -1.0] * 10)
    assert lag1 == pytest.approx(-0.95)


def test_batch_means_tell_long_batches_from_short_ones() -> None:
    """An AR(1) series with coefficient 0.99 forgets within some hundred steps."""
    rng = np.random.default_rng(5)
    noise = rng.standard_normal(40_000)
    series = np.empty_like(noise)
    level = 0.0
    for i, e in enumerate(noise):
        series[i] = level = 0.99 * level + e
    assert not batch_means(series[:400]).independent
    assert batch_means(series).independent


def test_batch_means_cover_as_often_as_they_say() -> None:
    rng = np.random.default_rng(6)
    runs = 2000
    intervals = [batch_means(series).interval for series in rng.exponential(2.0, (runs, 400))]
    share = np.mean([i.lo <= 2.0 <= i.hi for i in intervals])  # type: ignore[operator]
    # Means of 20 exponentials are still a little skewed, which costs less than a point of coverage.
    assert abs(share - 0.95) <= 0.01 + 4 * np.sqrt(0.95 * 0.05 / runs)


def test_batch_means_of_too_little() -> None:
    assert batch_means([]) == BatchMeans(Interval(None, None, None), None)
    assert batch_means([1.0, 2.0]) == BatchMeans(Interval(1.5, None, None), None)
    assert batch_means(np.ones(100)) == BatchMeans(Interval(1.0, 1.0, 1.0), None)
    assert not batch_means(np.ones(100)).independent
    with pytest.raises(ValueError, match="at least 2 batches, not 1"):
        batch_means([1.0, 2.0], batches=1)
