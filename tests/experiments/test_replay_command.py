"""``prefillsim replay`` with an engine of one request at a time, and against a server of the standard library."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from experiments.replays import engine_arguments
from gpu_runner.engine import EngineOptions
from gpu_runner.replay import replay
from sim.store import read_run
from tests.engine.costs import PAPER
from tests.experiments.conftest import Cli
from tests.gpu_runner.fake_engine import FakeEngine
from tests.gpu_runner.fake_server import FakeServer, fake_server
from traces import Trace

FILE = "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(
    f"2023-11-16 18:15:46.{5 * i:03}0000,{20 + i},{2 + i % 3}\n" for i in range(12)
)


class StartedEngine(FakeEngine):
    """The fake engine with all that the command asks of a real one."""

    opened: list[EngineOptions] = []  # noqa: RUF012
    stop_at: int | None = None
    fallen = False

    def __init__(self, options: EngineOptions) -> None:
        super().__init__(PAPER, options.max_model_len or 4096, self._stop)
        self.opened.append(options)
        self.core = SimpleNamespace(batch_queue_size=1)
        self.config = SimpleNamespace(
            scheduler_config=SimpleNamespace(max_num_seqs=options.max_num_seqs or 1),
            cache_config=SimpleNamespace(num_gpu_blocks=100, block_size=16, enable_prefix_caching=False),
        )

    def _stop(self, step: int) -> None:
        if step == self.stop_at:
            raise RuntimeError("boom")

    def provenance(self) -> dict[str, Any]:
        return {"vllm": "fake", "kv_blocks": 100, "block_size": 16, "pipeline_depth": 1}

    def warm_up(self) -> None:
        pass

    def __enter__(self) -> StartedEngine:
        return self

    def __exit__(self, *_: object) -> None:
        pass


@pytest.fixture
def engines(monkeypatch: pytest.MonkeyPatch) -> list[EngineOptions]:
    """How engines were started, on a clock that needs no waiting."""

    def replayed(trace: Trace, engine: StartedEngine, progress: Any) -> Any:
        return replay(trace, engine, clock=engine.virtual, progress=progress)

    StartedEngine.opened, StartedEngine.stop_at = [], None
    monkeypatch.setattr("experiments.replays.open_engine", StartedEngine)
    monkeypatch.setattr("experiments.replays.replay", replayed)
    return StartedEngine.opened


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with fake_server() as running:
        yield running


@pytest.fixture
def trace(tmp_path: Path) -> str:
    path = tmp_path / "t.csv"
    path.write_text(FILE)
    return str(path)


OPTIONS = ("--model", "somewhere", "--max-num-seqs", "1", "--max-model-len", "1000")


def test_policies_are_replayed_one_after_the_other(
    cli: Cli, engines: list[EngineOptions], trace: str, tmp_path: Path
) -> None:
    result = cli(
        "replay", "--trace", trace, *OPTIONS, "-p", "fcfs+full", "-p", "sarathi:budget=64", "--out", "o", "--json"
    )
    assert (result.code, result.err) == (0, "")
    replays = result.json["replays"]
    assert [r["policy"] for r in replays] == ["fcfs+full", "sarathi:budget=64"]
    assert [r["out"] for r in replays] == ["o/fcfs+full", "o/sarathi_budget=64"]
    for r, options in zip(replays, engines, strict=True):
        stored = read_run(tmp_path / r["out"])
        assert stored.info["host"] == "vllm"
        assert stored.info["policy"] == r["policy"]
        assert stored.info["engine"]["vllm"] == "fake"
        assert stored.info["resolved"]["memory"]["blocks"] == 100
        assert stored.info["replay"] == {
            "speed": 1.0,
            "saturate": False,
            "warm_up_s": 0.0,
            "window_s": None,
            **r["replay"],
        }
        assert r["summary"]["finished"] == r["replay"]["sent"] == 12
        settings = options.additional_config["prefillsim"]
        assert (settings["policy"], settings["record"]) == (r["policy"], True)
    # One budget for all, so that the engines are compiled alike: the largest step of any policy.
    assert [options.max_num_batched_tokens for options in engines] == [1001, 1001]
    counted = cli("replay", "--trace", trace, *OPTIONS, "-p", "fcfs+full", "--warm-up", "0.5", "--out", "w", "--json")
    arrived = read_run(tmp_path / "w").requests["arrival_ns"]
    assert counted.json["replays"][0]["summary"]["arrived"] == (arrived >= 500_000_000).sum() < len(arrived) == 12


def test_options_reach_the_engine(cli: Cli, engines: list[EngineOptions], trace: str) -> None:
    result = cli(
        "replay", "--trace", trace, *OPTIONS, "-p", "sloweave:tpot=25", "--cost-model", "sloweave-paper",
        "--speed", "2",
        "--kv-blocks", "50", "--kv-block-size", "32", "--no-prefix-cache", "--pipeline-depth", "2", "--seed", "3",
        "--dtype", "float32", "--load-format", "dummy", "--max-num-batched-tokens", "2000", "--slo", "ttft:1000",
        "--engine-arg", "gpu-memory-utilization=0.5", "--out", "o",
    )  # fmt: skip
    assert result.code == 0
    assert "results: o" in result.out
    (options,) = engines
    assert (options.num_gpu_blocks_override, options.block_size, options.enable_prefix_caching) == (50, 32, False)
    assert (options.async_scheduling, options.dtype, options.load_format) == (True, "float32", "dummy")
    assert (options.max_num_batched_tokens, options.max_num_seqs, options.max_model_len) == (2000, 1, 1000)
    assert options.more == {"gpu_memory_utilization": 0.5}
    settings = options.additional_config["prefillsim"]
    assert (settings["cost_model"], settings["slo"]) == ("sloweave-paper", "ttft:1000")
    arrivals = read_run(Path("o")).requests["arrival_ns"]
    assert abs(int(arrivals[-1]) - 27_500_000) < 256


def test_what_the_user_did_not_say_is_left_to_the_engine(cli: Cli, engines: list[EngineOptions], trace: str) -> None:
    assert cli("replay", "--trace", trace, "--model", "somewhere", "-p", "fcfs+full", "--saturate").code == 0
    (options,) = engines
    for name in ("num_gpu_blocks_override", "block_size", "async_scheduling", "max_num_batched_tokens", "max_num_seqs"):
        assert getattr(options, name) is None
    assert options.enable_prefix_caching is True
    (folder,) = Path("runs").iterdir()
    assert read_run(folder).requests["arrival_ns"].tolist() == [0] * 12


def test_an_engine_that_fails_keeps_what_was_measured(cli: Cli, engines: list[EngineOptions], trace: str) -> None:
    StartedEngine.stop_at = 9
    result = cli("replay", "--trace", trace, *OPTIONS, "-p", "fcfs+full", "-p", "prefillonly", "--out", "o")
    assert result.code == 1
    assert "the engine failed: RuntimeError: boom" in result.err
    stored = read_run(Path("o/fcfs+full"))
    assert len(stored.steps["start_ns"]) == 9
    assert stored.info["replay"]["stopped"] == "the engine failed: RuntimeError: boom"
    assert len(engines) == 1


def test_a_live_server(cli: Cli, server: FakeServer, trace: str) -> None:
    result = cli("replay", "--trace", trace, "--server", server.url, "--slo", "ttft:5000", "--out", "o", "--json")
    assert result.code == 0
    (done,) = result.json["replays"]
    assert (done["summary"]["finished"], done["summary"]["slo_attainment"], done["summary"]["steps"]) == (12, 1, None)
    assert done["files"] == ["requests.parquet", "run.json", "steps.parquet", "summary.json", "tokens.parquet"]
    stored = read_run(Path("o"))
    assert stored.info["host"] == "server"
    assert stored.info["server"] == {"url": server.url, "model": "tiny", "max_model_len": 4096}
    assert (stored.requests["sent_ns"] >= stored.requests["arrival_ns"]).all()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["-p", "fcfs+full"], "give --model DIR to run one, or --server URL"),
        (["--model", "m"], "no policy"),
        (["--model", "m", "-p", "fcsf+full"], "did you mean fcfs"),
        (["--model", "m", "-p", "sloweave:tpot=25"], "give --cost-model"),
        (["--model", "m", "-p", "sloweave", "--cost-model", "sloweave-paper"], "sloweave"),
        (["--model", "m", "-p", "fcfs+full", "--speed", "0"], "positive number"),
        (["--model", "m", "-p", "fcfs+full", "--set", "cluster.replicas=2"], "one engine"),
        (["--model", "m", "-p", "fcfs+full", "--set", "engine.horizon=2"], "leave out the horizon"),
        (["--model", "m", "-p", "fcfs+full", "--engine-arg", "x"], "should read NAME=VALUE"),
        (["--server", "http://127.0.0.1:1"], "no server answers at http://127.0.0.1:1"),
        (["--server", "http://127.0.0.1:1", "-p", "fcfs+full", "-p", "prefillonly"], "at most one -p"),
    ],
)
def test_mistakes_are_one_sentence(
    cli: Cli, engines: list[EngineOptions], trace: str, arguments: list[str], told: str
) -> None:
    result = cli("replay", "--trace", trace, *arguments, "--out", "o")
    assert result.code == 2
    assert told in result.err
    assert result.err.count("\n") == 1
    assert not engines
    assert not Path("o").exists()


def test_engine_arguments_are_json_or_words() -> None:
    assert engine_arguments(["--a-b=1", "c=x=y", 'd={"e": [true]}']) == {"a_b": 1, "c": "x=y", "d": {"e": [True]}}
