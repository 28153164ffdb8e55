"""``prefillsim advise``: what it writes, says and refuses, and that it goes on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from experiments import run as running
from experiments.recorded import Swept, read_any
from tests.experiments.advising import MIXED
from tests.experiments.conftest import Cli

SMALL = ("advise", *MIXED, "--rate", "60", "--replicas", "1", "--limit", "30", "--attainment", "80")


def told(document: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in document.items() if key not in ("out", "files")}


def test_it_goes_on_after_an_interruption(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("experiments.advice.shown._picture", lambda advice, folder: [])
    whole = cli(*SMALL, "--out", "whole")
    simulate, left = running.simulate_cell, [20]

    def stopping(cell: Any) -> Any:
        left[0] -= 1
        if left[0] < 0:
            raise KeyboardInterrupt
        return simulate(cell)

    monkeypatch.setattr(running, "simulate_cell", stopping)
    stopped = cli(*SMALL, "--out", "o")
    assert stopped.code == 130
    assert "20 of 32 runs are finished and kept in o/tuning; go on with: prefillsim advise" in stopped.err
    assert "--out o --resume" in stopped.err
    left[0] = whole.json["runs"] - 20
    again = cli(*SMALL, "--out", "o", "--resume")
    assert again.code == whole.code
    assert left == [0]
    assert told(again.json) == told(whole.json)


def test_files_picture_and_the_words_of_a_terminal(cli: Cli, light_pictures: None) -> None:
    arguments = [a for a in SMALL if a != "--json"]
    result = cli(*arguments, "--out", "o")
    assert result.code in (0, 1), result.err
    for text in ("About ", "vllm serve MODEL", "Surely", "attains"):
        assert text in result.out
    files = {f"advice.{suffix}" for suffix in ("json", "md", "csv", "png", "pdf")}
    assert {path.name for path in Path("o").iterdir()} == files | {"tried.csv", "tuning", "fresh"}
    stored = json.loads(Path("o/advice.json").read_text())
    assert stored["answer"][0] in result.out
    assert stored["answer"][0] in Path("o/advice.md").read_text()
    sweep = read_any(Path("o/fresh"))
    assert isinstance(sweep, Swept)
    assert {cell.label for cell in sweep.cells} == {f["policy"] for f in stored["finalists"]}


def test_the_rate_is_the_one_that_was_asked_for(cli: Cli) -> None:
    assert cli("advise", *MIXED, "--rate", "33", "--dry-run").json["look"]["rate"] == 33
    assert cli("advise", *MIXED, "--rate", "33", "--rate-scale", "2", "--dry-run").json["look"]["rate"] == 66


def test_a_dry_run_makes_nothing(cli: Cli) -> None:
    result = cli("advise", *MIXED, "--dry-run")
    assert result.code == 0, result.err
    assert result.json["candidates"][0] == "vllm-default"
    assert result.json["runs"] == result.json["tuning_runs"] + result.json["fresh_runs"]
    assert not list(Path().iterdir())


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("--workload", "post-recommendation", "--limit", "20"), "advise needs objectives, like --slo"),
        ((*MIXED, "--attainment", "0.9"), "--attainment 0.9 should be a percentage"),
        ((*MIXED, "--seeds", "2"), "so few seeds tell nothing"),
        ((*MIXED, "--limit", "10"), "6 seeds of 10 requests cannot tell whether 90 %"),
        ((*MIXED, "-p", "sloweav"), "did you mean sloweave"),
        ((*MIXED, "-p", "fcfs+token-budget:budget=64"), "budget=64 is below"),
        ((*MIXED, "--cost-model", "h100"), "h100"),
        ((*MIXED, "--set", "sweep.rate=[1,2]"), "advise finds out what to vary, but [sweep] has rate"),
        ((*MIXED, "--out", "full"), "--out full exists and is not empty"),
        (("--trace", "nowhere.csv", "--slo", "ttft:1000"), "nowhere.csv"),
        (("--trace", "at-once.csv", "--slo", "ttft:1000"), "arrive all at once"),
    ],
)
def test_wrong_inputs_are_one_sentence(cli: Cli, arguments: tuple[str, ...], reason: str) -> None:
    Path("full").mkdir()
    Path("full/file").touch()
    rows = "2023-11-16 18:15:00.0000000,200,3\n" * 5
    Path("at-once.csv").write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + rows)
    result = cli("advise", *arguments)
    assert result.code == 2
    assert reason in result.err
    assert result.err.count("\n") == 1
    assert not Path("runs").exists()
