"""Reports: they say what the tables say, say it of untrusted names too, and how to make the runs again."""

from __future__ import annotations

import contextlib
import hashlib
import html
import json
import shlex
import shutil
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from experiments.axes import plan
from experiments.draft import Draft
from experiments.recorded import Swept, read_any, read_recorded
from experiments.timeline import trace_lines
from experiments.webreport.charts import steps_of
from experiments.webreport.groups import differences, grouped, places
from experiments.webreport.page import write_report
from experiments.webreport.reproduce import command_of, file_of, toml
from experiments.webreport.sources import read_sources
from experiments.webreport.stories import Storyteller
from experiments.webreport.svg import Plot, Scale, thinned, tick_labels
from experiments.webreport.sweeps import ENOUGH, curves, numeric_axis
from sim.metrics import summarise
from sim.objectives import Objectives
from sim.stats import paired
from sim.store import StoreError, read_run, write_run
from tests.experiments.conftest import Cli
from tests.experiments.runs import SCARCE, stored, swept
from tests.tables import RunTables
from traces.synthetic import generate

VOID = {"meta", "link", "br", "img"}


class Strict(HTMLParser):
    """Elements that open and close in order, and the text of the page."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()
        self.ids: list[str] = []
        self.targets: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)
        given = dict(attrs)
        assert not any(name.startswith("on") for name in given)
        for name, value in given.items():
            if name in ("href", "src"):
                assert (value or "").startswith(("#", "data:")), value
        if "id" in given:
            self.ids.append(given["id"] or "")
        if (given.get("href") or "").startswith("#"):
            self.targets.append((given["href"] or "")[1:])
        for name in ("d", "x", "y", "width", "height", "viewbox"):
            assert "nan" not in (given.get(name) or "").lower()
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def parsed(text: str) -> Strict:
    page = Strict()
    page.feed(text)
    page.close()
    assert not page.open
    assert not page.seen & {"script", "iframe", "object", "embed", "form"}
    assert len(set(page.ids)) == len(page.ids)
    assert set(page.targets) <= set(page.ids)
    return page


def report(*folders: Path) -> str:
    return write_report(read_sources(folders))


KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "scarce memory": SCARCE,
    "cut off": {"engine.horizon": 0.4},
    "no step": {"engine.horizon": 1e-6},
    "replicas": {"cluster.replicas": 2, "cluster.router": "round-robin"},
    "rejections": {"memory.blocks": 300, "memory.max_input": 1000},
    "one request": {"trace.limit": 1},
    "no objectives": {"slo": "", "policies": ["fcfs+full"]},
    "prefill only": {"trace.workload": "post-recommendation", "policies": ["prefillonly"], "trace.limit": 40},
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_run_makes_a_whole_page(kind: str, tmp_path: Path) -> None:
    stored(tmp_path / "run", **KINDS[kind])
    page = parsed(report(tmp_path / "run"))
    text = " ".join(page.text)
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert f"{summary['arrived']:,}" in text
    assert "Definitions" in text
    assert "prefillsim simulate" in text


def test_what_a_client_saw_is_shown_without_steps(tmp_path: Path) -> None:
    """A live server's run has requests with times, but no steps."""
    stored(tmp_path / "run")
    run = read_run(tmp_path / "run")
    trace = generate("mixed", 0, len(run.requests["id"]))
    nothing = np.full(len(trace), -1)
    unknown = ("visible_step", "first_scheduled_ns", "cached_tokens")
    columns = {k: v for k, v in run.requests.items() if k not in ("id", "reason", "tenant", "session")}
    requests = {**columns, **dict.fromkeys(unknown, nothing), "chunks": np.zeros(len(trace), dtype=np.int64)}
    steps = {name: values[:0] for name, values in run.steps.items() if name != "step"}
    chunks = {name: np.empty(0, dtype=np.int64) for name in ("step", "request", "tokens")}
    info = {**run.info, "host": "server", "server": {"url": "http://127.0.0.1:8000"}}
    write_run(tmp_path / "client", trace, RunTables(requests, steps, chunks, {}), info)
    text = report(tmp_path / "client", tmp_path / "run")
    parsed(text)
    assert "sloweave (server)" in text
    assert "prefillsim replay" in text
    assert "--server http://127.0.0.1:8000" in text


def test_several_runs_are_compared_on_the_same_seeds(tmp_path: Path) -> None:
    folders = []
    # Not one after another by seed: pairs are found by trace, not by place.
    for policy, seeds in (("sloweave", (0, 1, 2)), ("fcfs+full", (2, 0, 1))):
        for seed in seeds:
            folders.append(tmp_path / f"{policy}-{seed}")
            stored(folders[-1], policies=[policy], seeds=[seed], **{"trace.rate": 60.0})
    summaries = [json.loads((f / "summary.json").read_text()) for f in folders]
    groups = grouped(read_recorded(f) for f in folders)
    assert [len(g.runs) for g in groups] == [3, 3]
    (found,) = differences(groups, ["ttft_p99_ms"])
    values = [s["ttft_p99_ms"] for s in summaries]
    ours = paired([values[4], values[5], values[3]], values[:3])
    assert found.interval == pytest.approx(ours.difference, rel=1e-12)
    assert found.significant == ours.significant
    assert places(groups) is not None
    page = parsed(report(*folders))
    assert f"{ours.difference.mean:.1f}"[1:4] in " ".join(page.text)


def test_runs_on_different_traces_are_not_paired(tmp_path: Path) -> None:
    stored(tmp_path / "a", seeds=[0])
    stored(tmp_path / "b", seeds=[1], policies=["fcfs+full"])
    groups = grouped(read_recorded(tmp_path / name) for name in "ab")
    assert differences(groups, ["goodput"]) == []
    assert places(groups) is None


def test_the_same_folder_twice_is_one_run(tmp_path: Path) -> None:
    stored(tmp_path / "a")
    groups = grouped([read_recorded(tmp_path / "a"), read_recorded(tmp_path / ".." / tmp_path.name / "a")])
    assert [len(g.runs) for g in groups] == [1]


def test_a_sweep_has_its_curves_and_its_knee(tmp_path: Path) -> None:
    swept(tmp_path / "sweep", {"rate": [20, 60, 400]}, seeds=2, policies=["fcfs+full", "sloweave"])
    sweep = read_any(tmp_path / "sweep")
    assert isinstance(sweep, Swept)
    assert numeric_axis(sweep) == "rate"
    for curve in curves(sweep, "rate"):
        assert curve.at == [20.0, 60.0, 400.0]
        means = [g.estimate("slo_attainment").mean or 0.0 for g in curve.groups]
        kept = [rate for k, rate in enumerate(curve.at) if min(means[: k + 1]) >= ENOUGH]
        assert curve.knee == max(kept, default=None)
        by_hand = [
            np.mean([c.summary["goodput"] for c in sweep.cells if c.policy == curve.name and c.point["rate"] == rate])
            for rate in (20, 60, 400)
        ]
        assert [g.estimate("goodput").mean for g in curve.groups] == pytest.approx(by_hand, rel=1e-12)
    text = report(tmp_path / "sweep")
    parsed(text)
    assert "Knee" in text
    assert text.count("sloweave − fcfs+full") == 3


def test_sweeps_and_comparisons_go_together(tmp_path: Path) -> None:
    swept(tmp_path / "sweep", {"rate": [20, 60]}, policies=["fcfs+full", "sloweave"], keep="summary")
    swept(tmp_path / "compare", {}, policies=["fcfs+full", "sloweave"])
    page = parsed(report(tmp_path / "sweep", tmp_path / "compare"))
    assert {"sweep-sweep", "comparison", "latencies", "slowest"} <= set(page.ids)


def test_a_comparison_s_folder_is_drawn_too(tmp_path: Path) -> None:
    swept(tmp_path / "sweep", {}, seeds=2, policies=["fcfs+full", "sloweave"])
    text = report(tmp_path / "sweep")
    assert "Slowest requests" in text
    assert "Ranking" in text or "By goodput" in text
    parsed(text)


def test_stories_are_true(tmp_path: Path) -> None:
    tables = stored(tmp_path / "run", batches=True, **{"trace.limit": 150, "trace.rate": 200.0})
    teller = Storyteller(read_recorded(tmp_path / "run"))
    slowest = int(np.argmax(tables.requests["ttft_ns"]))
    story = teller.slowest()[0]
    assert story.request == str(read_run(tmp_path / "run").requests["id"][slowest])
    told = " ".join(story.sentences)
    sizes = tables.chunks["tokens"][tables.chunks["request"] == slowest].tolist()
    assert f"Prefilled in {len(sizes)} chunk" in told
    assert ", ".join(f"{size:,}" for size in sizes[:12]) in told
    arrival, begin = (tables.requests[c] for c in ("arrival_ns", "first_scheduled_ns"))
    passed = (begin >= arrival[slowest]) & (begin < begin[slowest]) & (np.arange(len(begin)) != slowest)
    before = int((passed & (arrival <= arrival[slowest])).sum())
    assert f"Meanwhile {before:,} earlier request" in told
    after = int(passed.sum()) - before
    assert (f"and {after:,} later" in told) == (after > 0)


def test_preemptions_are_told(tmp_path: Path) -> None:
    tables = stored(tmp_path / "run", **SCARCE)
    teller = Storyteller(read_recorded(tmp_path / "run"))
    victim = int(tables.preemptions["request"][0])
    times = int((tables.preemptions["request"] == victim).sum())
    told = teller.story(victim).sentences
    assert sum(s.startswith("Lost its KV blocks") for s in told) == times


NASTY = "<script>alert(1)</script><img src=x onerror=alert(2)>\"'&]]>\u2028{{ 7*7 }}"


def test_what_folders_say_is_text(tmp_path: Path) -> None:
    stored(tmp_path / "run", **SCARCE)
    path = tmp_path / "run" / "run.json"
    head = json.loads(path.read_text())
    for key in ("policy", "platform", "trace_hash", "cost_model_hash"):
        head[key] = NASTY
    head["git"] = {"revision": NASTY, "dirty": True}
    head["warnings"] = [NASTY]
    head["trace_source"]["workload"] = NASTY
    head["resolved"]["cost_model"]["name"] = NASTY
    path.write_text(json.dumps(head))
    text = report(tmp_path / "run")
    page = parsed(text)
    assert "img" not in page.seen
    assert "<script" not in text.lower()
    assert NASTY in "".join(page.text)
    assert html.escape(NASTY[:25], quote=False) in text


WRONG: dict[str, Any] = {
    "policy": [None, 3, ["a"], {"x": 1}],
    "seed": ["0", None, 1.5, [1]],
    "point": [None, [], {"rate": {"a": 1}}],
    "trace_source": [None, 3, {"workload": None, "file": None}, {"file": 5}],
    "resolved": [None, [], {"objectives": []}, {"objectives": {"ttft": -5, "tpot_p99": "a"}, "memory": 3}],
    "git": [None, [], {"revision": 5}],
    "warnings": [None, "text", [1, None]],
    "host": [None, 5, "elsewhere", "server", "vllm"],
    "replay": [None, {"speed": "x"}],
    "engine": [[], {"options": []}],
}


@settings(deadline=None, max_examples=25)
@given(st.dictionaries(st.sampled_from(sorted(WRONG)), st.integers(0, 4)))
def test_odd_records_are_shown_as_well_as_can_be(
    tmp_path_factory: pytest.TempPathFactory, chosen: dict[str, int]
) -> None:
    base = tmp_path_factory.getbasetemp() / "odd"
    if not base.exists():
        stored(base, **{"trace.limit": 12})
        shutil.copy(base / "run.json", base / "kept.json")
    head = json.loads((base / "kept.json").read_text())
    for key, k in chosen.items():
        head[key] = WRONG[key][k % len(WRONG[key])]
    (base / "run.json").write_text(json.dumps(head))
    parsed(report(base))


@pytest.mark.parametrize(
    ("name", "column", "value", "told"),
    [
        ("steps", "replica", 10**6, "the steps are not those of one replica after the other"),
        ("steps", "replica", -1, "the steps are not those of one replica after the other"),
        ("requests", "visible_step", 10**6, "column visible_step points outside its replica's steps"),
        ("requests", "visible_step", -3, "column visible_step points outside its replica's steps"),
        ("requests", "replica", 5, "column visible_step points outside its replica's steps"),
        ("requests", "slo_ttft_ns", 0, "column slo_ttft_ns holds no time above 0"),
    ],
)
@pytest.mark.parametrize("command", ["why", "timeline"])
def test_tables_that_point_nowhere_are_one_sentence(
    name: str, column: str, value: int, told: str, command: str, cli: Cli, tmp_path: Path
) -> None:
    stored(tmp_path / "run", **{"trace.limit": 5})
    path = tmp_path / "run" / f"{name}.parquet"
    table = pq.read_table(path)
    values = [value, *table[column].to_pylist()[1:]]
    table = table.set_column(table.schema.get_field_index(column), column, pa.array(values, pa.int64()))
    pq.write_table(table, path)
    head = json.loads((tmp_path / "run" / "run.json").read_text())
    head["files"][path.name] = hashlib.sha256(path.read_bytes()).hexdigest()
    (tmp_path / "run" / "run.json").write_text(json.dumps(head))
    result = cli(command, "run")
    assert result.code == 2
    assert told in result.err
    assert result.err.count("\n") == 1


def broken(folder: Path, kind: str) -> str:
    """Damage a run and return what should be said of it."""
    if kind == "no record":
        (folder / "run.json").unlink()
        return "run.json is missing, so the run was interrupted"
    if kind == "damaged":
        (folder / "steps.parquet").write_bytes(b"PAR1")
        return "it was changed or damaged"
    if kind == "no json":
        (folder / "run.json").write_text("[" * 100_000)
        return "is not JSON"
    if kind == "other format":
        (folder / "run.json").write_text('{"format": "else"}')
        return "does not describe a run"
    if kind == "summary only":
        shutil.rmtree(folder)
        folder.mkdir()
        (folder / "run.json").write_text('{"resolved": {}}')
        (folder / "summary.json").write_text("{}")
        return "its tables were not kept"
    table = pq.read_table(folder / "requests.parquet")
    if kind == "fractions":
        at = table.schema.get_field_index("slo_ttft_ns")
        table = table.set_column(at, "slo_ttft_ns", pa.array([float("nan")] * len(table)))
        return _replaced(folder, table, "column slo_ttft_ns should hold whole numbers")
    table = (
        table.drop_columns(["ttft_ns"])
        if kind == "no column"
        else table.set_column(table.schema.get_field_index("ttft_ns"), "ttft_ns", [["x"] * len(table)])
    )
    told = "has no column ttft_ns" if kind == "no column" else "column ttft_ns should hold numbers"
    return _replaced(folder, table, told)


def _replaced(folder: Path, table: pa.Table, told: str) -> str:
    pq.write_table(table, folder / "requests.parquet")
    head = json.loads((folder / "run.json").read_text())
    head["files"]["requests.parquet"] = hashlib.sha256((folder / "requests.parquet").read_bytes()).hexdigest()
    (folder / "run.json").write_text(json.dumps(head))
    return told


@pytest.mark.parametrize(
    "kind",
    ["no record", "damaged", "no json", "other format", "summary only", "no column", "text for numbers", "fractions"],
)
def test_a_broken_run_is_one_sentence(kind: str, cli: Cli, tmp_path: Path) -> None:
    stored(tmp_path / "run", **{"trace.limit": 5})
    told = broken(tmp_path / "run", kind)
    result = cli("report", "run")
    assert result.code == 2
    assert told in result.err
    assert result.err.count("\n") == 1
    assert not (tmp_path / "report.html").exists()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["nowhere"], "there is no folder nowhere"),
        (["."], "is neither a run nor a sweep"),
        (["sweep"], "unfinished sweep"),
        (["run", "-o", "out.pdf"], "should end with .html"),
        (["run", "-o", "sweep"], "is a folder"),
    ],
)
def test_what_cannot_be_reported_is_one_sentence(arguments: list[str], told: str, cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "sweep").mkdir()
    (tmp_path / "sweep" / "sweep.json").write_text('{"axes": {}, "status": "running", "cells": []}')
    result = cli("report", *arguments)
    assert result.code == 2
    assert told in result.err
    assert result.err.count("\n") == 1


def test_a_link_to_itself_is_no_folder(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "run").symlink_to("run")
    result = cli("report", "run")
    assert result.code == 2
    assert "there is no folder run" in result.err


def test_a_sweep_cannot_point_outside_its_folder(tmp_path: Path) -> None:
    swept(tmp_path / "sweep", {}, **{"trace.limit": 5})
    path = tmp_path / "sweep" / "sweep.json"
    index = json.loads(path.read_text())
    index["cells"][0]["key"] = "../../secret"
    path.write_text(json.dumps(index))
    with pytest.raises(ValueError, match="without a usable key"):
        read_any(tmp_path / "sweep")


AGAIN: dict[str, list[str]] = {
    "plain": ["-p", "sloweave", "--slo", "ttft:1000,tpot_p99:25"],
    "own objective": ["-p", "fcfs+full"],
    "no objective": ["-p", "fcfs+full", "--slo", ""],
    "engine": ["-p", "vllm-default", "--max-num-seqs", "16", "--horizon", "0.3", "--pipeline-depth", "2"],
    "memory": ["-p", "fcfs+full", "--kv-blocks", "500", "--kv-block-size", "32", "--no-prefix-cache"],
    "store": [
        *("-p", "prefillonly", "--workload", "post-recommendation", "--memory", "store", "--kv-blocks", "2000"),
        *("--suffix", "discard"),
    ],
    "replicas": ["-p", "fcfs+full", "--replicas", "2", "--router", "least-loaded"],
    "cost models": [
        "-p",
        "sloweave:tpot=20",
        "--cost-model",
        "h100-llama3.1-8b",
        "--policy-cost-model",
        "sloweave-paper",
    ],
    "rate": ["-p", "srjf-calibrated:lam=500+full", "--rate", "31.5", "--rate-scale", "1.5"],
}


@pytest.mark.parametrize("kind", AGAIN)
def test_the_command_makes_the_very_run_again(kind: str, cli: Cli, tmp_path: Path) -> None:
    workload = [] if "--workload" in AGAIN[kind] else ["--workload", "mixed"]
    first = cli("simulate", *workload, "--requests", "20", "--seed", "3", *AGAIN[kind], "--out", "a")
    assert first.code == 0, first.err
    run = read_recorded(tmp_path / "a")
    command, _ = command_of(run)
    arguments = shlex.split(command)
    assert arguments[0] == "prefillsim"
    if run.info["resolved"]["energy"] is not None:
        assert any("hardware" in note for note in command_of(run)[1])
    again = cli(*arguments[1:], "--out", "b")
    assert again.code == 0, again.err
    assert read_recorded(tmp_path / "b").info["key"] == run.info["key"]


def test_a_cost_model_of_one_s_own_comes_out_of_the_record(cli: Cli, tmp_path: Path) -> None:
    from costmodels.io import load_cost_model

    own = {**load_cost_model("sloweave-paper").to_dict(), "name": "mine", "step_ns": 500_000}
    (tmp_path / "mine.json").write_text(json.dumps(own))
    shape = ["--workload", "mixed", "--requests", "20", "-p", "sloweave:tpot=30"]
    assert cli("simulate", *shape, "--cost-model", "mine.json", "--out", "a").code == 0
    run = read_recorded(tmp_path / "a")
    command, notes = command_of(run)
    assert any("cost-model.json is what a/run.json has under resolved.cost_model" in note for note in notes)
    (tmp_path / "cost-model.json").write_text(json.dumps(run.info["resolved"]["cost_model"]))
    again = cli(*shlex.split(command)[1:], "--out", "b")
    assert again.code == 0, again.err
    assert read_recorded(tmp_path / "b").info["key"] == run.info["key"]


@pytest.mark.parametrize(
    ("axes", "values"),
    [
        ({"rate": [20, 60.5]}, {}),
        ({"policy.chunk": [64, 128], "tpot": [20, 30]}, {"policies": ["fcfs+fixed:chunk=256", "sloweave"]}),
        (
            {"hardware.gpu": ["h100-sxm", "l4"]},
            {"hardware.llm": "llama-3.1-8b", "trace.workload": "post-recommendation", "policies": ["prefillonly"]},
        ),
    ],
)
def test_the_file_plans_the_very_sweep_again(axes: dict[str, Any], values: dict[str, Any], tmp_path: Path) -> None:
    swept(tmp_path / "sweep", axes, **{"trace.limit": 5, "keep": "summary", **values})
    sweep = read_any(tmp_path / "sweep")
    assert isinstance(sweep, Swept)
    (tmp_path / "again.toml").write_text(file_of(sweep))
    draft = Draft()
    draft.put_file(tmp_path / "again.toml")
    again = [cell.key for cell in plan(draft).cells]
    assert again == [cell["key"] for cell in json.loads((tmp_path / "sweep" / "sweep.json").read_text())["cells"]]


TEXTS = st.text(st.sampled_from('\x00\x1f\x7f"\\\n.# é') | st.characters(exclude_categories=["Cs"]), max_size=5)

SCALARS = st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | TEXTS


@settings(deadline=None, max_examples=40)
@given(
    st.recursive(
        st.dictionaries(TEXTS, SCALARS | st.lists(SCALARS, max_size=3), max_size=3),
        lambda inner: st.dictionaries(TEXTS, SCALARS | inner, max_size=3),
        max_leaves=6,
    )
)
def test_toml_reads_back(table: dict[str, Any]) -> None:
    import tomllib

    def full(value: dict[str, Any]) -> dict[str, Any]:
        return {k: full(v) if isinstance(v, dict) else v for k, v in value.items() if v != {}}

    def fuller(value: dict[str, Any]) -> dict[str, Any]:
        while (slim := full(value)) != value:
            value = slim
        return value

    assert fuller(tomllib.loads(toml(table))) == fuller(table)


@settings(deadline=None, max_examples=50)
@given(st.lists(st.floats(0, 1e9), min_size=1, max_size=1000), st.integers(5, 400))
def test_a_drawn_distribution_is_that_of_the_values(values: list[float], most: int) -> None:
    ordered = np.sort(np.array(values))
    xs, shares = steps_of(ordered, most)
    assert len(xs) <= max(most, 1)
    assert (xs[0], xs[-1]) == (ordered[0], ordered[-1])
    assert shares[-1] == 1.0
    rank = np.round(shares * len(ordered)).astype(int) - 1
    assert (ordered[rank] == xs).all()


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 6000), st.integers(0, 2**32 - 1))
def test_thinning_keeps_what_can_be_seen(n: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    px, py = np.sort(rng.uniform(0, 300, n)), rng.normal(size=n)
    kept = thinned(px, py)
    assert len(kept) <= max(4 * 360, n if n <= 4 * 360 else 0)
    column = np.floor(px).astype(int)
    for c in np.unique(column):
        own, those = py[column == c], py[kept][column[kept] == c]
        assert (own.min(), own.max(), own[0], own[-1]) == (those.min(), those.max(), those[0], those[-1])


@settings(deadline=None)
@example([5e-324], False, True)
@example([0.0, 5e-324], False, None)
@given(
    st.lists(st.floats(-1e12, 1e12) | st.just(float("nan")) | st.just(float("inf")), max_size=20),
    st.booleans(),
    st.sampled_from([None, False, True]),
)
def test_axes_hold_all_values_and_have_ticks(values: list[float], zero: bool, log: bool | None) -> None:
    with np.errstate(all="ignore"):
        scale = Scale.of([np.array(values)], zero=zero, log=log)
        ticks = scale.ticks()
        plot = Plot(scale, Scale(0, 1), "x", "y", "what")
        plot.points(np.nan_to_num(values, posinf=1, neginf=1), np.zeros(len(values)), 0)
        text = str(plot)
    assert "nan" not in text
    assert "inf" not in text.replace("info", "")
    assert len(ticks) <= 14
    assert len(set(tick_labels(ticks))) == len(ticks) or scale.high - scale.low < 1e-4 * abs(scale.high)
    finite = [v for v in values if np.isfinite(v)]
    if finite and not scale.log:
        assert scale.low <= min(finite)
        assert max(finite) <= scale.high


def test_the_definitions_are_those_of_the_summary(tmp_path: Path) -> None:
    """Attainment over arrivals adds up to that of the summary."""
    from experiments.webreport.charts import _binned, attainment_chart
    from sim.metrics import met

    tables = stored(tmp_path / "run", **{"trace.rate": 150.0})
    run = read_recorded(tmp_path / "run")
    assert attainment_chart([("a", [run])]) is not None
    good = met(run.tables.requests, run.objectives)
    _, (hits, came) = _binned(run.tables.requests["arrival_ns"], [good, np.ones(len(good))], 40)
    objectives = Objectives.parse("ttft:1000,tpot_p99:25")
    assert hits.sum() / came.sum() == summarise(tables.requests, tables.steps, objectives)["slo_attainment"]


ODD = (-(2**63), -(2**62), -5, -1, 0, 1, 10**6, 2**40, 2**62, 2**63 - 1)


@settings(deadline=None, max_examples=25)
@given(st.data())
def test_odd_tables_are_shown_or_refused_in_a_sentence(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    base = tmp_path_factory.getbasetemp() / "odd-tables"
    if not base.exists():
        stored(base, batches=True, **{**SCARCE, "trace.limit": 30})
        shutil.copytree(base, base / "kept")
    name = data.draw(st.sampled_from(["requests", "steps", "preemptions", "batches"])) + ".parquet"
    table = pq.read_table(base / "kept" / name)
    for _ in range(data.draw(st.integers(1, 3))):
        column = data.draw(st.sampled_from(table.column_names))
        at = data.draw(st.integers(0, len(table) - 1))
        values = table[column].to_pylist()
        floats = str(table.schema.field(column).type) == "double"
        values[at] = data.draw(
            st.sampled_from([float("inf"), -1e300, 1e300, None]) if floats else st.sampled_from((*ODD, None))
        )
        kind = table.schema.field(column).type
        if str(kind) == "string":
            values[at] = data.draw(st.sampled_from(["", "x", "finished", None]))
        table = table.set_column(table.schema.get_field_index(column), column, pa.array(values, kind))
    shutil.copytree(base / "kept", base, dirs_exist_ok=True)
    pq.write_table(table, base / name)
    head = json.loads((base / "run.json").read_text())
    head["files"][name] = hashlib.sha256((base / name).read_bytes()).hexdigest()
    (base / "run.json").write_text(json.dumps(head))
    with contextlib.suppress(StoreError):
        parsed(report(base))
        json.loads("".join(trace_lines([read_recorded(base)])))
