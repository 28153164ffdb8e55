from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from costmodels.profile import read_profile
from experiments.calibration import calibrate
from experiments.cli import main
from tests.gpu_runner.fake_steps import FakeSteps, noisy


class Steps(FakeSteps):
    stop_at = -1
    made: Steps
    asked: Any = None

    def __init__(self, engine: Any) -> None:
        super().__init__(noise=noisy(3, 0.01), key={"options": engine.options})
        Steps.made = self

    @property
    def gpus(self) -> list[str]:
        return []

    def step(self, budget: int) -> Any:
        if self.steps == self.stop_at:
            raise KeyboardInterrupt
        return super().step(budget)


@pytest.fixture(autouse=True)
def _fake_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def opened(options: Any) -> Iterator[Any]:
        Steps.asked = options
        yield SimpleNamespace(options={"dtype": options.dtype}, vocab=500, warm_up=lambda: None)

    monkeypatch.setattr("gpu_runner.engine.open_engine", opened)
    monkeypatch.setattr("gpu_runner.profiling.vllm_steps.VllmSteps", Steps)


SMALL = ["--decodes", "0,1,8", "--decode-contexts", "60,500", "--prefill-tokens", "0,30,300", "--repeats", "2"]


def run(folder: Path, *more: str) -> int:
    return main(["profile", "--model", "m", "-o", str(folder / "p.parquet"), *SMALL, *more])


def test_a_profile_can_be_calibrated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("experiments.calibration.PAIRS", 1000)
    assert run(tmp_path) == 0
    text = capsys.readouterr().out
    assert "no energy: the engine runs on no NVIDIA GPU" in text
    made = calibrate(read_profile(tmp_path / "p.parquet"), "m", splits=0)
    assert made.scores["linear"].mae < 0.02
    assert made.picked == "linear"
    json.dumps(made.card("a test"))


def test_json_tells_what_the_table_holds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path, "--json", "--max-num-seqs", "7", "--engine-arg", "enforce_eager=true") == 0
    told = json.loads(capsys.readouterr().out)
    found = read_profile(tmp_path / "p.parquet")
    assert told["rows"] == len(found)
    assert told["incomplete_cells"] == 0
    assert told["quality"]["drift_cells"] == 20
    assert found.provenance["grid"]["decodes"] == [0, 1, 8]
    assert found.provenance["command"].startswith("prefillsim")
    assert (Steps.asked.max_num_seqs, dict(Steps.asked.more)) == (7, {"enforce_eager": True})
    assert (Steps.asked.enable_prefix_caching, Steps.asked.async_scheduling) == (True, False)


def test_ctrl_c_keeps_what_is_there_and_resume_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as m:
        m.setattr(Steps, "stop_at", 130)
        assert run(tmp_path) == 130
    assert "--resume" in capsys.readouterr().err
    kept = read_profile(tmp_path / "p.parquet")
    assert run(tmp_path) == 2
    assert "exists" in capsys.readouterr().err
    assert run(tmp_path, "--resume", "--dtype", "bfloat16") == 2
    assert 'options.dtype: "auto" -> "bfloat16"' in capsys.readouterr().err
    assert run(tmp_path, "--resume") == 0
    whole = read_profile(tmp_path / "p.parquet")
    assert len(whole) > len(kept)
    assert whole.frame["duration_ns"].tolist()[: len(kept)] == kept.frame["duration_ns"].tolist()


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (["--grid", "ful"], "unknown grid 'ful'; did you mean full?"),
        (["--decodes", "1,x"], "--decodes 1,x is not a list of whole numbers"),
        (["--decodes", "-1"], "--decodes has -1; it must be at least 0"),
        (["--decodes", "0", "--prefill-tokens", "0"], "no step has any work"),
        (["--engine", "vlm"], "unknown engine 'vlm'; did you mean vllm?"),
        (["--engine-arg", "x"], "--engine-arg 'x' should read NAME=VALUE"),
        (["--resume"], "to go on with; leave out --resume"),
        (["--repeats", "0"], "greater than or equal to 1"),
        (["-o", "p.csv"], "must end in .parquet"),
        (["--decodes", "4000", "--prefill-tokens", "0"], "no cell of the grid fits the engine; the first needs more"),
        (["--decodes", "1", "--decode-contexts", "60", "--prefill-tokens", "0"], "one shape"),
    ],
)
def test_mistakes_are_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], more: list[str], says: str
) -> None:
    assert run(tmp_path, *more) == 2
    error = capsys.readouterr().err
    assert says in error
    assert len(error.strip().splitlines()) == 1
