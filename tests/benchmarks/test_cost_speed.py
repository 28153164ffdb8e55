"""Compiled cost models in the engine's loop; ``make bench`` prints what a prediction takes."""

import time

import numpy as np
import pytest

from costmodels.boosted_fit import BoostedEstimator
from costmodels.calibrated import CalibratedCost
from costmodels.linear_fit import LinearEstimator
from costmodels.nnls_fit import NnlsEstimator
from costmodels.table_fit import TableEstimator
from tests.benchmarks.bare import Bench
from tests.costmodels.made_profiles import made

pytestmark = pytest.mark.benchmarks

MOST_US = {"linear": 2.0, "nnls": 2.0, "table": 2.0, "boosted": 20.0}
ESTIMATORS = {
    "linear": LinearEstimator(),
    "nnls": NnlsEstimator(),
    "table": TableEstimator(),
    "boosted": BoostedEstimator(),
}
ROUNDS = 400


@pytest.mark.parametrize("name", MOST_US)
def test_a_prediction(name: str, bench: Bench) -> None:
    """The best of many short rounds over mixed steps that lie between the knots, where tables have most to do."""
    steps, ns, _ = made(noise=0.1, repeats=3)
    fitted = ESTIMATORS[name].fit(steps, ns)
    model = fitted.compile(name)
    ranged = CalibratedCost(model, fitted.within_)
    rng = np.random.default_rng(0)
    asked = [
        (n, n * m, m, 1, c, c * m + c * (c + 1) // 2)
        for n, m, c in zip(
            rng.integers(1, 64, 60).tolist(),
            rng.integers(1, 4000, 60).tolist(),
            rng.integers(1, 2000, 60).tolist(),
            strict=True,
        )
    ]

    def best(call: object) -> float:
        times = []
        for _ in range(ROUNDS):
            start = time.perf_counter()
            for step in asked:
                call(*step)  # type: ignore[operator]
            times.append(time.perf_counter() - start)
        return min(times) / len(asked) * 1e6

    us, with_range = best(model.step_ns), best(ranged.step_ns)
    chunk = best(lambda n, total, longest, *_: model.max_chunk(n, total, longest, 100, 4096, 30_000_000))
    bench(
        f"a prediction by {name}",
        f"{us:.2f} µs, in its range {with_range:.2f}, largest chunk {chunk:.1f}",
        f"<= {MOST_US[name]:g}",
    )
    assert us <= MOST_US[name]
