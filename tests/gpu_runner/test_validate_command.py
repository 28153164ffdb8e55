"""``prefillsim validate --recorded``: its report, its exit status, and its sentences."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import redirect_stdout
from html.parser import HTMLParser
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure

from experiments.cli import main
from experiments.plotting import new_figure
from gpu_runner.validate import report
from gpu_runner.validate.report import html_report, write_report
from gpu_runner.validate.sections import Grid, Picture, Section
from sim.store import read_run
from tests.gpu_runner.public_runs import Served, write_public_run

PNG = b"\x89PNG\r\n\x1a\n"


class Reader(HTMLParser):
    """Checks that tags close in order, and keeps text and what the document refers to."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text = ""
        self.outside: list[str] = []
        self.tags: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag not in ("meta", "img"):
            self.open.append(tag)
        for name, value in attrs:
            if name in ("src", "href") and not (value or "").startswith(("data:image/png;base64,", "#")):
                self.outside.append(str(value))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def _read(text: str) -> Reader:
    reader = Reader()
    reader.feed(text)
    assert not reader.open
    return reader


def _run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    capsys.readouterr()
    code = main([str(a) for a in arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.fixture(scope="module", autouse=True)
def _coarse_pictures() -> Iterator[None]:
    """Draw with few dots; nobody looks at them."""
    save = Figure.savefig
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Figure, "savefig", lambda self, *into, **options: save(self, *into, **options, dpi=20))
        yield


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder that ``prefillsim simulate`` wrote, of prompts that share much and memory that is scarce."""
    folder = tmp_path_factory.mktemp("simulated") / "stored"
    options = ["-p", "srjf-calibrated:lam=500+token-budget:budget=512", "--workload", "post-recommendation"]
    options += ["--limit", "30", "--kv-blocks", "2000", "--rate", "5", "--out", str(folder)]
    with redirect_stdout(StringIO()):
        assert main(["simulate", *options]) == 0
    return folder


@pytest.fixture
def stored(kept: Path, tmp_path: Path) -> Path:
    """The same, to be changed."""
    return Path(shutil.copytree(kept, tmp_path / "stored"))


@pytest.fixture(scope="module")
def validated(kept: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The report on that run, which tolerates nothing, and what was printed."""
    folder = tmp_path_factory.mktemp("validated") / "v"
    strict = "ttft:0,tpot:0,itl:0,jct:0,goodput:0,step:0"
    with redirect_stdout(StringIO()) as out:
        code = main(["validate", "--recorded", str(kept), "--tolerance", strict, "--out", str(folder), "--json"])
    assert code == 0, out.getvalue()
    return folder, out.getvalue()


@pytest.fixture
def no_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pictures are empty, for tests of what is said."""
    monkeypatch.setattr(report, "_png", lambda draw, made: PNG)


def test_a_simulated_run_is_simulated_again_without_error(kept: Path, validated: tuple[Path, str]) -> None:
    assert (read_run(kept).requests["cached_tokens"] > 0).any()
    document = json.loads(validated[1])
    assert document["passed"] is True
    assert [s["level"] for s in document["sections"]] == ["L1", "L3"]
    assert all(figure["error"] in (0.0, None) for figure in document["sections"][1]["figures"])
    assert sum(figure["error"] == 0.0 for figure in document["sections"][1]["figures"]) >= 8


@pytest.mark.usefixtures("no_pictures")
def test_another_cost_model_is_a_miss_with_a_sentence_for_each_figure(
    stored: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "v"
    code, text, err = _run(capsys, "validate", "--recorded", stored, "--cost-model", "h100-llama3.1-8b", "--out", out)
    assert code == 1
    assert not err
    misses = [line for line in text.splitlines() if line.startswith("miss: ")]
    assert any("P99 TTFT is simulated as" in miss for miss in misses)
    assert any("step times are" in miss for miss in misses)
    made = json.loads((out / "report.json").read_text())
    assert made["passed"] is False
    assert [f"miss: {m}" for m in made["misses"]] == misses


@pytest.mark.usefixtures("no_pictures")
def test_three_repeats_have_a_spread(stored: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    repeats = [part for _ in range(3) for part in ("--recorded", stored)]
    code, out, _ = _run(capsys, "validate", *repeats, "--out", tmp_path / "v", "--json")
    assert code == 0
    (ends,) = [s for s in json.loads(out)["sections"] if s["level"] == "L3"]
    assert ends["repeats"] == 3
    assert {figure["spread"] for figure in ends["figures"]} <= {0.0, None}


def test_the_report_is_one_file_that_needs_no_other(validated: tuple[Path, str]) -> None:
    out, _ = validated
    page = _read((out / "report.html").read_text())
    assert not page.outside
    made = json.loads((out / "report.json").read_text())
    pictures = [name for s in made["sections"] for name in s["pictures"]]
    assert len(pictures) == page.tags.count("img") == 3
    for name in pictures:
        assert (out / name).read_bytes().startswith(PNG)
    for section in made["sections"]:
        assert section["summary"] in page.text
        for table in section["tables"]:
            assert all(cell in page.text for row in table["rows"] for cell in row)
    assert {p.name for p in out.iterdir()} == {"report.html", "report.json", *pictures}


def test_a_public_run_is_validated_with_the_course_of_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, out = tmp_path / "run", tmp_path / "v"
    _, tables = write_public_run(folder, Served(requests=6))
    last = int(tables.requests["finished_ns"].max() // 10**9) + 2
    head = "t,prompt_throughput,gen_throughput,running,waiting,kv_cache_pct\n"
    (folder / "timeseries.csv").write_text(head + "".join(f"{t}.0,0.0,90.0,2,0,5.0\n" for t in range(1, last + 1)))
    code, text, err = _run(capsys, "validate", "--recorded", folder, "--out", out, "--tolerance", "step:1000")
    assert code == 0, text + err
    assert (out / "course.png").read_bytes().startswith(PNG)
    assert "0.0 %" in text


BAD = {
    "nothing there": (["--recorded", "nowhere"], "there is no folder nowhere"),
    "no option": ([], "give --recorded DIR for runs there are, or --model DIR"),
    "both": (["--recorded", "run", "--model", "m"], "give --recorded DIR for runs there are, or --model DIR"),
    "profile of recorded": (["--recorded", "run", "--profile", "p.parquet"], "--profile goes with --model"),
    "llm here": (["--model", "m", "--llm", "llama-3.1-8b"], "--llm is for recorded"),
    "bad rho": (["--model", "m", "--workload", "mixed", "-p", "fcfs+full", "--rho", "0.5,x"], "--rho '0.5,x'"),
    "no times": (["--model", "m", "--workload", "mixed", "-p", "fcfs+full"], "give --profile FILE"),
    "unknown figure": (["--recorded", "run", "--tolerance", "tpt:3"], "unknown figure tpt; did you mean tpot?"),
    "two public": (["--recorded", "run", "--recorded", "run"], "one is validated at a time"),
    "cost of public": (["--recorded", "run", "--cost-model", "h100-llama3.1-8b"], "brings its kernel times"),
    "unknown model": (["--recorded", "run", "--llm", "llama-3.1-9b"], "llama-3.1-8b"),
    "depth 3": (["--recorded", "run", "--pipeline-depth", "3"], "'--pipeline-depth'"),
}


@pytest.mark.parametrize("case", BAD)
def test_user_errors_are_one_sentence_and_status_2(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_public_run(tmp_path / "run", Served(requests=3))
    arguments, message = BAD[case]
    code, out, err = _run(capsys, "validate", *arguments)
    assert code == 2
    assert message in err
    assert len(err.strip().splitlines()) == 1
    assert not out
    assert not (tmp_path / "runs").exists()


def _change(folder: Path, change: Any) -> None:
    path = folder / "run.json"
    info = json.loads(path.read_text())
    change(info)
    path.write_text(json.dumps(info))


def test_a_run_that_does_not_say_how_it_was_made_is_refused(
    stored: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _change(stored, lambda info: info["resolved"].pop("cost_model"))
    code, _, err = _run(capsys, "validate", "--recorded", stored, "--out", tmp_path / "v")
    assert (code, "--cost-model" in err) == (2, True)
    _change(stored, lambda info: info.pop("resolved"))
    code, _, err = _run(
        capsys, "validate", "--recorded", stored, "--cost-model", "h100-llama3.1-8b", "--out", tmp_path / "v"
    )
    assert (code, "does not say what the run was made with" in err) == (2, True)


@pytest.mark.usefixtures("no_pictures")
def test_hits_of_a_trace_that_is_gone_are_said_to_be_missing(
    stored: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _change(stored, lambda info: info.pop("trace_source"))
    out = tmp_path / "v"
    _run(capsys, "validate", "--recorded", stored, "--out", out)
    assert "share nothing" in (out / "report.html").read_text()


def test_whatever_sections_say_is_text_and_not_markup(tmp_path: Path) -> None:
    evil = "<script>alert('&')</script>"
    section = Section(
        evil, evil, False, evil, [Grid([evil], [[evil]], [False], evil)], text=[evil], verbatim=evil, misses=[evil]
    )
    page = _read(html_report(evil, [section], {"where": evil}, {}))
    assert "script" not in page.tags
    assert page.text.count(evil) == 14


def test_pictures_are_drawn_once_each_and_embedded(tmp_path: Path) -> None:
    drawn = []

    def draw(figure: Any) -> None:
        drawn.append(figure)
        figure.subplots().plot(np.arange(3))

    section = Section(
        "L2", "schedule", None, "Nothing.", pictures=[Picture("a", "A.", draw, 2, 1), Picture("b", "B.", draw, 2, 1)]
    )
    paths = write_report(tmp_path, "t", [section], {}, new_figure)
    assert len(drawn) == 2
    assert [p.name for p in paths] == ["report.html", "report.json", "a.png", "b.png"]
    assert json.loads((tmp_path / "report.json").read_text())["passed"] is True
