"""The hybrid engine with a real model: its order and hits are the simulator's, and its answers the plain model's."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from costmodels.linear import LinearCost
from costmodels.profile import FEATURES, read_profile
from experiments.cli import main
from gpu_runner.engine import EngineError
from gpu_runner.hybrid.bench import HybridBench
from gpu_runner.hybrid.engine import GIB, HybridEngine
from gpu_runner.hybrid.options import HybridOptions, open_hybrid
from gpu_runner.hybrid.scoring import Question
from gpu_runner.hybrid.sharing import shared_tokens
from gpu_runner.model import tiny_llama
from gpu_runner.profiling.bench import features, wanted
from gpu_runner.profiling.grid import Cell
from gpu_runner.prompts import prompt_ids
from gpu_runner.replay import paced, replay
from gpu_runner.settings import Settings
from gpu_runner.validate.replayed import simulate_recorded
from policies.spec import parse_policy
from sim.records import FINISHED
from sim.store import read_run
from tests.gpu_runner.test_hybrid_scheduler import made, order
from tests.hybrid.small import plain_logits, relative
from traces import Trace

LONGEST = 512


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("model"), layers=1, hidden=64, max_len=LONGEST)


@contextmanager
def opened(folder: Path, policy: str = "prefillonly", discard: bool = False, **more: Any) -> Iterator[HybridEngine]:
    options = HybridOptions(
        str(folder), **{"dtype": "float32", "load_format": "dummy", "blocks": 40, "device": "cpu", "chunk": 64, **more}
    )
    with open_hybrid(options, Settings(policy=policy, discard=discard, record=True)) as engine:
        yield engine


def asked(saturate: bool) -> Trace:
    """Users whose prompts begin alike, and more blocks than the store has; no prompt ends with a block's end."""
    rng = np.random.default_rng(5)
    requests = []
    for i in range(30):
        shared, own = int(rng.integers(60, 250)), int(rng.integers(5, 100))
        requests.append((i * 4_000_000, int(rng.integers(0, 4)), shared, own + ((shared + own) % 16 == 0)))
    return paced(made(requests), saturate=saturate)


@pytest.mark.parametrize("saturate", [True, False])
@pytest.mark.parametrize(
    ("policy", "discard"),
    [("fcfs+full", False), ("srjf-static+full", False), ("prefillonly", False), ("prefillonly", True)],
)
def test_order_and_hits_are_the_simulators(folder: Path, policy: str, discard: bool, saturate: bool) -> None:
    trace = asked(saturate)
    with opened(folder, policy, discard) as engine:
        if discard:
            engine.keep_tokens = {str(i): n for i, n in enumerate(shared_tokens(trace, 16))}
        engine.warm_up()
        came, run, sent = replay(trace, engine)
        limits, memory = engine.simulated
    assert sent.stopped is None
    assert run.requests["outcome"].tolist() == [FINISHED] * len(trace)
    # The simulator's first decision is at the first arrival.
    late = int(run.steps["decided_ns"][0] - came.arrival_ns[0])
    simulated = simulate_recorded(
        came,
        parse_policy(policy),
        decided_ns=run.steps["decided_ns"] - late,
        duration_ns=run.steps["duration_ns"],
        visible_step=run.requests["visible_step"],
        predictor=LinearCost(),
        limits=limits,
        cache=memory.build(came),
    )
    assert order(run) == order(simulated)
    np.testing.assert_array_equal(run.requests["cached_tokens"], simulated.requests["cached_tokens"])
    np.testing.assert_array_equal(run.requests["finished_ns"], simulated.requests["finished_ns"] + late)
    assert run.requests["cached_tokens"].max() >= 48
    assert (run.steps["duration_ns"] > 0).all()


def test_answers_are_the_plain_models(folder: Path) -> None:
    """Whatever was cached: probabilities from logits that are those of a forward pass without any of it."""
    trace = asked(saturate=True)
    with opened(folder) as engine:
        for i in range(len(trace)):
            engine.add(str(i), prompt_ids(trace, i, engine.vocab), question=Question((3, 900), top=5))
        while engine.busy:
            engine.step()
        cached = 0
        for i in range(len(trace)):
            told = engine.answers.pop(str(i)).answer
            assert told is not None
            ids = torch.tensor(prompt_ids(trace, i, engine.vocab))
            logits = engine.runner.prefiller.prefill(ids)
            logprobs = torch.log_softmax(logits.double(), -1)
            cached += told.cached_tokens
            for token, value in told.logprobs.items():
                assert value == pytest.approx(float(logprobs[token]), abs=1e-4)
            assert sum(told.probabilities.values()) == pytest.approx(1)
        assert cached > 500


def test_the_loaded_model_is_the_folders(folder: Path) -> None:
    from gpu_runner.hybrid.loading import load_model

    options = HybridOptions(str(folder), dtype="float32", load_format="dummy", seed=4)
    model = load_model(options, "cpu")
    ids = torch.arange(50)
    with opened(folder, seed=4) as engine:
        assert relative(engine.runner.prefiller.prefill(ids), plain_logits(model, ids)) <= 1e-5


def test_weights_are_read(folder: Path, tmp_path: Path) -> None:
    from gpu_runner.hybrid.loading import load_model

    model = load_model(HybridOptions(str(folder), dtype="float32", load_format="dummy", seed=8), "cpu")
    model.save_pretrained(tmp_path)
    ids = torch.arange(50)
    with opened(tmp_path, load_format="auto") as engine:
        assert relative(engine.runner.prefiller.prefill(ids), plain_logits(model, ids)) <= 1e-5


def test_what_cannot_run_is_refused(folder: Path) -> None:
    with opened(folder) as engine:
        for ids, outputs, told in (
            ([1], 2, "2 output tokens are asked for"),
            ([], 1, "the prompt is empty"),
            ([1] * LONGEST, 1, "512 prompt and 1 output tokens exceed max_model_len 512"),
        ):
            with pytest.raises(ValueError, match=told):
                engine.add("x", ids, outputs)
        assert not engine.busy
    for more, told in (
        ({"max_model_len": 5000}, "the model knows 512 positions"),
        ({"memory_gib": 1e-6, "blocks": None}, "a prompt of 512 tokens takes"),
        ({"dtype": "float23"}, "unknown dtype 'float23'; did you mean float32"),
    ):
        with pytest.raises(EngineError, match=told), opened(folder, **more):
            pass
    with pytest.raises(EngineError, match="there is no model folder /nowhere"), opened(Path("/nowhere")):
        pass
    with pytest.raises(EngineError, match="splits prompts"), opened(folder, "vllm-default"):
        pass


def test_the_profile_run_gives_the_rest_to_the_store(folder: Path) -> None:
    sizes = []
    for gib in (0.01, 0.02):
        with opened(folder, blocks=None, memory_gib=gib) as engine:
            sizes.append(engine.runner.store.capacity)
            block = engine.runner.store.shape.block_bytes
    assert (sizes[1] - sizes[0]) * block == pytest.approx(0.01 * GIB, abs=block)
    assert sizes[0] * block < 0.01 * GIB


@pytest.mark.parametrize("discard", [False, True])
def test_each_measured_prefill_is_the_one_wanted(folder: Path, discard: bool) -> None:
    with opened(folder, "fcfs+full", discard) as engine:
        bench = HybridBench(engine)
        rng = np.random.default_rng(0)
        for _ in range(30):
            cell = Cell(0, 0, 1, int(rng.integers(1, 200)), 16 * int(rng.integers(0, 18)))
            assert bench.why_not(cell) is None
            sample = bench.measure(cell)
            assert sample.features == features(wanted(cell))
            assert sample.duration_ns > 0
        assert "prefills only" in str(bench.why_not(Cell(1, 17, 0, 0, 0)))
        assert "max_model_len" in str(bench.why_not(Cell(0, 0, 1, 300, 256)))


SMALL = ["--load-format", "dummy", "--dtype", "float32", "--kv-blocks", "40", "--engine", "hybrid"]
WORKLOAD = (
    "post-recommendation:users=3,requests_per_user=4,profile_mean=200,profile_std=40,clip=none,post_tokens=20,"
    "arrivals=all-at-once"
)


def test_a_replay_makes_the_usual_tables(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    policies = ["-p", "fcfs+full", "-p", "prefillonly"]
    assert main(["replay", "--model", str(folder), *SMALL, "--workload", WORKLOAD, *policies, "--out", str(out)]) == 0
    for name in ("fcfs+full", "prefillonly"):
        stored = read_run(out / name)
        assert stored.requests["outcome"].tolist() == [FINISHED] * 12
        assert stored.requests["generated_tokens"].tolist() == [1] * 12
        assert stored.info["host"] == "hybrid"
        assert stored.info["resolved"]["memory"]["regime"] == "store"
        assert stored.info["resolved"]["memory"]["blocks"] == 40
        assert stored.info["engine"]["kv_blocks"] == 40
    # One profile after the other fits the store, all three do not: what is cached goes first, and all of it is hit.
    assert read_run(out / "prefillonly").requests["cached_tokens"].astype(bool).sum() == 9


def test_a_replay_refuses_longer_answers(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = ["--out", str(tmp_path / "run")]
    asked = ["replay", "--model", str(folder), *SMALL, "--workload", "chat", "--limit", "3", "-p", "fcfs+full", *out]
    assert main(asked) == 2
    assert "answers with one token" in capsys.readouterr().err
    assert main([*asked, "--max-num-seqs", "4"]) == 2
    assert "--max-num-seqs is vLLM's" in capsys.readouterr().err


def test_a_profile_has_prefills_only(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "p.parquet"
    levels = ["--prefill-tokens", "20,100,200", "--prefill-contexts", "0,64,200", "--repeats", "2"]
    assert main(["profile", "--model", str(folder), *SMALL, *levels, "-o", str(out), "--json"]) == 0
    frame = read_profile(out).frame
    assert set(frame.engine) == {"hybrid"}
    shapes = frame[list(FEATURES)].drop_duplicates()
    assert len(shapes) == 9
    assert (shapes.n_decode == 0).all()
    assert set(zip(shapes.prefill_tokens, shapes.prefill_pairs, strict=True)) == {
        (c, c * k + c * (c + 1) // 2) for c in (20, 100, 200) for k in (0, 64, 192)
    }
    assert json.loads(capsys.readouterr().out)["incomplete_cells"] == 0
