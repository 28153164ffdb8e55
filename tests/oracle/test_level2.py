"""Level 2 on the real engine: its clocks, fed to the simulator, give its batches."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from costmodels.io import save_cost_model
from costmodels.linear import LinearCost
from gpu_runner.engine import EngineOptions, open_engine
from gpu_runner.model import tiny_llama
from gpu_runner.replay import replay
from gpu_runner.settings import KEY
from gpu_runner.validate.schedule import compare_schedules
from policies.spec import parse_policy
from policies.units import MS
from sim.limits import Limits
from sim.memory import Memory
from sim.objectives import Objectives
from tests.oracle.random_cases import many_requests

REQUESTS = 200
BLOCK, BLOCKS, SEQS, LONGEST = 32, 60, 24, 1024
"""Blocks for little more than the largest request, so that some are preempted."""

COST = LinearCost(name="guess", step=2 * MS, per_token=20_000)
"""Right or wrong: both hosts believe it."""


@pytest.mark.parametrize("label", ["vllm-default", "fcfs+fixed:chunk=256", "sloweave:tpot=25", "prefillonly"])
def test_the_engine_s_batches_are_the_simulator_s(label: str, tmp_path: Path) -> None:
    model = tiny_llama(tmp_path / "model", layers=2, hidden=64, max_len=LONGEST)
    save_cost_model(COST, tmp_path / "cost.json")
    trace = many_requests(REQUESTS, gap_ms=4.0, longest=LONGEST)
    settings = {"policy": label, "cost_model": str(tmp_path / "cost.json"), "record": True, "prometheus": False}
    options = EngineOptions(
        str(model),
        dtype="float32",
        load_format="dummy",
        max_num_batched_tokens=LONGEST + SEQS if label == "prefillonly" else 2048,
        max_num_seqs=SEQS,
        max_model_len=LONGEST,
        num_gpu_blocks_override=BLOCKS,
        block_size=BLOCK,
        enable_prefix_caching=True,
        scheduler_cls="gpu_runner.scheduler.PolicyScheduler",
        additional_config={KEY: settings},
    )
    with open_engine(options) as engine:
        engine.warm_up()
        came, run, sent = replay(trace, engine)
        origin = engine.scheduler.recorder.steps[0].start - int(run.steps["start_ns"][0])
        batches = engine.scheduler.recorder.batches(origin_ns=origin)
        fallen = engine.scheduler.fallen
    assert (sent.stopped, fallen) == (None, False)
    assert (run.requests["finished_ns"] >= 0).sum() == REQUESTS
    assert run.requests["cached_tokens"].sum() > 0
    found = compare_schedules(
        label,
        came,
        run,
        batches,
        parse_policy(label),
        predictor=COST,
        objectives=Objectives(),
        limits=Limits(max_num_seqs=SEQS, max_model_len=LONGEST),
        cache=Memory(blocks=BLOCKS, block_size=BLOCK).build(came),
    )
    assert found.agreement.identical, str(found.agreement.first)
    assert np.all(run.requests["visible_step"] >= 0)
