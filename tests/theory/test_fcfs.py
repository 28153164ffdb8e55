"""First come, first served: M/M/1, M/D/1 and M/G/1 (T1 to T4 of the verification plan)."""

from __future__ import annotations

from math import exp, factorial, floor

import numpy as np

from tests.theory.queueing import TOKENS, Queue, assert_matches


def exponential(rng: np.random.Generator, n: int) -> np.ndarray:
    """Return geometric token counts with a mean of one unit: the exponential distribution in whole tokens."""
    return rng.geometric(1 / TOKENS, n) / TOKENS


def constant(rng: np.random.Generator, n: int) -> np.ndarray:
    """Return sizes of one unit."""
    return np.ones(n)


def test_mm1_mean_and_distribution_of_the_sojourn() -> None:
    """T1: E[T] = 1/(μ−λ), P(T > t) = exp(−(μ−λ)t)."""
    load, times = 0.5, (0.5, 1.0, 2.0)
    assert_matches(
        Queue("fcfs", load, exponential, 6000),
        20,
        lambda c: [c.sojourn.mean(), *((c.sojourn > t).mean() for t in times)],
        [1 / (1 - load), *(exp((load - 1) * t) for t in times)],
    )


def md1_wait_at_most(t: float, load: float) -> float:
    """Return P(W ≤ t) of M/D/1 with service of one unit (Erlang)."""
    terms = ((load * (k - t)) ** k / factorial(k) * exp(-load * (k - t)) for k in range(floor(t) + 1))
    return (1 - load) * sum(terms)


def test_md1_mean_and_distribution_of_the_wait() -> None:
    """T2: E[W] = ρD/(2(1−ρ)). T3: Erlang's P(W ≤ t), also at 0 and between multiples of the service."""
    load, times = 0.5, (0.0, 0.5, 1.0, 2.5)
    assert_matches(
        Queue("fcfs", load, constant, 6000),
        40,
        lambda c: [c.wait.mean(), *((c.wait <= t).mean() for t in times)],
        [load / (2 * (1 - load)), *(md1_wait_at_most(t, load) for t in times)],
    )


def test_mg1_first_and_second_moment_of_the_wait() -> None:
    """T4, Pollaczek–Khinchine: E[W] = λE[S²]/(2(1−ρ)), E[W²] = 2E[W]² + λE[S³]/(3(1−ρ))."""
    load, sizes = 0.5, np.array([0.5, 1.5])
    first = load * (sizes**2).mean() / (2 * (1 - load))
    assert_matches(
        Queue("fcfs", load, lambda rng, n: rng.choice(sizes, n), 6000),
        20,
        lambda c: [c.wait.mean(), (c.wait**2).mean()],
        [first, 2 * first**2 + load * (sizes**3).mean() / (3 * (1 - load))],
    )
