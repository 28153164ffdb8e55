"""Random requests, policies and engines, small enough for thousands of comparisons."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from costmodels.io import load_cost_model
from gpu_runner.cross_check import COST_MODEL
from gpu_runner.identity import Agreement, agreement, batches_of
from gpu_runner.oracle import Oracle, OracleOptions
from gpu_runner.settings import KEY
from policies.spec import parse_policy
from policies.units import MS
from sim.engine import simulate
from sim.limits import Limits
from sim.memory import Memory
from sim.objectives import Objectives
from traces.schema import Segments, Trace

SLO = "tpot_p99:40,ttft:1000"

POLICIES = (
    "vllm-default",
    "sarathi:budget=128",
    "fcfs+fixed:chunk=64",
    "fcfs+full",
    "sloweave",
    "srjf-static+full",
    "srjf-calibrated:lam=500+full",
    "srjf-calibrated:lam=20+deadline-fill",
    "lpm+token-budget:budget=256",
    "edf+fixed:chunk=100",
    "lpm+token-budget:budget=100,threshold=16",
    "srjf-static+token-budget:budget=64,seqs=20,threshold=30",
    "fcfs+guarded",
    "srjf-calibrated:jct=attention+guarded",
    "fcfs+deadline-fill:age=50,overrun=10",
)

RELATED = (
    "hrrn+full",
    "hrrn:most=5+token-budget:budget=100",
    "lars+fixed:chunk=100",
    "lars:stretch=3,jct=attention+deadline-fill",
    "k-lpm:k=3+full",
    "k-lpm:k=2+deadline-slots:slots=3",
    "k-lpm+token-budget:budget=150",
    "dfs-weight+full",
    "dfs-weight+token-budget:budget=128",
    "fair:weights=a:3+full",
    "fair:weights=a:0.5+deadline-slots",
    "two-lane:short=100,wait=50+full",
    "qoserve+deadline-fill",
    "qoserve:alpha=0.5+token-budget:budget=128",
    "fcfs+deadline-slots",
    "srjf-calibrated:lam=20+deadline-slots:slots=2,age=50,overrun=10",
    "fcfs+p-pas:low=64,high=512",
    "lpm+p-pas:low=80,high=300,large=200",
    "fcfs+deadline-sum",
    "fcfs+deadline-sum:tpot=20",
    "srjf-calibrated:lam=20+deadline-sum:margin=5%",
    "qoserve+qoserve:tpot=15,grid=32|64|128|256",
    "fcfs+qoserve:grid=16|32|64|128|256",
    "edf+qoserve:per_gap=True,grid=16|32|64|128|256",
)
"""Orderings and chunkings of neighbouring systems; apart, so that the seeds of the others mean what they meant."""


def random_trace(rng: np.random.Generator) -> Trace:
    """Return 5 to 60 requests, many of which share leading tokens, in bursts or apart."""
    n = int(rng.integers(5, 60))
    gap = float(rng.choice([0, 1, 3, 10, 40])) * MS
    arrival = np.sort(np.cumsum(rng.exponential(gap, n)) if gap else np.zeros(n)).astype(np.int64)
    lengths = rng.choice([16, 32, 48, 100, 160, 333, 512], int(rng.integers(1, 6)))
    ids: list[int] = []
    tokens: list[int] = []
    offsets, prompts = [0], []
    for i in range(n):
        own: list[tuple[int, int]] = []
        if rng.random() < 0.7:
            first = int(rng.integers(len(lengths)))
            whole = int(lengths[first])
            own.append((first, whole if rng.random() < 0.7 else int(rng.integers(1, whole + 1))))
            if own[-1][1] == whole and rng.random() < 0.4:
                own.append((100 * first + 10 + int(rng.integers(3)), int(rng.choice([7, 16, 32, 64]))))
        if not own or rng.random() < 0.6:
            own.append((10**6 + i, int(rng.choice([1, 5, 16, 17, 48, 64, 200, 700]))))
        ids += [content for content, _ in own]
        tokens += [count for _, count in own]
        offsets.append(len(ids))
        prompts.append(sum(count for _, count in own))
    objectives = {}
    if rng.random() < 0.4:
        ms = rng.choice([15, 25, 60, -1], n).astype(np.int64)
        objectives["slo_tpot_ns"] = np.where(ms > 0, ms * MS, -1)
    return Trace(
        arrival_ns=arrival,
        prompt_tokens=np.array(prompts, dtype=np.int64),
        output_tokens=rng.choice([1, 1, 2, 5, 17, 40, 120], n).astype(np.int64),
        segments=Segments(*(np.array(a, dtype=np.int64) for a in (offsets, ids, tokens))),
        **objectives,
    )


def named(trace: Trace, rng: np.random.Generator) -> Trace:
    """Give some requests a tenant, a session and a TTFT objective."""
    n = len(trace)
    ttft = rng.choice([100, 1000, 5000, -1], n).astype(np.int64)
    return replace(
        trace,
        tenant=rng.choice(np.array(["a", "b", None], dtype=object), n),
        session=rng.choice(np.array(["s", "t", "u", None], dtype=object), n),
        slo_ttft_ns=np.where(ttft > 0, ttft * MS, -1),
    )


def many_requests(n: int, gap_ms: float, longest: int) -> Trace:
    """Return requests with common beginnings and short outputs, each within a length, at a steady random rate."""
    rng = np.random.default_rng(n)
    arrival = np.cumsum(rng.exponential(gap_ms * MS, n)).astype(np.int64)
    common = rng.integers(0, 8, n)
    shared, own = 40 + 24 * common, rng.integers(1, longest // 3, n)
    ids = np.stack([common, 1000 + np.arange(n)], axis=1).reshape(-1).astype(np.int64)
    tokens = np.stack([shared, own], axis=1).reshape(-1).astype(np.int64)
    return Trace(
        arrival_ns=arrival,
        prompt_tokens=(shared + own).astype(np.int64),
        output_tokens=rng.integers(1, 40, n).astype(np.int64),
        segments=Segments(np.arange(0, 2 * n + 1, 2, dtype=np.int64), ids, tokens),
    )


def run_random(seed: int, policies: tuple[str, ...] = POLICIES) -> Agreement:
    """Compare one random case: trace, policy, blocks, seats, prefix cache and depth follow from the seed."""
    rng = np.random.default_rng(seed)
    trace, label = random_trace(rng), str(rng.choice(policies))
    if policies is RELATED:
        trace = named(trace, rng)
    largest = int((trace.prompt_tokens + trace.output_tokens).max())
    blocks = -(-(largest - 1) // 16) + 1 + int(rng.choice([0, 1, 3, 10, 40, 1000]))
    seqs, depth, cache = int(rng.choice([1, 3, 20, 64])), int(rng.integers(1, 3)), bool(rng.random() < 0.75)
    policy, cost = parse_policy(label), load_cost_model(COST_MODEL)
    seats = policy.chunking.seat_limit(min(seqs, 64)) or seqs
    settings: dict[str, Any] = {"policy": label, "cost_model": COST_MODEL, "slo": SLO}
    options = OracleOptions(
        blocks=blocks,
        prefix_cache=cache,
        max_num_batched_tokens=max(policy.chunking.step_limit(seats, largest), seqs),
        max_num_seqs=seqs,
        max_model_len=largest,
        pipeline_depth=depth,
        additional={KEY: settings},
    )
    batches = Oracle(trace, cost, options).run()
    memory = Memory(blocks=blocks, prefix_cache=cache).build(trace)
    run = simulate(
        trace,
        policy,
        cost,
        objectives=Objectives.parse(SLO),
        limits=Limits(max_num_seqs=seqs, pipeline_depth=depth),
        cache=memory,
    )
    return agreement(batches, batches_of(run))
