"""The simulator against the real scheduler on a virtual clock: the same trace, the same machine, the same batches."""

from __future__ import annotations

import os
import statistics
import warnings
from importlib.util import find_spec

import pytest

from tests.benchmarks.bare import Bench

if find_spec("vllm") is None:
    pytest.skip("vLLM is not installed", allow_module_level=True)

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
with warnings.catch_warnings(action="ignore"):
    from gpu_runner.cross_check import Case, run_case

pytestmark = [pytest.mark.benchmarks, pytest.mark.filterwarnings("default"), pytest.mark.timeout(1200)]

TIMES = 10


@pytest.mark.parametrize("policy", ["vllm-default", "sloweave:tpot=25", "srjf-calibrated+full"])
@pytest.mark.parametrize("scarce", [False, True], ids=["ample", "scarce"])
def test_steps_per_second(policy: str, scarce: bool, bench: Bench) -> None:
    """At least ten times those of vLLM, which here runs neither a model nor a server."""
    ratios = []
    for _ in range(3):
        found = run_case(Case(policy, "chat", 500, scarce=scarce))
        assert found.agreement.first is None
        ratios.append(found.engine_s / found.simulator_s)
    ratio = statistics.median(ratios)
    memory = "scarce" if scarce else "ample"
    bench(f"vLLM's scheduler / simulator, {policy}, {memory} KV", f"{ratio:.0f} times", f">= {TIMES}")
    assert ratio >= TIMES
