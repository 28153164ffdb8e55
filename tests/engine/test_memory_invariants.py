"""What holds in every run with KV memory: no block is lost or counted twice, and the preempted finish all the same."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given, settings

from costmodels import LinearCost
from sim.batches import batch_table
from sim.engine import simulate
from sim.records import FINISHED, NULL, REDIRECTED, REJECTED, UNFINISHED
from tests.engine import strategies
from tests.engine.compare import assert_same_run
from tests.engine.memories import ONE_TOKEN, PIPELINES, crowded_runs, pool_runs, store_runs
from tests.engine.strategies import Run, ms
from tests.engine.test_metamorphic import mapped
from tests.seeded import cases, either, pick, seeded, whole, wide
from tests.tables import RunTables


def run_with_cache(run: Run) -> tuple[RunTables, object]:
    """Run the engine, and return its tables and the memory it leaves."""
    cache = run.memory.build(run.trace)
    tables = simulate(
        run.trace,
        run.build(),
        run.cost,
        predictor=run.predictor,
        objectives=run.objectives,
        limits=run.limits,
        cache=cache,
    )
    return tables, cache


def lives(run: Run, tables: RunTables) -> list[list[dict[str, list[int]]]]:
    """Return the chunks and decodes of each request in each of its lives: from a start to a preemption or its end."""
    found = [[{"chunks": [], "decodes": []}] for _ in range(len(run.trace))]
    chunked = set(zip(tables.chunks["step"].tolist(), tables.chunks["request"].tolist(), strict=True))
    ended = {(k, i) for k, i in zip(*(tables.preemptions[c].tolist() for c in ("step", "request")), strict=True)}
    batches = batch_table(tables)
    last = dict.fromkeys(range(len(run.trace)), -1)
    for k, i, c in zip(*(batches[n].tolist() for n in ("step", "request", "tokens")), strict=True):
        if any((j, i) in ended for j in range(last[i] + 1, k + 1)):
            found[i].append({"chunks": [], "decodes": []})
        found[i][-1]["chunks" if (k, i) in chunked else "decodes"].append(c)
        last[i] = k
    return found


@cases(40, crowded_runs())
def test_each_life_computes_what_it_lacks_and_each_decode_gets_one_token(run: Run) -> None:
    tables, _ = run_with_cache(run)
    requests = tables.requests
    for i, own in enumerate(lives(run, tables)):
        tokens = 0
        for n, life in enumerate(own):
            computed, goal = sum(life["chunks"]), int(run.trace.prompt_tokens[i]) + tokens
            ends_prefill = bool(life["decodes"]) or (n == len(own) - 1 and requests["outcome"][i] == FINISHED)
            assert computed <= goal
            if n == 0 and ends_prefill:
                assert computed == goal - requests["cached_tokens"][i]
            if ends_prefill:
                hit = goal - computed
                assert hit % run.memory.block_size == 0
                assert hit <= goal - 1
                assert run.memory.prefix_cache or hit == 0
            assert set(life["decodes"]) <= {1}
            tokens += len(life["decodes"]) + (ends_prefill or _prefilled(run, tables, i, n))
        if requests["outcome"][i] == FINISHED:
            assert tokens == requests["generated_tokens"][i] == run.trace.output_tokens[i]


def _prefilled(run: Run, tables: RunTables, request: int, life: int) -> bool:
    """Return whether a life without a decode ended its prefill all the same: it was preempted in the next step."""
    mine = np.flatnonzero(tables.preemptions["request"] == request)
    if life >= len(mine):
        return bool(tables.requests["generated_tokens"][request]) and not _awaits_token(tables, request)
    row = mine[life]
    before = tables.preemptions["after"][mine[life - 1]] if life else NULL
    return bool(tables.preemptions["after"][row] > before)


def _awaits_token(tables: RunTables, request: int) -> bool:
    mine = tables.preemptions["request"] == request
    return bool((tables.preemptions["until"][mine] == NULL).any())


@cases(40, either(pool_runs(), crowded_runs(), pool_runs(cost=PIPELINES, one_token=ONE_TOKEN)))
def test_blocks_in_use_never_exceed_memory_and_all_come_back(run: Run) -> None:
    tables, cache = run_with_cache(run)
    blocks = tables.steps["kv_blocks"]
    assert (blocks <= run.memory.blocks - 1).all()
    assert (blocks > 0).all()
    if run.limits.horizon_ns is None:
        assert cache.free == cache.capacity == run.memory.blocks - 1


@cases(40, either(crowded_runs(), store_runs(), pool_runs(cost=PIPELINES, one_token=ONE_TOKEN)))
def test_nobody_is_lost_and_times_add_up(run: Run) -> None:
    tables, _ = run_with_cache(run)
    requests, preemptions = tables.requests, tables.preemptions
    counts = [np.count_nonzero(requests["outcome"] == o) for o in (FINISHED, REJECTED, REDIRECTED, UNFINISHED)]
    assert sum(counts) == len(run.trace)
    if run.limits.horizon_ns is None:
        assert counts[3] == 0
        assert (requests["outcome"][preemptions["request"]] == FINISHED).all()
        assert (preemptions["until"] != NULL).all()
    assert (np.bincount(preemptions["request"], minlength=len(run.trace)) == requests["preemptions"]).all()
    assert (preemptions["after"] < preemptions["step"]).all()
    assert ((preemptions["until"] >= preemptions["step"]) | (preemptions["until"] == NULL)).all()
    hits, started = requests["cached_tokens"], requests["first_scheduled_ns"] != NULL
    assert ((hits == NULL) == ~started).all()
    assert (hits[started] <= run.trace.prompt_tokens[started] - 1).all()
    assert (hits[started] % run.memory.block_size == 0).all()
    several = (requests["generated_tokens"] > 1) & (requests["outcome"] == FINISHED)
    gaps = requests["tpot_mean_ns"][several] * (requests["generated_tokens"][several] - 1)
    latency = (requests["jct_ns"] - requests["ttft_ns"])[several]
    np.testing.assert_array_equal(np.rint(gaps).astype(np.int64), latency)
    assert (requests["itl_max_ns"][several] <= latency).all()


@cases(40, store_runs(cost=PIPELINES))
def test_a_stage_works_on_one_batch_at_a_time(run: Run) -> None:
    """So the stages together work no longer than there is time, and at most as many batches as stages overlap."""
    steps = run.simulate().steps
    if not len(steps["start_ns"]):
        return
    ends = steps["start_ns"] + steps["duration_ns"]
    assert (np.diff(ends) > 0).all()
    assert (ends[:-2] <= steps["start_ns"][2:]).all()
    assert (steps["busy_ns"] >= 0).all()
    assert steps["busy_ns"].sum() <= ends[-1] - steps["start_ns"][0]


@cases(40, pool_runs())
def test_ample_memory_is_unlimited_memory(run: Run) -> None:
    ample = replace(run.memory, blocks=2000)
    unlimited = replace(run.memory, blocks=None) if ample.prefix_cache else None
    left, right = replace(run, memory=ample).simulate(), replace(run, memory=unlimited).simulate()
    assert_same_run(left, right, () if unlimited else ("kv_blocks",))
    assert len(left.preemptions["step"]) == 0


@cases(40, pool_runs())
def test_prompts_without_common_content_are_prompts_without_a_cache(run: Run) -> None:
    """As far as nobody is preempted, whose own blocks could still be there."""
    apart = replace(run, trace=replace(run.trace, segments=None))
    cached = replace(apart, memory=replace(run.memory, prefix_cache=True)).simulate()
    if not len(cached.preemptions["step"]):
        assert_same_run(cached, replace(apart, memory=replace(run.memory, prefix_cache=False)).simulate())
    without = replace(run.memory, prefix_cache=False)
    assert_same_run(replace(run, memory=without).simulate(), replace(apart, memory=without).simulate())


@cases(40, either(crowded_runs(), store_runs(), store_runs(cost=PIPELINES)), wide(10**12, 1))
def test_shifting_all_arrivals_shifts_all_times(run: Run, shift: int) -> None:
    horizon = None if run.limits.horizon_ns is None else run.limits.horizon_ns + shift
    shifted = replace(
        run,
        trace=replace(run.trace, arrival_ns=run.trace.arrival_ns + shift),
        limits=replace(run.limits, horizon_ns=horizon),
    )
    assert_same_run(shifted.simulate(), mapped(run.simulate(), moment=shift))


@cases(40, crowded_runs(), strategies.LINEAR_COSTS, whole(1, 10), pick("fcfs", "srjf-static", "lpm"))
def test_scaling_all_times_scales_all_times(run: Run, cost: LinearCost, power: int, ordering: str) -> None:
    """Powers of two keep floats exact."""
    run = replace(run, predictor=None, objectives=None, trace=replace(run.trace, slo_tpot_ns=None, tenant=None))

    def at(factor: int) -> RunTables:
        coefficients = ("step", "decode", "per_decode", "prefill", "per_token")
        horizon = run.limits.horizon_ns
        return replace(
            run,
            trace=replace(run.trace, arrival_ns=run.trace.arrival_ns * factor),
            policy=f"{ordering}+deadline-fill:tpot={ms(90 * factor)}",
            cost=LinearCost(**{c: getattr(cost, c) * factor for c in coefficients}),
            limits=replace(run.limits, horizon_ns=horizon and horizon * factor),
        ).simulate()

    assert_same_run(at(2**power), mapped(at(1), factor=2**power))


def test_random_runs_preempt_often_enough() -> None:
    """Else nothing above would be about preemptions: a third of the runs have one, and some request has several."""
    most = []

    @settings(database=None, derandomize=True, deadline=None, max_examples=40)
    @given(seeded(crowded_runs()))
    def count(run: Run) -> None:
        most.append(int(run.simulate().requests["preemptions"].max()))

    count()
    assert sum(n > 0 for n in most) > len(most) / 3, most
    assert max(most) > 1, most
