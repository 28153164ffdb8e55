"""``prefillsim validate --engine hybrid`` with a real model: three levels in one report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from experiments.cli import main
from gpu_runner.model import tiny_llama

MODEL = ["--load-format", "dummy", "--dtype", "float32", "--engine", "hybrid", "--kv-blocks", "30"]
WORKLOAD = (
    "post-recommendation:users=3,requests_per_user=4,profile_mean=200,profile_std=40,clip=100-300,post_tokens=20,"
    "rate=40"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("model"), layers=1, hidden=64, max_len=512)


@pytest.fixture(scope="module")
def profile(folder: Path) -> Path:
    out = folder / "p.parquet"
    levels = ["--prefill-tokens", "20,80,150,300", "--prefill-contexts", "0,100,200", "--repeats", "2"]
    assert main(["profile", "--model", str(folder), *MODEL, *levels, "-o", str(out)]) == 0
    return out


def validated(folder: Path, out: Path, capsys: pytest.CaptureFixture[str], *more: str) -> list[dict[str, Any]]:
    """Return the sections, in which schedules and hits are right."""
    capsys.readouterr()
    code = main(["validate", "--model", str(folder), *MODEL, "--repeats", "1", *more, "--out", str(out), "--json"])
    told: dict[str, Any] = json.loads(capsys.readouterr().out)
    # How right the times are is the machine's affair; who is served when, and from what, is not.
    assert code == (0 if told["passed"] else 1)
    sections: list[dict[str, Any]] = told["sections"]
    for section in sections:
        if section["level"] == "L2":
            assert section["passed"], section
            for run in section["runs"]:
                assert (run["steps"], run["identical_steps"], run["other_hits"]) == (12, 12, 0)
            # Two profiles fit the store.
            assert sum(run["cached_tokens"] for run in section["runs"]) > 500
    return sections


def test_three_levels_in_one_report(
    folder: Path, profile: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "report"
    more = ["--workload", WORKLOAD, "--rho", "0.6", "-p", "fcfs+full", "-p", "prefillonly"]
    sections = validated(folder, out, capsys, "--profile", str(profile), *more)
    assert [s["level"] for s in sections] == ["L1", *["L2", "L3", "L3", "L3"] * 2]
    assert sections[3]["title"] == "fcfs+full, all at once"
    assert all(speed > 0 for speed in sections[3]["speeds"])
    assert (out / "report.html").exists()

    model = ["--cost-model", str(out / "cost-model.json"), "--suffix", "discard"]
    more = ["--workload", f"{WORKLOAD},arrivals=all-at-once", "-p", "srjf-static+full"]
    sections = validated(folder, tmp_path / "discarding", capsys, *model, *more)
    assert [s["level"] for s in sections] == ["L2", "L3", "L3"]
