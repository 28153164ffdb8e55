"""The speed of runs with KV memory; ``make bench`` prints the ratios."""

import statistics

import pytest

from experiments.prefillonly.systems import SETUPS, WORKLOADS, deploy
from tests.benchmarks.bare import Bench, bare_timeouts, seconds
from traces.synthetic import generate

pytestmark = pytest.mark.benchmarks


@pytest.mark.parametrize("system", ["paged", "chunked", "pipeline", "tensor", "prefillonly"])
def test_post_recommendation(system: str, bench: Bench) -> None:
    """1,000 requests of about 14,150 tokens, cache on: less time than 3 million bare timeouts for each system."""
    trace = generate("post-recommendation", 0, rate=10.0)
    deployment = deploy(SETUPS["l4"], system, WORKLOADS["post-recommendation"])
    timeouts = 200_000
    pairs = [
        seconds(lambda: deployment.run(trace).requests) / seconds(lambda: bare_timeouts(timeouts)) for _ in range(5)
    ]
    millions = statistics.median(pairs) * timeouts / 1e6
    bench(f"post recommendation, {system}", f"{millions:.2f} million bare timeouts", "< 3")
    assert millions < 3
