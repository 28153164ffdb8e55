"""Comparisons: numbers equal to those computed by hand from single runs, and no ranking that is not earned."""

import csv
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.text import Text
from scipy import stats

from costmodels.io import load_cost_model
from experiments.axes import plan
from experiments.compare import METRICS, Comparison, Estimate, compare
from experiments.draft import Draft
from experiments.figure import draw as draw_figure
from experiments.figure import figure_rows, write_figure
from experiments.output import number, table
from experiments.plotting import new_figure
from experiments.report import show_comparison
from experiments.sweep import run_sweep
from policies.spec import parse_policy
from sim.engine import simulate
from sim.metrics import summarise
from sim.objectives import Objectives
from traces.synthetic import generate

SIX = ("fcfs+full", "fcfs+fixed:chunk=64", "fcfs+fixed:chunk=256", "fcfs+fixed:chunk=1024", "sloweave", "vllm-default")
SLO = "ttft:1000,tpot_p99:25"
KEYS = {"goodput", "throughput", "slo_attainment", "ttft_p99_ms", "tpot_p99_ms", "ttft_mean_ms"}

Cli = Callable[..., Any]


def flags(*policies: str) -> list[str]:
    return [part for policy in policies for part in ("-p", policy)]


@pytest.mark.usefixtures("no_picture")
def test_the_document_holds_what_single_runs_give(cli: Cli) -> None:
    done = cli("compare", "--workload", "mixed", "--limit", "60", "--slo", SLO, "--seeds", "3", *flags(*SIX), "--json")
    assert done.code == 0, done.err
    assert done.err == ""
    document = done.json
    assert list(document["policies"]) == list(SIX)
    objectives, cost = Objectives.parse(SLO), load_cost_model("sloweave-paper")
    for policy, metrics in document["policies"].items():
        assert metrics.keys() == KEYS
        runs = [
            simulate(generate("mixed", seed, 60), parse_policy(policy), cost, objectives=objectives)
            for seed in range(3)
        ]
        summaries = [summarise(run.requests, run.steps, objectives) for run in runs]
        for metric, estimate in metrics.items():
            per_seed = [float(s[metric]) for s in summaries]  # type: ignore[arg-type]
            assert estimate["per_seed"] == per_seed
            assert estimate["mean"] == pytest.approx(np.mean(per_seed), rel=1e-12)
            if np.ptp(per_seed):
                expected = stats.t.interval(0.95, 2, np.mean(per_seed), stats.sem(per_seed))
            else:
                expected = (per_seed[0], per_seed[0])
            assert estimate["ci95"] == pytest.approx(expected, rel=1e-9)
    assert document["objectives"] == SLO
    assert document["seeds"] == [0, 1, 2]
    assert json.loads(Path(document["out"], "compare.json").read_text())["policies"] == document["policies"]


def test_the_command_ends_with_the_picture_and_the_folder(cli: Cli, tmp_path: Path, light_pictures: None) -> None:
    done = cli("compare", "--workload", "chat", "--limit", "20", "--seeds", "2", *flags("fcfs+full"), "--out", "out")
    assert done.code == 0
    assert done.out.endswith("picture: out/compare.png\nresults: out\n")
    files = {path.name for path in (tmp_path / "out").iterdir()}
    assert {"compare.png", "compare.pdf", "compare.csv", "compare.json", "summary.parquet", "summary.csv"} < files


@pytest.mark.usefixtures("no_picture")
def test_differences_are_paired_by_seed(cli: Cli) -> None:
    command = ["compare", "--workload", "mixed", "--limit", "80", "--slo", SLO, "--seeds", "4", "--json"]
    document = cli(*command, *flags("sloweave", "fcfs+full")).json
    (row,) = document["paired"]
    a, b = (np.array(document["policies"][row[side]]["goodput"]["per_seed"]) for side in ("a", "b"))
    expected = stats.t.interval(0.95, 3, (a - b).mean(), stats.sem(a - b))
    assert row["ci95"] == pytest.approx(expected, rel=1e-9)
    assert row["significant"] == (expected[0] > 0 or expected[1] < 0)


@pytest.mark.usefixtures("no_picture")
def test_equal_policies_share_a_rank_and_are_named(cli: Cli) -> None:
    command = ["compare", "--workload", "mixed", "--limit", "40", "--slo", SLO, "--seeds", "3"]
    done = cli(*command, *flags("sloweave", "fcfs+deadline-fill"))
    assert "By goodput the policies are tied" in done.out
    assert "sloweave and fcfs+deadline-fill are the same policy" in done.err
    document = cli(*command, *flags("sloweave", "fcfs+deadline-fill"), "--json").json
    assert [set(group) for group in document["ranking"]] == [{"sloweave", "fcfs+deadline-fill"}]
    assert document["policies"]["sloweave"] == document["policies"]["fcfs+deadline-fill"]


@pytest.mark.usefixtures("no_picture")
def test_a_file_has_one_run_and_no_intervals(cli: Cli, tmp_path: Path) -> None:
    cli("trace", "generate", "--workload", "chat", "--requests", "40", "--out", "chat.parquet")
    document = cli("compare", "--trace", "chat.parquet", *flags("fcfs+full", "vllm-default"), "--json").json
    assert document["seeds"] == [0]
    assert document["ranking"] is None
    assert document["objectives"] == ""
    assert any("the arrivals of chat.parquet are not random" in warning for warning in document["warnings"])
    for metrics in document["policies"].values():
        for estimate in metrics.values():
            assert estimate["ci95"] == [None, None]
            assert estimate["per_seed"] == [estimate["mean"]]


@pytest.mark.usefixtures("no_picture")
def test_one_output_token_leaves_tpot_unmeasured(cli: Cli) -> None:
    command = ["compare", "--workload", "post-recommendation", "--limit", "30", "--slo", "tpot_p99:25", "--seeds", "2"]
    document = cli(*command, *flags("prefillonly"), "--json").json
    metrics = document["policies"]["prefillonly"]
    assert metrics["tpot_p99_ms"] == {"mean": None, "ci95": [None, None], "per_seed": [None, None]}
    assert metrics["slo_attainment"]["mean"] == 1.0


@pytest.mark.usefixtures("no_picture")
def test_a_failed_policy_leaves_the_others_and_a_status_of_one(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from policies import Chunking, register\n\n@register\nclass Empty(Chunking):\n    name = 'compare-empty'\n\n"
        "    def grant(self, batch):\n        return 1 / 0\n"
    )
    command = ["compare", "--workload", "chat", "--limit", "20", "--seeds", "2", "--plugin", "mine.py"]
    done = cli(*command, *flags("fcfs+full", "fcfs+compare-empty"), "--json")
    assert done.code == 1
    document = done.json
    assert document["policies"]["fcfs+compare-empty"]["goodput"]["per_seed"] == [None, None]
    assert document["policies"]["fcfs+full"]["goodput"]["mean"] is not None
    assert len(document["failures"]) == 2
    assert "ZeroDivisionError" in document["failures"][0]
    assert "2 of 4 runs failed" in done.err


def test_axes_are_for_sweeps(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "grid.toml").write_text(
        'policies = ["fcfs+full"]\n[trace]\nworkload = "chat"\n[sweep]\nrate = [1, 2]\n'
    )
    done = cli("compare", "--config", "grid.toml")
    assert done.code == 2
    assert "[sweep] has rate; use `prefillsim sweep`" in done.err


@pytest.mark.usefixtures("no_picture")
def test_a_configuration_and_its_options_give_the_same_comparison(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text(
        f'policies = ["fcfs+full", "sloweave"]\nslo = "{SLO}"\nseeds = 2\n[trace]\nworkload = "mixed"\nlimit = 30\n'
    )
    from_file = cli("compare", "--config", "a.toml", "--json").json
    command = ["compare", "--workload", "mixed", "--limit", "30", "--slo", SLO, "--seeds", "2", "--json"]
    from_options = cli(*command, *flags("fcfs+full", "sloweave")).json
    changed = cli("compare", "--config", "a.toml", "--set", "trace.limit=31", "--json").json
    assert from_file["policies"] == from_options["policies"] != changed["policies"]


@pytest.fixture(scope="module")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    draft = Draft()
    values = {"trace.workload": "mixed", "trace.limit": 60, "policies": list(SIX), "seeds": 3, "slo": SLO}
    for key, value in values.items():
        draft.put(key, value, "test")
    return compare(run_sweep(plan(draft), out=tmp_path_factory.mktemp("compare") / "out"))


def test_the_table_shows_means_half_widths_and_definitions(
    comparison: Comparison, capsys: pytest.CaptureFixture[str]
) -> None:
    show_comparison(comparison)
    out = capsys.readouterr().out
    for policy, metrics in comparison.policies.items():
        (line,) = (line for line in out.splitlines() if line.split()[:1] == [policy])
        assert line.count("±") == len(METRICS)
        assert f"{number(metrics['goodput'].mean)} ±{number(metrics['goodput'].half_width)}" in line
    assert "objectives in ms: ttft:1000,tpot_p99:25" in out
    assert "Goodput: those requests per second" in out
    assert "\x1b" not in out


def test_the_ranking_separates_only_what_intervals_separate(
    comparison: Comparison, capsys: pytest.CaptureFixture[str]
) -> None:
    show_comparison(replace(comparison, groups=[["sloweave"], ["vllm-default", "fcfs+full"]]))
    assert "exclude zero: 1. sloweave; 2. tied: vllm-default, fcfs+full." in capsys.readouterr().out
    show_comparison(replace(comparison, groups=[["sloweave", "fcfs+full"]]))
    assert "By goodput the policies are tied" in capsys.readouterr().out


def test_the_figure_comes_as_png_pdf_and_its_numbers(
    comparison: Comparison, tmp_path: Path, light_pictures: None
) -> None:
    comparison = replace(comparison, policies={p: comparison.policies[p] for p in SIX[3:5]})
    paths = write_figure(comparison, tmp_path)
    assert {path.name for path in paths} == {"compare.png", "compare.pdf", "compare.csv"}
    with (tmp_path / "compare.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 3 * 2
    for row in rows:
        estimate = comparison.policies[row["policy"]][row["metric"]]
        assert float(row["mean"]) == estimate.mean
        assert estimate.ci95 == (float(row["ci95_lo"]), float(row["ci95_hi"]))
        assert row["objective"] == {"goodput": "", "ttft_p99_ms": "1000.0", "tpot_p99_ms": "25.0"}[row["metric"]]


def test_the_figure_is_readable(comparison: Comparison) -> None:
    with new_figure(6.9, 3.4) as figure:
        draw_figure(comparison, figure)
        figure.canvas.draw()
        axes = figure.axes
        texts = [t for t in figure.findobj(Text) if t.get_text() and t.get_visible()]
    assert min(t.get_fontsize() for t in texts) >= 8
    assert [axis.get_xlabel() for axis in axes] == ["Goodput (requests/s)", "P99 TTFT (ms)", "P99 TPOT (ms)"]
    assert [t.get_text() for t in axes[0].get_yticklabels()] == list(SIX)
    assert [axis.get_title() for axis in axes] == ["", "objective 1000 ms", "objective 25 ms"]
    assert {line.get_xdata()[0] for axis in axes for line in axis.get_lines() if line.get_linestyle() == "--"} == {
        1000,
        25,
    }


def test_a_figure_can_show_policies_without_any_value(
    comparison: Comparison, tmp_path: Path, light_pictures: None
) -> None:
    nothing = dict.fromkeys(METRICS, Estimate(None, None, [None]))
    policies = {"a-very-long-ordering:k=1+and-a-long-chunking": nothing}
    empty = replace(comparison, policies=policies, objectives="", seeds=[0])
    assert all(row["mean"] is None for row in figure_rows(empty))
    assert len(write_figure(empty, tmp_path)) == 3


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "-"),
        (0.0, "0.00"),
        (0.0123, "0.012"),
        (0.5, "0.50"),
        (9.876, "9.88"),
        (99.96, "100.0"),
        (12345.6, "12,346"),
    ],
)
def test_numbers_have_the_digits_a_reader_can_use(value: float | None, shown: str) -> None:
    assert number(value) == shown


def test_a_narrow_terminal_cuts_no_digits(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "20")
    table(["policy", "goodput", "SLO"], [["fcfs+fixed:chunk=256", "12,345.6 ±0.78", "100.0 ±10.00"]])
    assert "fcfs+fixed:chunk=256  12,345.6 ±0.78  100.0 ±10.00" in capsys.readouterr().out
