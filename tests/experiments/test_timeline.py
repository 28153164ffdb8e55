"""Timelines: read as Perfetto reads them, they hold the steps, the requests and the totals of the run."""

from __future__ import annotations

import gzip
import json
import os
import sqlite3
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.recorded import read_recorded
from experiments.timeline import _lanes, microseconds, trace_lines
from sim.records import FINISHED
from sim.store import read_run
from tests.experiments.conftest import Cli
from tests.experiments.runs import SCARCE, stored

PROCESSOR = "PREFILLSIM_TRACE_PROCESSOR"
"""Names Perfetto's trace_processor_shell."""

STEPS_SQL = "select count(*) from slice where category = 'step'"
PREFILL_SQL = "select sum(dur) from slice where category = 'step' and name like 'prefill%'"


def nanoseconds(us: float) -> int:
    """Perfetto's rule: times a thousand, the fraction dropped."""
    return int(us * 1000.0)


@settings(deadline=None)
@given(st.integers(0, 2**52))
def test_every_nanosecond_survives(start: int) -> None:
    assert 1000 * 1.001 < 1001, "the reader drops a nanosecond that is written plainly"
    for ns in range(start, start + 100):
        assert nanoseconds(json.loads(json.dumps(microseconds(ns)))) == ns


def loaded(text: str) -> tuple[sqlite3.Connection, list[dict[str, Any]]]:
    """Read a trace by the rules of Perfetto's JSON importer into its table ``slice``, and refuse what it would drop.

    Slices on a thread and asynchronous slices of one process, category and id nest; an end names the innermost
    open slice.
    """
    document = json.loads(text)
    assert document["displayTimeUnit"] == "ms"
    events = document["traceEvents"]
    db = sqlite3.connect(":memory:")
    db.execute("create table slice (pid, track, ts, dur, name, category, args)")
    timed = [e for e in events if e["ph"] != "M"]
    for event in timed:
        assert isinstance(event["ts"], int | float)
    stacks: dict[Any, list[tuple[int, str, Any]]] = defaultdict(list)
    busy: dict[Any, int] = {}
    for event in sorted(timed, key=lambda e: nanoseconds(e["ts"])):
        ts = nanoseconds(event["ts"])
        if event["ph"] == "X":
            track = (event["pid"], event["tid"])
            assert ts >= busy.get(track, 0), "slices of a thread overlap"
            duration = nanoseconds(event["dur"])
            busy[track] = ts + duration
            row = (event["pid"], event["tid"], ts, duration, event["name"], event["cat"], json.dumps(event["args"]))
            db.execute("insert into slice values (?, ?, ?, ?, ?, ?, ?)", row)
        elif event["ph"] in "ben":
            track = (event["pid"], event["cat"], event["id2"]["local"])
            if event["ph"] == "b":
                stacks[track].append((ts, event["name"], event.get("args")))
            else:
                began, name, args = stacks[track].pop() if event["ph"] == "e" else (ts, event["name"], None)
                assert name == event["name"], "an end closes another slice"
                row = (event["pid"], track[2], began, ts - began, name, event["cat"], json.dumps(args))
                db.execute("insert into slice values (?, ?, ?, ?, ?, ?, ?)", row)
        else:
            assert event["ph"] == "C"
            assert all(isinstance(v, int | float) for v in event["args"].values())
    assert not any(stacks.values()), "a slice never ends"
    return db, events


KINDS = {
    "plain": {},
    "scarce memory": SCARCE,
    "several prefills": {"policies": ["vllm-default"], "trace.limit": 150},
    "cut off": {"engine.horizon": 0.4},
    "replicas": {"cluster.replicas": 2, "cluster.router": "round-robin"},
    "asynchronous": {"engine.pipeline_depth": 2},
    "rejections": {"memory.blocks": 300, "memory.max_input": 1000},
    "pipeline": {
        "trace.workload": "post-recommendation",
        "policies": ["fcfs+full"],
        "trace.limit": 20,
        "hardware.gpu": "l4",
        "hardware.llm": "llama-3.1-8b",
        "hardware.pp": 2,
        "hardware.link": "pcie",
    },
    "prefill only": {"trace.workload": "post-recommendation", "policies": ["prefillonly"], "trace.limit": 40},
}


@pytest.mark.parametrize("batches", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_totals_are_those_of_the_run(kind: str, batches: bool, tmp_path: Path) -> None:
    tables = stored(tmp_path / "run", batches=batches, **KINDS[kind])
    requests, steps = tables.requests, tables.steps
    db, _ = loaded("".join(trace_lines([read_recorded(tmp_path / "run")])))

    def one(sql: str) -> int:
        return int(db.execute(sql).fetchone()[0] or 0)

    prefill = steps["prefill_tokens"] > 0
    assert one(STEPS_SQL) == len(steps["start_ns"])
    assert one(PREFILL_SQL) == steps["duration_ns"][prefill].sum()
    assert (
        one("select sum(args ->> '$.prefill tokens') from slice where category = 'step'")
        == steps["prefill_tokens"].sum()
    )
    started = requests["first_scheduled_ns"] >= 0
    assert one("select count(*) from slice where name = 'request'") == len(requests["arrival_ns"])
    assert (
        one("select sum(dur) from slice where name = 'queued'")
        == (requests["first_scheduled_ns"] - requests["arrival_ns"])[started].sum()
    )
    done = requests["outcome"] == FINISHED
    assert one("select count(*) from slice where name = 'finished'") == done.sum()
    decoding = (requests["finished_ns"] - requests["first_token_ns"])[done].sum()
    if done.all():
        assert one("select sum(dur) from slice where name = 'decode' and category = 'request'") == decoding
    if batches:
        chunked = one("select sum(args ->> '$.tokens') from slice where name = 'chunk'")
        assert chunked == tables.chunks["tokens"].sum()


def test_several_runs_are_processes_of_one_trace(tmp_path: Path) -> None:
    for name, seed in (("a", 0), ("b", 1)):
        stored(tmp_path / name, seeds=[seed])
    db, events = loaded("".join(trace_lines([read_recorded(tmp_path / name) for name in "ab"])))
    names = [e["args"]["name"] for e in events if e["name"] == "process_name"]
    assert names == ["sloweave on mixed, seed 0", "sloweave on mixed, seed 1"]
    for pid, name in ((1, "a"), (2, "b")):
        count = db.execute(f"{STEPS_SQL} and pid = {pid}").fetchone()[0]
        assert count == len(read_run(tmp_path / name).steps["start_ns"])
    threads = [(e["pid"], e["tid"]) for e in events if e["name"] == "thread_name"]
    assert len({tid for _, tid in threads}) == len(threads)


def test_counters_say_what_each_step_began_with(tmp_path: Path) -> None:
    tables = stored(tmp_path / "run", **SCARCE)
    _, events = loaded("".join(trace_lines([read_recorded(tmp_path / "run")])))
    for name, key, column in (
        *(("queue", "requests", "waiting"), ("batch", "decodes", "n_decode"), ("batch", "prefills", "n_prefill")),
        ("KV blocks", "in use", "kv_blocks"),
    ):
        points = [(nanoseconds(e["ts"]), e["args"][key]) for e in events if e["ph"] == "C" and e["name"] == name]
        times, values = (np.array(v) for v in zip(*points, strict=True))
        at = np.searchsorted(times, tables.steps["start_ns"], side="right") - 1
        assert (values[at] == tables.steps[column]).all()


def test_a_window_keeps_what_is_in_it(cli: Cli, tmp_path: Path) -> None:
    tables = stored(tmp_path / "run")
    result = cli("timeline", "run", "-o", "part.json.gz", "--window", "100:300")
    assert result.code == 0, result.err
    db, _ = loaded(gzip.decompress((tmp_path / "part.json.gz").read_bytes()).decode())
    start = tables.steps["start_ns"]
    assert db.execute(STEPS_SQL).fetchone()[0] == ((start >= 100e6) & (start < 300e6)).sum()
    there = (tables.requests["arrival_ns"] < 300e6) & (tables.requests["finished_ns"] >= 100e6)
    assert db.execute("select count(*) from slice where name = 'request'").fetchone()[0] == there.sum()


def test_a_picture_of_a_window(cli: Cli, tmp_path: Path) -> None:
    stored(tmp_path / "a")
    stored(tmp_path / "b", policies=["fcfs+full"])
    svgs = []
    for name in ("1.svg", "2.svg"):
        result = cli("timeline", "a", "b", "--svg", name, "--window", "100:150")
        assert result.code == 0, result.err
        svgs.append((tmp_path / name).read_text())
    assert svgs[0] == svgs[1]
    assert svgs[0].lstrip().startswith("<?xml")
    assert not (tmp_path / "trace.json").exists()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["nowhere"], "there is no folder nowhere"),
        (["."], "is neither a run nor a sweep"),
        (["run", "--window", "5"], "should read FROM:TO in ms"),
        (["run", "--window", "300:100"], "should read FROM:TO in ms"),
        (["run", "--svg", "a.svg"], "give one with --window"),
        (["run", "-o", "a.txt"], "should end with .json or .json.gz"),
        (["run", "-o", "no/where.json"], "there is no folder no"),
    ],
)
def test_what_cannot_be_used_is_one_sentence(arguments: list[str], told: str, cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    result = cli("timeline", *arguments)
    assert result.code == 2
    assert told in result.err
    assert result.err.count("\n") == 1


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 20), st.integers(0, 2)), max_size=30))
def test_a_step_lies_on_the_first_thread_with_room(rows: list[tuple[int, int, int]]) -> None:
    starts, durations, replicas = np.array(sorted(rows), dtype=np.int64).reshape(-1, 3).T
    ends: dict[int, list[int]] = {}
    first = []
    for start, duration, replica in zip(starts.tolist(), durations.tolist(), replicas.tolist(), strict=True):
        own = ends.setdefault(replica, [])
        lane = next((k for k, end in enumerate(own) if end <= start), len(own))
        own[lane:] = [start + duration, *own[lane + 1 :]]
        first.append((replica, lane))
    steps = {"start_ns": starts, "duration_ns": durations, "replica": replicas}
    assert _lanes(steps, np.arange(len(rows))) == first


def test_steps_that_all_overlap_do_not_take_for_ever() -> None:
    n = 100_000  # with a look at every thread for each it would be five thousand million
    steps = {"start_ns": np.arange(n), "duration_ns": np.full(n, n), "replica": np.zeros(n, dtype=np.int64)}
    assert _lanes(steps, np.arange(n)) == [(0, k) for k in range(n)]


def test_pauses_of_one_request_are_told_one_after_the_other(tmp_path: Path) -> None:
    """In runs they are; in a table that somebody wrote all may hold all chunks."""
    stored(tmp_path / "run", batches=True, **SCARCE)
    run = read_recorded(tmp_path / "run")
    steps = min(len(run.tables.steps["start_ns"]), 300)
    after, until = np.meshgrid(np.arange(steps), np.arange(steps))
    request = np.full(steps * steps, run.tables.preemptions["request"][0])
    columns = {"step": after.ravel(), "request": request, "after": after.ravel(), "until": until.ravel()}
    text = "".join(trace_lines([replace(run, tables=replace(run.tables, preemptions=columns))]))
    assert text.count('"chunk"') <= 2 * 2 * len(run.tables.batches["step"])  # type: ignore[index]


def test_names_cannot_break_out_of_the_document(tmp_path: Path) -> None:
    stored(tmp_path / "run")
    head = json.loads((tmp_path / "run" / "run.json").read_text())
    head["policy"] = '"}], \u2028 </script> \x00 \\'
    (tmp_path / "run" / "run.json").write_text(json.dumps(head))
    text = "".join(trace_lines([read_recorded(tmp_path / "run")]))
    assert json.loads(text)["traceEvents"][0]["args"]["name"].startswith(head["policy"])
    assert text.isascii()
    assert text.isprintable() or "\x00" not in text


@pytest.mark.skipif(PROCESSOR not in os.environ, reason=f"{PROCESSOR} does not name Perfetto's trace_processor_shell")
def test_perfetto_itself_counts_the_same(tmp_path: Path) -> None:
    perfetto = pytest.importorskip("perfetto.trace_processor")
    tables = stored(tmp_path / "run", **SCARCE)
    trace = tmp_path / "trace.json"
    trace.write_text("".join(trace_lines([read_recorded(tmp_path / "run")])))
    config = perfetto.TraceProcessorConfig(bin_path=os.environ[PROCESSOR])
    with perfetto.TraceProcessor(trace=str(trace), config=config) as processor:
        for sql, ours in (
            (STEPS_SQL, len(tables.steps["start_ns"])),
            (PREFILL_SQL, tables.steps["duration_ns"][tables.steps["prefill_tokens"] > 0].sum()),
        ):
            (row,) = processor.query(sql.replace("(*)", "(*) as n").replace("(dur)", "(dur) as n"))
            assert row.n == ours
