"""What our scheduler costs inside vLLM, over vLLM's own scheduler in the same run; ``make bench`` prints it."""

from __future__ import annotations

import gc
import os
import statistics
import time
import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from costmodels import load_cost_model
from tests.benchmarks.bare import Bench
from traces.schema import Segments, Trace

if find_spec("vllm") is None:
    pytest.skip("vLLM is not installed", allow_module_level=True)

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
with warnings.catch_warnings(action="ignore"):
    from vllm.envs import enable_envs_cache

    from gpu_runner.oracle import Oracle, OracleOptions

pytestmark = [pytest.mark.benchmarks, pytest.mark.filterwarnings("default")]

RUNNING, WAITING = 256, 1000
OUTPUTS = 400
PROMPT = 512
BLOCK = 16
STEPS, ROUNDS = 40, 11
COST = "a100-llama3.1-8b"
LIMIT = 0.15


class Loaded:
    """A scheduler that is kept at 256 running and 1,000 waiting requests, on a virtual clock and without a model.

    Requests share a prefix with others of their group, so cache events touch those that wait. One arrives for each that
    finishes, about two in three steps.
    """

    def __init__(self, additional: dict[str, Any] | None) -> None:
        n = RUNNING + WAITING + 2 * ROUNDS * STEPS + 2000
        rng = np.random.default_rng(0)
        group = rng.integers(64, size=n)
        own = rng.integers(1, PROMPT, size=n)
        ids = np.stack([group, 1000 + np.arange(n)], axis=1).ravel()
        tokens = np.stack([np.full(n, PROMPT), own], axis=1).ravel()
        outputs = rng.integers(1, 2 * OUTPUTS, size=n)
        trace = Trace(
            np.zeros(n, dtype=np.int64),
            PROMPT + own,
            outputs,
            segments=Segments(np.arange(0, 2 * n + 1, 2), ids, tokens),
        )
        longest = 2 * (PROMPT + OUTPUTS)
        options = OracleOptions(
            blocks=2 * RUNNING * longest // BLOCK,
            max_num_seqs=RUNNING,
            max_num_batched_tokens=longest + RUNNING,
            max_model_len=longest,
            additional=additional,
        )
        self.oracle = Oracle(trace, load_cost_model(COST), options)
        self._came = 0
        self._arrive(RUNNING + WAITING)
        while len(self.oracle.scheduler.running) < RUNNING:
            self._step()
            self._fill()

    def _arrive(self, count: int) -> None:
        for _ in range(count):
            self.oracle.scheduler.add_request(self.oracle._request(self._came))
            self._came += 1

    def _fill(self) -> None:
        running, waiting = self.oracle.scheduler.get_request_counts()
        self._arrive(RUNNING + WAITING - running - waiting)

    def _step(self) -> int:
        """Return the nanoseconds of the processor that deciding one step and taking its tokens took, in all threads."""
        oracle, scheduler = self.oracle, self.oracle.scheduler
        start = time.process_time_ns()
        output = scheduler.schedule()
        decided = time.process_time_ns()
        oracle.now += oracle.cost.step_ns(*oracle.features(output))
        sampled = oracle.sample(output)
        ready = time.process_time_ns()
        scheduler.update_from_output(output, sampled)
        return decided - start + time.process_time_ns() - ready

    def round(self) -> float:
        """Return the mean time of a step, in microseconds, while as many arrive as finish."""
        total = 0
        for _ in range(STEPS):
            total += self._step()
            self._fill()
        assert len(self.oracle.scheduler.running) > 0.98 * RUNNING
        return total / STEPS / 1e3


def settings(policy: str, tmp_path: Path | None = None) -> dict[str, Any]:
    """Return what a user would give."""
    own: dict[str, Any] = {"policy": policy, "cost_model": COST, "slo": "ttft:1000,tpot_p99:100"}
    if tmp_path is not None:
        own["telemetry"] = str(tmp_path)
    return {"prefillsim": own}


@pytest.mark.parametrize("told", [False, True], ids=["", "telemetry"])
@pytest.mark.parametrize("policy", ["vllm-default", "sloweave", "srjf-calibrated+full"])
def test_overhead_over_vllms_own_scheduler(policy: str, told: bool, tmp_path: Path, bench: Bench) -> None:
    """At most 15 % more than the stock scheduler's own time per step, telemetry to disk included."""
    stock, ours = Loaded(None), Loaded(settings(policy, tmp_path if told else None))
    # As the engine's core does once it has started; without, vLLM reads its environment block by block.
    enable_envs_cache()
    gc.collect()
    gc.disable()
    try:
        rounds = [(stock.round(), ours.round()) for _ in range(ROUNDS)]
    finally:
        gc.enable()
        ours.oracle.scheduler.shutdown()
    before, after = (statistics.median(r[i] for r in rounds) for i in (0, 1))
    over = statistics.median(b / a for a, b in rounds) - 1
    name = f"{policy}{' with telemetry' if told else ''}"
    bench(
        f"inside vLLM, {name}", f"{before:.0f} µs per step by vLLM alone, {after:.0f} by ours, {over:+.1%}", "<= 15 %"
    )
    assert over <= LIMIT
