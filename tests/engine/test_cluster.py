"""Replicas behind a router: against single engines, and against what the routers promise."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from costmodels import LinearCost
from policies import parse_policy
from sim.cluster import ClusterRun, simulate_cluster
from sim.engine import simulate
from sim.limits import Limits
from sim.memory import Memory
from sim.metrics import summarise
from sim.objectives import Objectives
from sim.records import FINISHED, REDIRECTED, REJECTED, UNFINISHED
from sim.routers import ROUTERS, ClusterError
from tests.engine.compare import assert_same_run
from tests.engine.memories import PIPELINES, crowded_runs, store_runs
from tests.engine.strategies import Run, runs
from tests.seeded import cases, either, pick, whole
from traces import Segments, Trace

COST = LinearCost(step=5, decode=4, per_decode=3, prefill=6, per_token=2)

MEMORIES = pick(None, Memory(blocks=40, block_size=4), Memory(block_size=3))
SEEDS = whole(0, 2**32)


def with_content(trace: Trace, seed: int) -> Trace:
    """Give prompts one of three beginnings, and each its own rest; sessions follow the beginnings."""
    rng = np.random.default_rng(seed)
    group = rng.integers(0, 3, len(trace))
    head = np.maximum(1, trace.prompt_tokens - rng.integers(0, 9, len(trace)))
    rest = trace.prompt_tokens - head
    rows = enumerate(zip(group.tolist(), head.tolist(), rest.tolist(), strict=True))
    pairs = [[(g, h), (10 + i, r)][: 1 + (r > 0)] for i, (g, h, r) in rows]
    flat = [p for own in pairs for p in own]
    segments = Segments(
        np.cumsum([0, *map(len, pairs)]), np.array([p[0] for p in flat]), np.array([p[1] for p in flat])
    )
    names = np.array([None if g == 2 else f"user {g}" for g in group.tolist()], dtype=object)
    return replace(trace, segments=segments, session=names)


def cluster(run: Run, replicas: int, router: str, memory: Memory | None, trace: Trace | None = None) -> ClusterRun:
    return simulate_cluster(
        run.trace if trace is None else trace,
        [run.build() for _ in range(replicas)],
        run.cost,
        router=router,
        memory=memory,
        predictor=run.predictor,
        objectives=run.objectives,
        limits=run.limits,
    )


@cases(40, runs(), pick(*ROUTERS), MEMORIES, SEEDS)
def test_one_replica_is_an_engine(run: Run, router: str, memory: Memory | None, seed: int) -> None:
    run = replace(run, trace=with_content(run.trace, seed), memory=memory)
    assert_same_run(cluster(run, 1, router, memory), run.simulate())


@cases(40, runs(), whole(2, 4), pick("user", "round-robin"), MEMORIES, SEEDS)
def test_static_routers_split_the_trace(run: Run, replicas: int, router: str, memory: Memory | None, seed: int) -> None:
    """Where no state decides, each replica does what an engine does that only its requests come to."""
    run = replace(run, trace=with_content(run.trace, seed), policy=run.policy.replace("redirect", "reject"))
    together = cluster(run, replicas, router, memory)
    homes: dict[str, int] = {}
    users = [f"u{s}" if s is not None else i for i, s in enumerate(run.trace.session.tolist())]
    expected = [i if router == "round-robin" else homes.setdefault(u, len(homes)) for i, u in enumerate(users)]
    assert together.assigned.tolist() == [e % replicas for e in expected]
    for r in range(replicas):
        rows = np.flatnonzero(together.assigned == r)
        if not len(rows):
            continue
        alone = simulate(
            run.trace.select(rows),
            run.build(),
            run.cost,
            predictor=run.predictor,
            objectives=run.objectives,
            limits=run.limits,
            cache=None if memory is None else memory.build(run.trace.select(rows)),
        )
        first = int(np.count_nonzero(together.steps["replica"] < r))
        for name, values in alone.requests.items():
            ours = together.requests[name][rows]
            if name == "visible_step":
                ours = np.where(ours >= 0, ours - first, ours)
            if name != "replica":
                np.testing.assert_array_equal(ours, values, err_msg=name)
        for name, values in alone.steps.items():
            if name != "replica":
                np.testing.assert_array_equal(together.steps[name][together.steps["replica"] == r], values, name)


@cases(150, either(runs(), crowded_runs(), store_runs(PIPELINES)), whole(2, 4), MEMORIES, pick(1, 2), SEEDS)
def test_least_loaded_has_the_least_backlog(
    run: Run, replicas: int, memory: Memory | None, depth: int, seed: int
) -> None:
    """Counted from the tables afterwards: prompts of requests that are there and not gone."""
    stages = len(run.cost.stages())
    limits = Limits(run.limits.max_num_seqs, pipeline_depth=1 if stages > 1 else depth)
    run = replace(run, policy=run.policy.partition("+queue")[0].partition("+decode-sat")[0], limits=limits)
    if run.memory is None or stages > 1:
        run = replace(run, trace=with_content(run.trace, seed), memory=memory)
    result = cluster(run, replicas, "least-loaded", run.memory and replace(run.memory, prefix_cache=False))
    arrival, gone = run.trace.arrival_ns.tolist(), result.requests["finished_ns"].tolist()
    refused = result.requests["outcome"] == REJECTED
    prompts = run.trace.prompt_tokens.tolist()
    if refused.any():
        return
    for i, t in enumerate(arrival):
        backlog = [0] * replicas
        for j in range(i):
            if gone[j] > t or arrival[j] == t:
                backlog[result.assigned[j]] += prompts[j]
        assert result.assigned[i] == backlog.index(min(backlog))


@cases(30, runs(), whole(1, 4), pick(*ROUTERS), MEMORIES, SEEDS)
def test_nobody_is_lost(run: Run, replicas: int, router: str, memory: Memory | None, seed: int) -> None:
    run = replace(run, trace=with_content(run.trace, seed))
    result = cluster(run, replicas, router, memory)
    outcome = result.requests["outcome"]
    assert ((outcome == FINISHED) == (result.requests["finished_ns"] >= 0)).all()
    if run.limits.horizon_ns is None:
        assert not (outcome == UNFINISHED).any()
    done = outcome == FINISHED
    assert (result.requests["generated_tokens"][done] == run.trace.output_tokens[done]).all()
    chunks = np.bincount(result.chunks["request"], result.chunks["tokens"], len(run.trace))
    plain = done & (result.requests["preemptions"] == 0)
    np.testing.assert_array_equal(chunks[plain], (run.trace.prompt_tokens - result.requests["cached_tokens"])[plain])
    assert set(result.reasons) == set(np.flatnonzero((outcome == REJECTED) | (outcome == REDIRECTED)).tolist())


def at_once(prompts: list[int], segments: Segments | None = None) -> Trace:
    n = len(prompts)
    return Trace(np.zeros(n, dtype=np.int64), np.array(prompts), np.ones(n, dtype=np.int64), segments=segments)


def test_who_is_redirected_tries_every_replica() -> None:
    """Each of two replicas lets two wait; the fifth finds both full, the sixth replica 0 with its first under way."""
    trace = at_once([10] * 6)
    policies = [parse_policy("fcfs+full+queue-limit:limit=2,action=redirect") for _ in range(2)]
    result = simulate_cluster(trace, policies, COST, router="user")
    assert result.assigned[:4].tolist() == [0, 1, 0, 1]
    assert result.assigned.tolist() == [0, 1, 0, 1, 1, 0]
    assert result.requests["outcome"].tolist() == [FINISHED] * 4 + [REDIRECTED, FINISHED]
    assert sorted(result.reasons) == [4]


def test_a_redirected_request_runs_elsewhere() -> None:
    """All of one user's requests come to replica 0, which has room for one; replica 1 takes the next."""
    trace = replace(at_once([10] * 2), session=np.array(["u", "u"], dtype=object))
    policies = [parse_policy("fcfs+full+queue-limit:limit=1,action=redirect") for _ in range(2)]
    result = simulate_cluster(trace, policies, COST)
    assert result.assigned.tolist() == [0, 1]
    assert result.requests["outcome"].tolist() == [FINISHED] * 2
    assert result.requests["jct_ns"].tolist() == [COST.step_ns(0, 0, 0, 1, 10, 55)] * 2


def test_affinity_follows_content_that_is_only_on_its_way() -> None:
    """Of four simultaneous requests with two beginnings, equal ones meet on one replica."""
    segments = Segments(np.arange(5), np.array([0, 1, 1, 0]), np.array([40, 40, 40, 40]))
    trace = at_once([40] * 4, segments)
    policies = [parse_policy("fcfs+full") for _ in range(2)]
    result = simulate_cluster(trace, policies, COST, router="prefix-affinity", memory=Memory(blocks=50, block_size=4))
    assert result.assigned.tolist() == [0, 1, 1, 0]
    assert result.requests["cached_tokens"].tolist() == [0, 0, 36, 36]


@cases(25, runs(), whole(2, 3), MEMORIES, SEEDS)
def test_gaps_are_pooled_replica_by_replica(run: Run, replicas: int, memory: Memory | None, seed: int) -> None:
    """The share of late gaps is that of all tokens' gaps, taken from each replica's own tables."""
    run = replace(run, trace=with_content(run.trace, seed), policy=run.policy.replace("redirect", "reject"))
    goals = Objectives(tpot_p99=60)
    result = cluster(run, replicas, "round-robin", memory)
    summary = summarise(result.requests, result.steps, goals, result.preemptions)
    late = total = 0.0
    for r, own in enumerate(result.runs):
        rows = result.assigned == r
        mine = {name: values[rows] for name, values in own.requests.items()}
        place = np.cumsum(rows) - 1
        preempted = {**own.preemptions, "request": place[own.preemptions["request"]]}
        part = summarise(mine, own.steps, goals, preempted)["late_gap_share"]
        gaps = int(np.maximum(mine["generated_tokens"] - 1, 0).sum())
        if part is not None:
            late += part * gaps
            total += gaps
    if summary["late_gap_share"] is None:
        assert not total
    else:
        assert summary["late_gap_share"] == pytest.approx(late / total, rel=1e-9)


def test_unknown_router() -> None:
    with pytest.raises(ClusterError, match="unknown router rond-robin; did you mean round-robin"):
        simulate_cluster(at_once([1]), [parse_policy("fcfs+full")], COST, router="rond-robin")


def test_no_replica() -> None:
    with pytest.raises(ClusterError, match="at least 1 replica"):
        simulate_cluster(at_once([1]), [], COST)
