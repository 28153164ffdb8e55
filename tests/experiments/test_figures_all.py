"""`prefillsim figures findings` and `figures all`: what is run, what is kept, what is skipped, and what differs."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.figure import Figure

from experiments.config import ConfigError
from experiments.figures import parts as figures_parts
from experiments.figures.all import make_all
from experiments.figures.check import compared, same
from experiments.figures.parts import How, Part, Step
from experiments.figures.pool import make_steps
from experiments.figures.sources import ROOT, floor_files, hash_of_files, module_files
from experiments.findings import catalogue
from experiments.findings import question as question_module
from experiments.findings.question import Question
from experiments.findings.table import Table
from experiments.tables import Rows, csv_bytes
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


def draw(rows: Rows, figure: Figure) -> None:
    figure.subplots().plot([row["goodput"] for row in rows])


def question(name: str, place: int) -> Question:
    return Question(name, place, f"What of {name}?", ("goodput",), drawn, draw, answer)


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, undrawn: None) -> tuple[Question, ...]:
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


class Recorded:
    """Parts whose steps write a table and remember that they were made."""

    def __init__(self) -> None:
        self.made: list[str] = []
        self.sources = "a"
        self.values = {"x": 1.5, "y": 2.5}
        self.broken: set[str] = set()
        self.missing: set[str] = set()

    def step(self, name: str, *, always: bool = False) -> Step:
        def make(folder: Path, how: How) -> list[Path]:
            self.made.append(name)
            if name in self.broken:
                raise RuntimeError("a bad day")
            path = folder / f"{name}.csv"
            path.write_bytes(csv_bytes([{"policy": "p", "seed": 1, "value": self.values[name]}]))
            return [path]

        return Step(name, make, 10, lambda: self.sources, lambda: "no trace" if name in self.missing else None, always)

    def parts(self) -> tuple[Part, ...]:
        return Part("one", (self.step("x"),)), Part("two", (self.step("y"),))


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> Recorded:
    made = Recorded()
    monkeypatch.setattr(figures_parts, "parts", made.parts)
    return made


def test_finished_steps_are_kept_and_others_made(recorded: Recorded, tmp_path: Path) -> None:
    first = make_all(recorded.parts(), tmp_path, How(1))
    assert set(first.seconds) == {"one/x", "two/y"}
    again = make_all(recorded.parts(), tmp_path, How(1), resume=True)
    assert recorded.made == ["x", "y"]
    assert again.kept == ["one/x", "two/y"]
    assert again.files == first.files
    # A table that is gone is made again.
    (tmp_path / "one" / "x.csv").unlink()
    make_all(recorded.parts(), tmp_path, How(1), resume=True)
    assert recorded.made == ["x", "y", "x"]


def test_what_a_step_depends_on_makes_it_anew(recorded: Recorded, tmp_path: Path) -> None:
    make_all(recorded.parts(), tmp_path, How(1))
    recorded.sources = "b"
    (tmp_path / "one" / "kept").touch()
    make_all(recorded.parts(), tmp_path, How(1), resume=True)
    assert recorded.made == ["x", "y", "x", "y"]
    # Of the same simulator: runs in the folder are trusted.
    assert (tmp_path / "one" / "kept").exists()


def test_another_simulator_makes_the_part_begin_anew(
    recorded: Recorded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_all(recorded.parts(), tmp_path, How(1))
    (tmp_path / "one" / "old").touch()
    monkeypatch.setattr("experiments.figures.all.runs_hash", lambda: "another")
    make_all(recorded.parts(), tmp_path, How(1), resume=True)
    assert recorded.made == ["x", "y", "x", "y"]
    assert not (tmp_path / "one" / "old").exists()


def test_folders_of_others_are_not_touched(recorded: Recorded, tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "thesis.txt").touch()
    for resume in (False, True):
        with pytest.raises(ConfigError, match="is not empty" if not resume else "is not the folder of a part"):
            make_all(recorded.parts(), tmp_path, How(1), resume=resume)
    assert recorded.made == []
    assert (tmp_path / "one" / "thesis.txt").exists()


def test_a_part_that_fails_is_told_and_the_others_go_on(cli: Cli, recorded: Recorded, tmp_path: Path) -> None:
    recorded.broken = {"x"}
    done = cli("figures", "all", "--jobs", "1", "--out", "out")
    assert done.code == 1
    assert "failed: one/x: RuntimeError: a bad day" in done.err
    assert recorded.made == ["x", "y"]
    assert "a bad day" in (tmp_path / "out" / "one" / "failed-x.txt").read_text()
    recorded.broken = set()
    done = cli("figures", "all", "--jobs", "1", "--out", "out", "--resume")
    assert done.code == 0
    assert recorded.made == ["x", "y", "x"]
    assert not (tmp_path / "out" / "one" / "failed-x.txt").exists()


def test_ctrl_c_keeps_what_is_finished(cli: Cli, recorded: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(folder: Path, how: How) -> list[Path]:
        raise KeyboardInterrupt

    one, two = recorded.parts()
    stopped = Part("two", (replace(two.steps[0], make=stop),))
    monkeypatch.setattr(figures_parts, "parts", lambda: (one, stopped))
    done = cli("figures", "all", "--jobs", "1")
    assert done.code == 130
    assert "go on with: prefillsim figures all --jobs 1 --out runs/figures --resume" in done.err
    monkeypatch.setattr(figures_parts, "parts", lambda: (one, two))
    done = cli("figures", "all", "--jobs", "1", "--resume", "--json")
    assert done.code == 0
    assert done.json["kept"] == ["one/x"]


def test_the_time_that_is_left_follows_this_machine(
    recorded: Recorded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps of 10 s each, of which the first takes 600 s here: the other will too."""
    now = [0.0]
    monkeypatch.setattr("experiments.figures.all.time.monotonic", lambda: now[0])
    one, two = recorded.parts()

    def slow(folder: Path, how: How) -> list[Path]:
        now[0] += 600
        return []

    told: list[str] = []
    make_all((Part("one", (replace(one.steps[0], make=slow),)), two), tmp_path, How(1), told=told.append)
    assert told == ["one/x: 1 steps to go, about 10 min", "two/y: 0 steps to go"]


def test_steps_beside_each_other_in_processes(tmp_path: Path) -> None:
    """A real step, and one whose folder cannot be: each outcome comes back."""
    (tmp_path / "file").touch()
    tasks = [("findings", "findings.md", tmp_path), ("prefillonly", "figures", tmp_path / "file")]
    good, bad = (outcome for _, _, outcome in sorted(make_steps(tasks, 2, How(1)), key=lambda made: made[0]))
    assert good.error is None
    assert not good.interrupted
    assert bad.error.endswith("is a file; give another folder")
    assert "Traceback" in bad.trace


def test_what_is_always_made_comes_last(recorded: Recorded, tmp_path: Path) -> None:
    part = Part("one", (recorded.step("y", always=True), recorded.step("x")))
    make_all((part,), tmp_path, How(1))
    make_all((part,), tmp_path, How(1), resume=True)
    assert recorded.made == ["x", "y", "y"]


def test_a_check_finds_what_differs(cli: Cli, recorded: Recorded, tmp_path: Path) -> None:
    docs = tmp_path / "docs"
    (docs / "figures").mkdir(parents=True)
    assert cli("figures", "all", "--jobs", "1", "--out", "a", "--update", "--against", "docs").code == 0
    assert sorted(p.relative_to(docs).as_posix() for p in docs.rglob("*.csv")) == [
        "figures/one/x.csv",
        "figures/two/y.csv",
    ]
    # Of pictures, those that are committed.
    (tmp_path / "a" / "one" / "x.png").write_bytes(b"new")
    (tmp_path / "a" / "one" / "other.png").write_bytes(b"new")
    (docs / "figures" / "one" / "x.png").write_bytes(b"old")
    assert cli("figures", "all", "--jobs", "1", "--out", "a", "--resume", "--update", "--against", "docs").code == 0
    assert (docs / "figures" / "one" / "x.png").read_bytes() == b"new"
    assert not (docs / "figures" / "one" / "other.png").exists()
    done = cli("figures", "all", "--jobs", "1", "--out", "b", "--check", "--against", "docs")
    assert done.code == 0
    assert "no table differs" in done.out
    recorded.values["y"] = 2.500003
    done = cli("figures", "all", "--jobs", "1", "--out", "c", "--check", "--against", "docs")
    assert done.code == 1
    assert "differs: two/y.csv, row 1 (p), value: committed 2.5, made 2.500003" in done.out
    recorded.values["y"] = 2.500001
    assert cli("figures", "all", "--jobs", "1", "--out", "d", "--check", "--against", "docs").code == 0
    # What cannot be made here is not missed; what should have been is.
    recorded.missing = {"y"}
    assert cli("figures", "all", "--jobs", "1", "--out", "e", "--check", "--against", "docs").code == 0
    (docs / "figures" / "one" / "z.csv").write_text("a\n1\n")
    done = cli("figures", "all", "--jobs", "1", "--out", "e", "--resume", "--check", "--against", "docs", "--json")
    assert done.code == 1
    assert done.json["differences"] == [{"file": "one/z.csv", "what": "", "committed": "a table", "made": "nothing"}]


def test_a_check_needs_something_to_compare_with(cli: Cli, recorded: Recorded) -> None:
    done = cli("figures", "all", "--jobs", "1", "--check", "--against", "nowhere")
    assert done.code == 2
    assert "nowhere has no folder figures with committed tables" in done.err
    assert cli("figures", "all", "--jobs", "1", "--check", "--update").code == 2
    assert recorded.made == []


TABLE = [["policy", "seed", "goodput", "tokens"], ["a", "0", "12.25", "1000"], ["b", "1", "", "2000"]]


@pytest.mark.parametrize(
    ("row", "column", "text"),
    [(1, 0, "c"), (1, 1, "7"), (1, 2, "12.250014"), (1, 3, "1001"), (2, 2, "0.0"), (1, 2, ""), (1, 2, "nan")],
)
def test_one_planted_difference_is_found(row: int, column: int, text: str) -> None:
    planted = [list(line) for line in TABLE]
    planted[row][column] = text
    (found,) = compared("t.csv", TABLE, planted)
    assert f"row {row}" in found.what
    assert found.what.endswith(TABLE[0][column])
    assert (found.committed, found.made) == (TABLE[row][column] or "nothing", text or "nothing")


def test_rows_and_columns_that_only_one_side_has() -> None:
    assert [d.what for d in compared("t", TABLE, TABLE[:-1])] == ["rows"]
    assert [d.what for d in compared("t", TABLE, [line[:-1] for line in TABLE])] == ["columns"]
    assert [d.what for d in compared("t", TABLE, [])] == ["columns"]
    assert not compared("t", TABLE, [list(line) for line in TABLE])


@given(st.floats(1e-3, 1e6), st.floats(-4e-6, 4e-6))
@settings(deadline=None)
def test_numbers_may_differ_by_a_millionth(value: float, off: float) -> None:
    other = value * (1 + off)
    if abs(abs(off) - 1e-6) > 1e-8 and abs(value - other) > 2e-9:
        assert same(repr(value), repr(other)) == (abs(off) < 1e-6)


def test_every_step_s_hash_has_its_own_files_and_the_simulator() -> None:
    """A file of another paper is not among them; the style of all pictures, and data, are."""
    names = {path.relative_to(ROOT).as_posix() for path in module_files("experiments.sloweave.regenerate")}
    expected = {"experiments/style.mplstyle", "experiments/sloweave/paper.csv", "experiments/sloweave/grid.toml"}
    assert names >= expected | {"experiments/run.py", "experiments/sloweave/timeline.py", "experiments/sweep.py"}
    assert not any(name.startswith(("experiments/prefillonly", "experiments/findings")) for name in names)
    floors = {path.relative_to(ROOT).as_posix() for path in floor_files()}
    assert floors >= {"sim/engine.py", "policies/chunking/deadline_fill.py", "traces/synthetic.py"}
    hashes = {f"{p.name}/{s.name}": s.sources() for p in figures_parts.parts() for s in p.steps}
    assert hashes["sloweave/figures"] != hashes["sloweave-gpu/figures"]
    # Files are told apart by name and content.
    a, b = (ROOT / "sim" / name for name in ("engine.py", "metrics.py"))
    assert hash_of_files([a, b]) == hash_of_files([b, a]) != hash_of_files([a])
