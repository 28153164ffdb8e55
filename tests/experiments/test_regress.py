"""``prefillsim regress``: silent on an unchanged tree, exit code 1 for a planted regression, one sentence on errors."""

import errno
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from costmodels.linear import LinearCost
from experiments.regress.baseline import baseline_of, read_baseline
from experiments.regress.check import Check, misfits
from experiments.run import CellResult
from experiments.sweep import Interrupted, Stopped
from policies.chunking.fixed import Fixed
from policies.views import Grant

Cli = Callable[..., Any]

ROOT = Path(__file__).resolve().parents[2]

OURS = sorted((ROOT / "experiments" / "baselines").glob("*.toml"))

AT_ONCE = """
policies = ["fcfs+full", "vllm-default"]
seeds = 3
[trace]
workload = "mixed:arrivals=all-at-once"
limit = 40
"""
"""Saturated from the first request to the last, so that goodput is as exact a mirror of step times as there can be."""

PLUGIN = """
from policies import Chunking, Grant, register

@register
class Mine(Chunking):
    "So many tokens of one prefill."
    name = "mine"

    def grant(self, batch):
        return Grant({grant})
"""


@pytest.fixture(scope="module")
def baseline_text(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The baseline of :data:`AT_ONCE`."""
    file = tmp_path_factory.mktemp("baseline") / "runs.toml"
    file.write_text(AT_ONCE)
    return Check.of(file, None, None, update=True).run().now.text()


@pytest.fixture
def at_once(cli: Cli, baseline_text: str) -> Path:
    """A file of runs with its baseline, in the working directory."""
    Path("runs.baseline.json").write_text(baseline_text)
    Path("runs.toml").write_text(AT_ONCE)
    return Path("runs.toml")


def slow_down(monkeypatch: pytest.MonkeyPatch, per_mille: int) -> None:
    """Make every step of the linear cost model longer than its coefficients say."""
    step_ns = LinearCost.step_ns
    # Coefficients are whole microseconds, so this is exact.
    monkeypatch.setattr(LinearCost, "step_ns", lambda self, *a: step_ns(self, *a) * (1000 + per_mille) // 1000)


def test_update_writes_the_first_baseline(cli: Cli, baseline_text: str) -> None:
    Path("runs.toml").write_text(AT_ONCE)
    made = cli("regress", "runs.toml", "--update")
    assert (made.code, made.err) == (0, "")
    cells = [f"+ {policy} on mixed:arrivals=all-at-once" for policy in ("fcfs+full", "vllm-default")]
    assert made.out.splitlines() == [*cells, "runs.baseline.json: written"]
    assert Path("runs.baseline.json").read_text() == baseline_text


@pytest.mark.usefixtures("at_once")
def test_an_unchanged_tree_passes(cli: Cli) -> None:
    done = cli("regress", "runs.toml")
    assert done.code == 0
    assert done.err == ""
    assert re.fullmatch(r"runs\.toml: all (\d+) figures are those of the baseline\n", done.out)


@pytest.mark.usefixtures("at_once")
def test_update_leaves_a_baseline_that_is_right_alone(cli: Cli) -> None:
    baseline = Path("runs.baseline.json")
    # What the version was is no reason to write the file again.
    baseline.write_text(baseline.read_text().replace('"package": "', '"package": "9.'))
    before = baseline.read_bytes()
    done = cli("regress", "runs.toml", "--update")
    assert (done.code, done.out) == (0, "runs.baseline.json: up to date, nothing is written\n")
    assert baseline.read_bytes() == before


@pytest.mark.usefixtures("at_once")
def test_steps_one_percent_longer_are_caught_as_one_percent(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    slow_down(monkeypatch, 10)
    done = cli("regress", "runs.toml", "--json")
    assert done.code == 1
    (file,) = done.json["files"]
    assert not done.json["passed"]
    assert not file["faults"]
    goodput = [row for row in file["figures"] if row["figure"] == "goodput"]
    assert [row["verdict"] for row in goodput] == ["worse", "worse"]
    for row in goodput:
        assert row["percent"] == pytest.approx(100 / 1.01 - 100, rel=1e-6)
        low, high = row["ci95"]
        assert low <= row["difference"] <= high < 0
    p99 = [row for row in file["figures"] if row["figure"] == "jct_p99"]
    for row in p99:
        assert row["percent"] == pytest.approx(1, rel=1e-6)
    attainment = [row for row in file["figures"] if row["figure"] == "attainment"]
    assert {row["verdict"] for row in attainment} == {"unchanged"}
    shown = cli("regress", "runs.toml")
    assert shown.code == 1
    assert "-0.99 %" in shown.out
    assert "worse than the tolerances allow" in shown.out.splitlines()[-1]


@pytest.mark.parametrize(
    ("per_mille", "options", "code", "said"),
    [
        (4, [], 0, "different, within the tolerances"),
        (4, ["--tolerance", "goodput:0.3"], 1, "worse than the tolerances allow"),
        (4, ["--tolerance", "throughput:0"], 1, "worse than the tolerances allow"),
        (20, ["--tolerance", "goodput:3,p99:3"], 0, "different, within the tolerances"),
        (20, ["--tolerance", "goodput:3,p99:3,jct_p99:1"], 1, "2 of 18 figures are worse"),
        (-20, [], 0, "better than the baseline; keep that with `prefillsim regress runs.toml --update`"),
    ],
)
@pytest.mark.usefixtures("at_once")
def test_tolerances_decide(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, per_mille: int, options: list[str], code: int, said: str
) -> None:
    slow_down(monkeypatch, per_mille)
    done = cli("regress", "runs.toml", *options)
    assert (done.code, done.err) == (code, "")
    assert said in done.out.splitlines()[-1]


def test_the_file_s_tolerances_hold_below_the_option_s(
    cli: Cli, at_once: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow_down(monkeypatch, 10)
    at_once.write_text(AT_ONCE + "[tolerance]\ngoodput = 2\np99 = 0.1\nttft_p99 = 2\ntpot_p99 = 2\njct_p99 = 2\n")
    assert cli("regress", "runs.toml").code == 0
    assert cli("regress", "runs.toml", "--tolerance", "p99:0.5").code == 1


@pytest.mark.usefixtures("at_once")
def test_update_says_what_changes_and_settles_it(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    before = Path("runs.baseline.json").read_text().splitlines()
    slow_down(monkeypatch, 10)
    done = cli("regress", "runs.toml", "--update")
    assert done.code == 0
    assert re.search(r"^~ vllm-default on mixed:\S+: goodput, req/s: \S+ -> \S+, -0\.99 %", done.out, re.MULTILINE)
    after = Path("runs.baseline.json").read_text().splitlines()
    differ = [new for old, new in zip(before, after, strict=True) if old != new]
    # A line for each run, and none besides.
    assert len(differ) == 2 * 3
    assert all("goodput" in line for line in differ)
    assert cli("regress", "runs.toml").code == 0


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('"vllm-default"]', '"vllm-default", "sarathi"]', "the baseline does not have sarathi on mixed"),
        (', "vllm-default"]', "]", "the baseline has vllm-default on mixed:arrivals=all-at-once, which the file no"),
        ("seeds = 3", "seeds = 4", "the baseline has other seeds of fcfs+full on mixed"),
        ("limit = 40", "limit = 41", "the requests of fcfs+full on mixed:arrivals=all-at-once; vllm-default on mixed"),
        ("seeds", 'slo = "ttft:9000"\nseeds', "objectives: the configuration of fcfs+full on mixed"),
        ("[trace]", "[engine]\nmax_num_seqs = 200\n[trace]", "engine: the configuration of fcfs+full on mixed"),
    ],
)
def test_a_baseline_of_other_runs_does_not_fit(cli: Cli, at_once: Path, old: str, new: str, said: str) -> None:
    at_once.write_text(AT_ONCE.replace(old, new))
    done = cli("regress", "runs.toml")
    assert done.code == 1
    assert f"does not fit: {said}" in done.out
    assert done.out.splitlines()[-1].endswith("; if that is meant, `prefillsim regress runs.toml --update`")
    assert cli("regress", "runs.toml", "--update").code == 0
    assert cli("regress", "runs.toml").code == 0


def test_the_code_of_a_plug_in_is_what_is_checked(cli: Cli) -> None:
    Path("mine.py").write_text(PLUGIN.format(grant=4096))
    Path("runs.toml").write_text(
        'policies = ["fcfs+mine"]\nplugins = ["mine.py"]\nslo = "ttft:1000"\nseeds = 2\n'
        '[trace]\nworkload = "mixed"\nlimit = 40\nrate = 200\n'
    )
    assert cli("regress", "runs.toml", "--update").code == 0
    assert cli("regress", "runs.toml").code == 0
    Path("mine.py").write_text(PLUGIN.format(grant=16))
    done = cli("regress", "runs.toml", "--json")
    assert done.code == 1
    assert not done.json["files"][0]["faults"]
    assert "worse" in {row["verdict"] for row in done.json["files"][0]["figures"]}


def test_a_run_that_fails_is_reported_and_never_becomes_a_baseline(cli: Cli) -> None:
    Path("mine.py").write_text(PLUGIN.format(grant=64))
    Path("runs.toml").write_text(
        'policies = ["fcfs+full", "fcfs+mine"]\nplugins = ["mine.py"]\nseeds = 2\n'
        '[trace]\nworkload = "mixed"\nlimit = 20\n'
    )
    assert cli("regress", "runs.toml", "--update").code == 0
    before = Path("runs.baseline.json").read_bytes()
    Path("mine.py").write_text(PLUGIN.format(grant="64 // (batch.n_decode < 3)"))
    done = cli("regress", "runs.toml", "--junit", "junit.xml", "--markdown", "summary.md")
    assert done.code == 1
    assert "runs.toml: 2 runs failed" in done.out
    assert "failed: fcfs+mine on mixed, seed 0: policy fcfs+mine failed in" in done.err
    assert ElementTree.parse("junit.xml").getroot().find("testsuite/testcase/error") is not None
    assert "- failed: fcfs+mine on mixed, seed 1" in Path("summary.md").read_text()
    done = cli("regress", "runs.toml", "--update")
    assert done.code == 1
    assert Path("runs.baseline.json").read_bytes() == before


@pytest.mark.usefixtures("at_once")
def test_reports_for_a_pull_request_and_a_ci_server(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    slow_down(monkeypatch, 10)
    done = cli("regress", "runs.toml", "--junit", "junit.xml", "--markdown", "summary.md", "--json")
    assert done.code == 1
    figures = done.json["files"][0]["figures"]
    judged = [row for row in figures if row["tolerance_percent"] is not None]
    worse = [row for row in figures if row["verdict"] == "worse"]
    suite = ElementTree.parse("junit.xml").getroot().find("testsuite")
    assert suite is not None
    assert int(suite.get("tests", "")) == len(suite.findall("testcase")) == len(judged) + 2
    assert int(suite.get("failures", "")) == len(suite.findall("testcase/failure")) == len(worse)
    assert suite.get("errors") == "0"
    text = Path("summary.md").read_text()
    assert text.startswith("## prefillsim regress: failed\n")
    rows = [line for line in text.splitlines() if line.startswith("| ")][1:]
    assert len(rows) == sum(row["verdict"] != "unchanged" for row in figures)
    assert [row.endswith("| worse |") for row in rows] == [i < len(worse) for i in range(len(rows))]


def test_several_files_are_one_check(cli: Cli, at_once: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("other.toml").write_text('policies = ["fcfs+full"]\nseeds = 1\n[trace]\nworkload = "chat"\nlimit = 5\n')
    assert cli("regress", "other.toml", "--update").code == 0
    assert cli("regress", "runs.toml", "other.toml").code == 0
    baseline = Path("other.baseline.json")
    content = json.loads(baseline.read_text())
    content["cells"][0]["seeds"]["0"]["metrics"]["goodput"] *= 1.01
    baseline.write_text(json.dumps(content))
    done = cli("regress", "runs.toml", "other.toml", "--json")
    assert done.code == 1
    assert [file["passed"] for file in done.json["files"]] == [True, False]
    assert done.json["files"][1]["figures"][0]["ci95"] == [None, None]


@pytest.mark.usefixtures("at_once")
def test_another_version_and_another_place_are_told(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    text = Path("runs.baseline.json").read_text()
    Path("old.json").write_text(re.sub('"package": ".*?"', '"package": "0.0.7"', text))
    slow_down(monkeypatch, 10)
    said = cli("regress", "runs.toml", "--baseline", "old.json").out.splitlines()[-1]
    assert "(made by prefillsim 0.0.7); if that is meant, `prefillsim regress runs.toml --baseline old.json" in said


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (Interrupted("interrupted: 1 of 6 runs are kept in x"), 130, "interrupted; nothing is kept"),
        (Stopped("a process was killed: 1 of 6 runs are kept in x"), 1, "a process was killed"),
        (OSError(errno.ENOSPC, "", "y"), 2, "no space left on device while writing y"),
    ],
)
@pytest.mark.usefixtures("at_once")
def test_a_check_that_ends_early_promises_nothing(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int, said: str
) -> None:
    def stop(*args: Any, **options: Any) -> None:
        if isinstance(error, OSError):
            error.add_note("1 of 6 runs are kept in x")
        raise error

    monkeypatch.setattr("experiments.regress.check.run_sweep", stop)
    done = cli("regress", "runs.toml", "--update")
    assert (done.code, done.out, done.err) == (code, "", f"prefillsim: {said}\n")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (r'"1": (\{.*\})', r'"1": \1,\n    "1": \1', '"1" is there twice in one place'),
        (r'"policy": "fcfs\+full"', '"policy": "vllm-default"', "cells: vllm-default on mixed:arrivals=all-at-once is"),
        (r'"goodput": [\d.]+', '"goodput": 1e308', "cells.0.seeds.0.metrics.goodput: Input should be less than"),
        (r'"goodput": [\d.]+', '"goodput": -1', "cells.0.seeds.0.metrics.goodput: Input should be greater than"),
        (r'"goodput": ([\d.]+)', r'"goodput": "\1"', "cells.0.seeds.0.metrics.goodput: Input should be a valid number"),
        (r'"goodput": [\d.]+', '"goodput": NaN', "cells.0.seeds.0.metrics.goodput: Input should be"),
        (r"^(?s:.*)$", "", "Invalid JSON"),
    ],
)
@pytest.mark.usefixtures("at_once")
def test_what_edits_and_merges_leave_of_a_baseline(cli: Cli, old: str, new: str, said: str) -> None:
    path = Path("runs.baseline.json")
    path.write_text(re.sub(old, new, path.read_text(), count=1))
    done = cli("regress", "runs.toml")
    assert done.code == 2
    assert done.err.startswith("prefillsim: runs.baseline.json is not a baseline of this version of prefillsim (")
    assert said in done.err
    assert done.err.endswith("--update writes it anew\n")
    assert done.err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["runs.toml", "--update", "--baseline", "no/b.json"], "--update: the folder no of b.json does not exist"),
        (["nowhere.toml"], "nowhere.toml: there is no such file"),
        (["fresh.toml"], "fresh.toml has no baseline fresh.baseline.json; --update writes it"),
        (["runs.toml", "--baseline", "broken.json"], "broken.json is not a baseline of this version of prefillsim"),
        (["runs.toml", "fresh.toml", "--baseline", "x"], "--baseline belongs to one file"),
        (["runs.toml", "--tolerance", "godput:1"], "--tolerance: no metric has the name godput; did you mean goodput?"),
        (["runs.toml", "--tolerance", "goodput"], "--tolerance 'goodput' should read NAME:PERCENT"),
        (["runs.toml", "--tolerance", "goodput:-1"], "the tolerance of goodput is -1.0; it should be a percentage"),
        (["runs.toml", "--tolerance", "goodput:inf"], "the tolerance of goodput is inf"),
        (["runs.toml", "--tolerance", "p99:x"], "the tolerance of p99 is 'x'"),
        (["runs.toml", "--tolerance", "p99:1,p99:2"], "--tolerance gives p99 twice"),
        (["tolerance.toml"], "tolerance.toml: tolerance: no metric has the name goodputs; did you mean goodput?"),
        (["scalar.toml"], "scalar.toml: tolerance is 3, but it should be a table"),
        (["runs.toml", "--update", "--junit", "x.xml"], "there is nothing to put into --junit"),
        (["runs.toml", "--markdown", "no/x.md"], "--markdown no/x.md is in no folder that exists; give a file"),
        (["runs.toml", "--junit", "."], "--junit . is a folder; give a file"),
        (["typo.toml"], "unknown key polices; did you mean policies?"),
    ],
)
def test_what_cannot_be_used_is_one_sentence(cli: Cli, at_once: Path, arguments: list[str], said: str) -> None:
    shutil.copy(at_once, "fresh.toml")
    Path("tolerance.toml").write_text(AT_ONCE + "[tolerance]\ngoodputs = 1\n")
    Path("scalar.toml").write_text("tolerance = 3\n" + AT_ONCE)
    Path("typo.toml").write_text(AT_ONCE.replace("policies", "polices"))
    shutil.copy("runs.baseline.json", "typo.baseline.json")
    Path("broken.json").write_text("<<<<<<< HEAD\n{}")
    done = cli("regress", *arguments)
    assert done.code == 2
    assert said in done.err
    assert done.err.startswith("prefillsim: ")
    assert len(done.err.splitlines()) == 1


def test_a_broken_baseline_is_written_anew(cli: Cli, at_once: Path) -> None:
    baseline = Path("runs.baseline.json")
    right = baseline.read_text()
    baseline.write_text(right[:-20])
    assert cli("regress", str(at_once)).code == 2
    assert cli("regress", str(at_once), "--update").code == 0
    assert baseline.read_text() == right


def test_the_readme_s_file_and_workflow_run(cli: Cli) -> None:
    readme = (ROOT / "README.md").read_text().partition("## In your CI")[2]
    Path("ci").mkdir()
    (toml,) = re.findall(r"```toml\n(.*?)```", readme, re.DOTALL)
    Path("ci/serving.toml").write_text(toml.replace("limit = 300", "limit = 30"))
    (update, *_) = re.findall(r"^    prefillsim (.*?)(?: +#.*)?$", readme, re.MULTILINE)
    assert cli(*update.split()).code == 0
    (command,) = re.findall(r"- run: prefillsim (.*)", readme)
    arguments = command.replace('"$GITHUB_STEP_SUMMARY"', "summary.md").replace("ci/*.toml", "ci/serving.toml").split()
    done = cli(*arguments)
    assert done.code == 0, done.err
    assert Path("summary.md").read_text().startswith("## prefillsim regress: passed")
    assert ElementTree.parse("regress.xml").getroot().find("testsuite") is not None


@pytest.mark.parametrize("file", OURS, ids=lambda file: file.stem)
def test_our_own_baselines_fit_their_files(file: Path) -> None:
    """Cells, configurations, seeds and traces; `make regress` makes the runs."""
    check = Check.of(file, None, None, update=False)
    assert check.baseline is not None
    nothing = {cell.key: CellResult(cell.key, {}) for cell in check.experiment.cells}
    assert misfits(check.baseline, baseline_of(check.experiment.cells, nothing)) == []


def test_a_planted_percent_in_a_policy_is_caught_by_our_own_baseline(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Chunks of 253 tokens where the policy says 256 prefill 1.2 % less per step."""
    ours = ROOT / "experiments" / "baselines" / "serving.toml"
    baseline = read_baseline(ours.with_name("serving.baseline.json"))
    assert baseline is not None
    mixed = [c for c in baseline.cells if c.trace == "mixed" and c.policy == "fcfs+fixed:chunk=256"]
    file = tmp_path / "serving.toml"
    text = re.sub(r"policies = .*", 'policies = ["fcfs+fixed:chunk=256"]', ours.read_text())
    file.write_text(re.sub(r"workload = .*", 'workload = ["mixed"]', text))
    file.with_name("serving.baseline.json").write_text(baseline.model_copy(update={"cells": tuple(mixed)}).text())
    unchanged = cli("regress", str(file))
    assert unchanged.code == 0, unchanged.out
    assert "are those of the baseline" in unchanged.out
    monkeypatch.setattr(Fixed, "grant", lambda self, batch: Grant(self.chunk - 3))
    done = cli("regress", str(file), "--json")
    assert done.code == 1
    assert not done.json["files"][0]["faults"]
    (row,) = [row for row in done.json["files"][0]["figures"] if row["figure"] == "goodput"]
    assert row["verdict"] == "worse"
    assert -1.5 < row["percent"] < -0.75
