"""Random tables that no engine made, and random runs of the engine."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import cache

import numpy as np
from hypothesis import strategies as st

from costmodels import LinearCost
from costmodels.prefill import PipelineCost
from policies import PolicySpec
from sim.cluster import simulate_cluster
from sim.engine import simulate
from sim.gaps import token_gaps
from sim.limits import Limits
from sim.memory import Memory
from sim.objectives import Objectives
from sim.records import FINISHED, NULL, REDIRECTED, REJECTED, UNFINISHED, Columns, Tables
from sim.routers import ROUTERS
from tests.seeded import built, pick, seeded
from tests.tables import RunTables
from traces import NONE, Trace

POLICIES = (
    "fcfs+full",
    "fcfs+fixed:chunk=7",
    "srjf-static+token-budget:budget=16,seqs=8",
    "sloweave:tpot=0.00012,cap=30",
    "fcfs+deadline-fill:tpot=0.00006,age=0.00005,overrun=0.0001+queue-limit:limit=6",
    "edf+deadline-fill:margin=10%+decode-saturation:fraction=0.5,action=redirect",
)

GOALS = built(
    Objectives,
    ttft=pick(None, 50, 400, 10**30),
    tpot=pick(None, 30, 60, 10**30),
    tpot_p99=pick(None, 40, 90, 10**30),
    itl_max=pick(None, 70, 10**30),
    jct=pick(None, 900, 10**30),
)


def tables(seed: random.Random) -> tuple[Columns, Columns]:
    """Make requests and steps that agree in nothing but when tokens come; idle gaps lie between steps."""
    n, n_steps = seed.randint(0, 12), seed.choice([seed.randint(0, 3), seed.randint(0, 40)])
    rng = np.random.default_rng(seed.getrandbits(64))
    scale = rng.choice([5, 100, 3_000_000_000])
    duration = rng.integers(1, scale + 1, n_steps)
    idle = np.where(rng.random(n_steps) < 0.2, rng.integers(0, 4 * scale, n_steps), 0)
    start = 1000 + np.cumsum(duration + idle) - duration
    ends = start + duration
    steps: Columns = {
        "start_ns": start,
        "duration_ns": duration,
        "predicted_ns": np.where(rng.random(n_steps) < 0.3, NULL, rng.integers(1, scale + 1, n_steps)),
        "exception": rng.integers(0, 2, n_steps),
        "busy_ns": rng.integers(0, duration + 1),
        "kv_blocks": np.full(n_steps, rng.integers(NULL, 9)),
        "replica": np.zeros(n_steps, dtype=np.int64),
        **{name: rng.integers(0, 9, n_steps) for name in ("waiting", "n_decode", "n_prefill")},
    }
    outcome = rng.choice([FINISHED, REJECTED, REDIRECTED, UNFINISHED], n, p=[0.7, 0.1, 0.05, 0.15])
    if not n_steps:
        outcome[outcome == FINISHED] = UNFINISHED
    runs = (outcome == FINISHED) | ((outcome == UNFINISHED) & (rng.random(n) < 0.5) & (n_steps > 0))
    first = np.where(runs, rng.integers(0, max(n_steps, 1), n), NULL)
    last = np.where(runs, rng.integers(np.maximum(first, 0), max(n_steps, 1)), NULL)
    started = np.where(runs, rng.integers(0, np.maximum(first, 0) + 1), NULL)

    def at(times: np.ndarray, index: np.ndarray) -> np.ndarray:
        return np.where(index >= 0, times[index], NULL) if n_steps else np.full(n, NULL)

    scheduled_ns, first_ns = at(start, started), at(ends, first)
    finished_ns = np.where(outcome == FINISHED, at(ends, last), NULL)
    latest = np.where(runs, scheduled_ns, 3000 * scale)
    arrival = rng.integers(0, latest + 1)

    def own() -> np.ndarray:
        return np.where(rng.random(n) < rng.choice([0, 0.5]), rng.integers(1, 2 * scale, n), NONE)

    requests: Columns = {
        "arrival_ns": arrival,
        "first_scheduled_ns": scheduled_ns,
        "first_token_ns": first_ns,
        "finished_ns": finished_ns,
        "prompt_tokens": rng.integers(50, 90, n),
        "cached_tokens": np.where(runs, rng.integers(0, 49, n), NULL),
        "generated_tokens": np.where(runs, last - first + 1, 0),
        "preemptions": rng.integers(0, 3, n),
        "replica": np.zeros(n, dtype=np.int64),
        "outcome": outcome,
        "aged_chunks": rng.integers(0, 3, n),
        "slo_exceptions": rng.integers(0, 3, n),
        "ttft_ns": np.where(runs, first_ns - arrival, NULL),
        **token_gaps(ends, first, last),
        "jct_ns": np.where(outcome == FINISHED, finished_ns - arrival, NULL),
        "slo_ttft_ns": own(),
        "slo_tpot_ns": own(),
    }
    return requests, steps


def _trace(seed: random.Random) -> Trace:
    """Make a small trace with bursts, idle gaps and one-token outputs."""
    n = seed.randint(1, 25)
    rng = np.random.default_rng(seed.getrandbits(64))
    gaps = np.where(rng.random(n) < 0.1, 1500, rng.integers(0, rng.choice([1, 60, 200]), n))
    outputs = np.where(rng.random(n) < 0.2, 1, rng.integers(1, 60, n))
    own = {}
    if rng.random() < 0.5:
        own = {
            "slo_ttft_ns": np.where(rng.random(n) < 0.5, NONE, rng.integers(50, 500, n)),
            "slo_tpot_ns": np.where(rng.random(n) < 0.5, NONE, rng.integers(20, 150, n)),
            "tenant": np.array(["a", None, "b"], dtype=object)[rng.integers(0, 3, n)],
            "session": np.array([f"s{i}" for i in rng.integers(0, 4, n)], dtype=object),
            "id": np.array([f"r-{i}" for i in rng.permutation(n)], dtype=object),
        }
    return Trace(np.cumsum(gaps), rng.integers(1, 40, n), outputs, **own)


parsed = cache(PolicySpec.parse)


def _policy(rng: random.Random) -> PolicySpec:
    return parsed(rng.choice(POLICIES))


COST = LinearCost(step=5, decode=4, per_decode=3, prefill=6, per_token=2)


def engine_run(rng: random.Random) -> tuple[Trace, RunTables, Objectives]:
    """Run the engine on a random trace, sometimes up to a horizon only."""
    trace, policy, goals = _trace(rng), _policy(rng), GOALS(rng)
    predictor = rng.choice([None, LinearCost(step=9, decode=2, per_decode=4, prefill=5, per_token=1)])
    limits = Limits(max_model_len=rng.choice([None, 70]), horizon_ns=rng.choice([None, None, 20, 700]))
    return trace, simulate(trace, policy.build(), COST, predictor=predictor, objectives=goals, limits=limits), goals


def engine_runs() -> st.SearchStrategy[tuple[Trace, RunTables, Objectives]]:
    """Draw what :func:`engine_run` makes."""
    return seeded(engine_run)


def memory_run(rng: random.Random) -> tuple[Trace, Tables, Objectives]:
    """Run one engine or several behind a router with too little memory, so that requests are preempted."""
    trace, policy, goals = _trace(rng), _policy(rng), GOALS(rng)
    replicas, block = rng.choice([1, 1, 2, 3]), rng.choice([1, 4, 16])
    needed = -(-int((trace.prompt_tokens + trace.output_tokens).max()) // block)
    memory = Memory(blocks=needed + 1 + rng.randint(0, 4), block_size=block, prefix_cache=rng.choice([False, True]))
    limits = Limits(horizon_ns=rng.choice([None, None, 20, 700]))
    if replicas == 1:
        cache = memory.build(trace)
        return trace, simulate(trace, policy.build(), COST, objectives=goals, limits=limits, cache=cache), goals
    policies = [policy.build() for _ in range(replicas)]
    router = rng.choice(list(ROUTERS))
    return (
        trace,
        simulate_cluster(trace, policies, COST, router=router, memory=memory, objectives=goals, limits=limits),
        goals,
    )


def pipeline_run(rng: random.Random) -> tuple[Trace, Tables, Objectives]:
    """Run an engine whose batches overlap in the two stages of a pipeline."""
    trace, policy, goals = _trace(rng), _policy(rng), GOALS(rng)
    trace = replace(trace, output_tokens=np.ones_like(trace.output_tokens))
    second = LinearCost(step=rng.randint(1, 60), per_token=rng.randint(0, 4))
    cost = PipelineCost("two", (LinearCost(step=5, per_token=2), second))
    limits = Limits(horizon_ns=rng.choice([None, None, 700]))
    return trace, simulate(trace, policy.build(), cost, objectives=goals, limits=limits), goals
