"""A replay through the real engine: a tiny Llama with random weights, and tables that must hold together."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from gpu_runner.engine import Engine, EngineError, EngineOptions, open_engine
from gpu_runner.model import tiny_llama
from gpu_runner.replay import Sent, paced, replay
from gpu_runner.settings import KEY
from sim.batches import batch_table
from sim.metrics import summarise
from sim.objectives import Objectives
from sim.records import FINISHED, REJECTED
from sim.store import read_run, write_run
from sim.tables import LoggedRun
from traces import Segments, Trace

MS = 1_000_000
N = 40
LONGEST = 512
BLOCK = 32


def asked() -> Trace:
    """Requests in bursts, half of them with a prompt that begins as others do, and one that is too long."""
    rng = np.random.default_rng(0)
    parts = [
        [(i % 3, 2 * BLOCK), (100 + i, int(rng.integers(1, 60)))] if i % 2 else [(200 + i, int(rng.integers(1, 200)))]
        for i in range(N)
    ]
    parts[20] = [(999, LONGEST)]
    segments = Segments(
        np.cumsum([0, *(len(p) for p in parts)]),
        np.array([c for p in parts for c, _ in p]),
        np.array([t for p in parts for _, t in p]),
    )
    prompts = np.array([sum(t for _, t in p) for p in parts])
    arrivals = np.sort(rng.integers(0, 400, N)) * MS
    return Trace(arrivals, prompts, rng.integers(1, 12, N), segments=segments, id=np.array([f"r{i}" for i in range(N)]))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("model"), layers=1, hidden=64)


def options(model: Path, policy: str) -> EngineOptions:
    return EngineOptions(
        str(model),
        dtype="float32",
        load_format="dummy",
        max_num_batched_tokens=LONGEST + 16,
        max_num_seqs=8,
        max_model_len=LONGEST,
        num_gpu_blocks_override=200,
        block_size=BLOCK,
        enable_prefix_caching=True,
        scheduler_cls="gpu_runner.scheduler.PolicyScheduler",
        additional_config={KEY: {"policy": policy, "record": True, "prometheus": False}},
    )


@pytest.fixture(scope="module")
def engine(model: Path) -> Iterator[Engine]:
    with open_engine(options(model, "fcfs+fixed:chunk=64")) as started:
        started.warm_up()
        yield started


Done = tuple[Trace, LoggedRun, Sent]


@pytest.fixture(scope="module")
def done(engine: Engine) -> Done:
    return replay(asked(), engine)


def test_every_request_ends_with_all_its_tokens(done: Done) -> None:
    trace, run, sent = done
    requests = run.requests
    assert sent.stopped is None
    assert len(trace) == N
    assert requests["outcome"].tolist() == [REJECTED if i == 20 else FINISHED for i in range(N)]
    whole = requests["outcome"] == FINISHED
    assert "exceed max_model_len" in run.reasons[20]
    np.testing.assert_array_equal(requests["generated_tokens"][whole], asked().output_tokens[whole])
    assert (abs(trace.arrival_ns - asked().arrival_ns) < 256).all()


def test_times_are_in_order(done: Done) -> None:
    requests, steps = done[1].requests, done[1].steps
    whole = requests["outcome"] == FINISHED
    times = [requests[c][whole] for c in ("arrival_ns", "first_scheduled_ns", "first_token_ns", "finished_ns")]
    assert all((a <= b).all() for a, b in pairwise(times))
    ends = steps["start_ns"] + steps["duration_ns"]
    assert (steps["duration_ns"] > 0).all()
    assert (steps["start_ns"][1:] >= ends[:-1]).all()
    # A request is seen by the first step after its arrival, or the one after where it came while that was decided.
    first = np.searchsorted(steps["start_ns"], requests["arrival_ns"][whole])
    assert set((requests["visible_step"][whole] - first).tolist()) <= {0, 1}
    assert (steps["start_ns"][requests["visible_step"][whole]] >= requests["arrival_ns"][whole]).all()


def test_tokens_are_conserved(done: Done) -> None:
    trace, run, _ = done
    prefilled: Counter[int] = Counter()
    for request, tokens in zip(run.chunks["request"].tolist(), run.chunks["tokens"].tolist(), strict=True):
        prefilled[request] += tokens
    for i in np.flatnonzero(run.requests["outcome"] == FINISHED).tolist():
        assert prefilled[i] == trace.prompt_tokens[i] - run.requests["cached_tokens"][i]
    assert sum(prefilled.values()) == run.steps["prefill_tokens"].sum()


def test_each_decode_is_one_token_in_one_step(done: Done) -> None:
    _, run, _ = done
    batches = batch_table(run)
    counts: dict[int, Counter[str]] = defaultdict(Counter)
    chunks = set(zip(run.chunks["step"].tolist(), run.chunks["request"].tolist(), strict=True))
    for step, request, tokens in zip(*(batches[c].tolist() for c in ("step", "request", "tokens")), strict=True):
        if (step, request) in chunks:
            counts[step]["prefill"] += tokens
            counts[step]["prefills"] += 1
        else:
            assert tokens == 1
            counts[step]["decode"] += 1
    for k in range(len(run.steps["start_ns"])):
        assert counts[k]["decode"] == run.steps["n_decode"][k]
        assert counts[k]["prefill"] == run.steps["prefill_tokens"][k] <= 64
        assert counts[k]["prefills"] == run.steps["n_prefill"][k] <= 1
    assert (run.steps["n_decode"] + run.steps["n_prefill"]).max() <= 8
    decodes = run.requests["generated_tokens"][run.requests["outcome"] == FINISHED] - 1
    assert run.steps["n_decode"].sum() == decodes.sum()


def test_the_prefix_cache_finds_what_the_contents_share(done: Done) -> None:
    """Of each shared beginning two whole blocks, once somebody has computed them; nothing else."""
    cached = done[1].requests["cached_tokens"]
    assert set(cached.tolist()) <= {-1, 0, BLOCK, 2 * BLOCK}
    shares = np.array([i % 2 == 1 for i in range(N)])
    assert (cached[~shares] <= 0).all()
    assert np.count_nonzero(cached == 2 * BLOCK) >= shares.sum() - 3 * 8


def test_the_run_is_stored_as_any_other(done: Done, engine: Engine, tmp_path: Path) -> None:
    trace, run, sent = done
    info = {"engine": engine.provenance(), "replay": sent.facts()}
    write_run(tmp_path / "run", trace, run, info, batches=True)
    stored = read_run(tmp_path / "run")
    for column in ("ttft_ns", "jct_ns", "itl_max_ns"):
        np.testing.assert_array_equal(stored.requests[column], run.requests[column])
    assert stored.info["engine"]["kv_blocks"] == 200
    assert stored.info["engine"]["block_size"] == BLOCK
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary == summarise(stored.requests, stored.steps, Objectives())
    assert summary["finished"] == N - 1


def test_a_second_replay_starts_afresh_and_all_at_once_is_seen_at_once(engine: Engine) -> None:
    engine.reset_prefix_cache()
    trace = paced(asked(), saturate=True)
    _, run, sent = replay(trace, engine)
    assert sent.count == N
    assert (run.requests["visible_step"][run.requests["outcome"] == FINISHED] == 0).all()
    assert run.steps["waiting"][0] == N - 1
    assert (run.requests["cached_tokens"][:2] <= 0).all()


def test_an_interrupt_keeps_what_was_measured_and_the_engine_can_be_closed(engine: Engine) -> None:
    def stop(sent: int, finished: int) -> None:
        if finished >= 10:
            raise KeyboardInterrupt

    trace, run, sent = replay(paced(asked(), saturate=True), engine, progress=stop)
    assert sent.stopped == "interrupted"
    assert len(trace) == N
    assert np.count_nonzero(run.requests["outcome"] == FINISHED) >= 10
    engine.abort([str(i) for i in range(N)])
    while engine.busy:
        engine.step()


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"model": "/there/is/none"}, "there is no model folder /there/is/none"),
        ({"max_num_batched_tokens": 4}, r"max_num_batched_tokens \(4\)"),
        ({"more": {"no_such": 1}}, "no engine argument no_such"),
        ({"additional_config": {KEY: {"policy": "fcsf+full"}}}, "did you mean fcfs"),
        ({"additional_config": {KEY: {"policy": "sloweave"}}}, "cost_model"),
    ],
)
def test_an_engine_that_cannot_start_says_why(model: Path, changes: dict[str, object], told: str) -> None:
    import dataclasses

    with pytest.raises(EngineError, match=told) as caught:
        open_engine(dataclasses.replace(options(model, "fcfs+full"), **changes)).close()
    assert "\n" not in str(caught.value)
