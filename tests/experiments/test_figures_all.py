"""`prefillsim figures findings` and `figures all`: what is run, what is kept, what is skipped, and what differs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from experiments.findings import catalogue
from experiments.findings import question as question_module
from experiments.findings.question import Question
from experiments.findings.table import Table
from experiments.tables import Rows
from tests.experiments.conftest import Cli

TOML = """
name = "NAME"
policies = ["fcfs+full", "sloweave"]
seeds = 2

[trace]
workload = "chat"
limit = 20

[sweep]
tpot = [10, 25]
"""


def answer(table: Table) -> str:
    return f"There are {len(table)} runs."


def drawn(table: Table) -> Rows:
    return table.means(["policy", "tpot"], ["goodput"])


def draw(rows: Rows, figure) -> None:
    figure.subplots().plot([row["goodput"] for row in rows])


def question(name: str, place: int) -> Question:
    return Question(name, place, f"What of {name}?", ("goodput",), drawn, draw, answer)


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Question, ...]:
    """Two small questions; a third needs a trace that is not there, and the runs of a fourth fail."""
    folder = tmp_path / "questions"
    folder.mkdir()
    texts = {
        "one": TOML,
        "two": TOML.replace("limit = 20", "limit = 10"),
        "elsewhere": TOML.replace('workload = "chat"', 'file = "../nowhere/trace.csv"'),
        "broken": TOML.replace("limit = 20", "limit = 20\nrate = 1e-300"),
    }
    for name, text in texts.items():
        (folder / f"{name}.toml").write_text(text.replace("NAME", name))
    monkeypatch.setattr(question_module, "FOLDER", folder)
    made = tuple(question(name, place) for place, name in enumerate(texts))
    monkeypatch.setattr(catalogue, "questions", lambda: made)
    return made


def test_findings_are_answered_on_a_page_whose_links_lead_somewhere(
    cli: Cli, asked: tuple[Question, ...], tmp_path: Path
) -> None:
    done = cli("figures", "findings", "one", "two", "one", "--jobs", "1", "--out", "out")
    assert done.code == 0, done.err
    assert "There are 8 runs." in done.out
    out = tmp_path / "out"
    text = (out / "findings.md").read_text()
    assert text.index("## What of one?") < text.index("## What of two?")
    targets = [t for t in re.findall(r"\]\(([^)]+)\)", text) if not t.startswith("#")]
    assert len(targets) == 2 * 3
    assert all((out / target).is_file() for target in targets), targets
    assert "findings/" not in text


def test_what_has_been_asked_is_not_run_again(cli: Cli, asked: tuple[Question, ...], tmp_path: Path) -> None:
    first = cli("figures", "findings", "one", "--jobs", "1", "--out", "out", "--json")
    assert [a["name"] for a in first.json["answers"]] == ["one"]
    refused = cli("figures", "findings", "one", "--out", "out")
    assert refused.code == 2
    assert "--out out exists and is not empty" in refused.err
    runs = {p: p.stat().st_mtime_ns for p in (tmp_path / "out" / "runs").rglob("run.json")}
    assert len(runs) == 8
    again = cli("figures", "findings", "--jobs", "1", "--out", "out", "--resume", "--json")
    assert {p: p.stat().st_mtime_ns for p in runs} == runs
    assert [a["name"] for a in again.json["answers"]] == ["one", "two"]


def test_a_question_without_its_trace_is_skipped_and_the_others_go_on(cli: Cli, asked: tuple[Question, ...]) -> None:
    done = cli("figures", "findings", "elsewhere", "two", "--jobs", "1", "--out", "out")
    assert done.code == 0
    assert "skipped: elsewhere: ../nowhere/trace.csv is not there" in done.out
    assert "There are 8 runs." in done.out


def test_a_question_that_fails_is_told_and_the_others_go_on(cli: Cli, asked: tuple[Question, ...]) -> None:
    done = cli("figures", "findings", "broken", "two", "--jobs", "1", "--out", "out")
    assert done.code == 1
    assert "failed: broken: " in done.err
    assert "There are 8 runs." in done.out


def test_a_question_that_there_is_not(cli: Cli, asked: tuple[Question, ...]) -> None:
    done = cli("figures", "findings", "tow")
    assert done.code == 2
    assert "there is no question tow" in done.err
    assert "two" in done.err
