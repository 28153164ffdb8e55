"""The engine's ``vllm-default`` against what vLLM 0.32's own scheduler decided."""

import functools
import json
import os
from pathlib import Path

import numpy as np
import pytest

from costmodels import LinearCost
from policies import parse_policy
from sim.batches import batch_table
from sim.content import ContentTree
from sim.engine import simulate
from sim.kvcache import KVCache
from sim.limits import Limits
from sim.pool import BlockPool
from tests.blockwise import BlockwisePool
from traces import Segments, Trace

SETTINGS = {
    "shared-prefix.ample": (20_000, 8_192, 256, True),
    "shared-prefix.tight": (500, 512, 64, True),
    "shared-prefix.nocache": (20_000, 2_048, 256, False),
    "prefill-only.evicting": (300, 2_048, 16, True),
    "long-decode.preempting": (350, 1_024, 64, True),
    "identical-tight": (50, 128, 32, True),
    "mult16-out1": (60, 160, 32, True),
    "resume-chunks-shared": (70, 48, 32, True),
    "long-prompts-tight": (460, 256, 32, True),
    "exact-fit": (11, 64, 8, True),
    "multi-turn-vtight": (80, 256, 32, True),
    "bursts": (130, 512, 48, True),
}
"""Blocks, max_num_batched_tokens, max_num_seqs, prefix cache: the README beside the recordings."""

MODEL_LIMIT = 16_384

COST = LinearCost(step=350_000, decode=900_000, per_decode=55_000, prefill=400_000, per_token=6_000)


def recordings() -> Path:
    root = Path(__file__).parents[3]
    folder = Path(os.environ.get("PREFILLSIM_RECORDINGS", root / "shared" / "measured" / "vllm-batches"))
    if not folder.is_dir():
        pytest.skip("the recordings are neither in $PREFILLSIM_RECORDINGS nor in ../shared/measured")
    return folder


@functools.cache
def read(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def in_order(steps: list[dict]) -> list[tuple[dict, list[str]]]:
    """Return steps with the order of their batches, to which the equality of dictionaries is blind."""
    return [(step, list(step["batch"])) for step in steps]


def trace_of(rows: list[dict]) -> Trace:
    names = {name: number for number, name in enumerate(dict.fromkeys(s[0] for r in rows for s in r["segments"]))}
    segments = [[(names[name], n) for name, n in r["segments"]] for r in rows]
    flat = [s for own in segments for s in own]
    return Trace(
        np.array([r["arrival_ns"] for r in rows]),
        np.array([sum(n for _, n in own) for own in segments]),
        np.array([r["output"] for r in rows]),
        segments=Segments(
            np.cumsum([0, *map(len, segments)]), np.array([s[0] for s in flat]), np.array([s[1] for s in flat])
        ),
        id=np.array([r["id"] for r in rows], dtype=object),
    )


def slow_pool(trace: Trace, blocks: int, prefix_cache: bool) -> KVCache:
    return BlockwisePool(trace, blocks, prefix_cache=prefix_cache)


def fast_pool(trace: Trace, blocks: int, prefix_cache: bool) -> KVCache:
    return BlockPool(ContentTree(trace, 16), blocks, prefix_cache=prefix_cache)


@pytest.mark.real
@pytest.mark.parametrize(("make", "stretch"), [(slow_pool, True), (fast_pool, True), (fast_pool, False)])
@pytest.mark.parametrize("name", SETTINGS)
def test_every_step_is_the_one_vllm_decided(name, make, stretch):
    blocks, budget, seqs, prefix_cache = SETTINGS[name]
    folder = recordings()
    trace = trace_of(read(folder / f"{name.split('.')[0]}.trace.jsonl"))
    steps = read(folder / f"{name}.steps.jsonl")
    run = simulate(
        trace,
        parse_policy(f"fcfs+token-budget:budget={budget},seqs={seqs}"),
        COST,
        limits=Limits(max_model_len=MODEL_LIMIT),
        cache=make(trace, blocks, prefix_cache),
        stretch=stretch,
    )
    batches = batch_table(run)
    ours = [
        {"start_ns": s, "ns": d, "batch": {}, "preempted": []}
        for s, d in zip(run.steps["start_ns"].tolist(), run.steps["duration_ns"].tolist(), strict=True)
    ]
    for k, i, c in zip(batches["step"].tolist(), batches["request"].tolist(), batches["tokens"].tolist(), strict=True):
        ours[k]["batch"][trace.ids[i]] = c
    for k, i in zip(run.preemptions["step"].tolist(), run.preemptions["request"].tolist(), strict=True):
        ours[k]["preempted"].append(trace.ids[i])
    for step in ours:
        step["preempted"].sort()  # the recordings list the victims of a step by id
    if in_order(ours) != in_order(steps):
        for k, (mine, theirs) in enumerate(zip(ours, steps, strict=False)):
            assert (k, mine, list(mine["batch"])) == (k, theirs, list(theirs["batch"]))
        assert len(ours) == len(steps)
