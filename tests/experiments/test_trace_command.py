"""``prefillsim trace``: what is made, described, checked and converted is what the traces package says."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from traces.describe import describe
from traces.io import read_trace, write_trace
from traces.schema import Trace
from traces.synthetic import WORKLOADS, generate

Cli = Callable[..., Any]

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"


@pytest.mark.parametrize("workload", WORKLOADS)
def test_a_generated_file_is_the_workload(cli: Cli, tmp_path: Path, workload: str) -> None:
    done = cli(
        "trace",
        "generate",
        "--workload",
        workload,
        "--requests",
        "30",
        "--seed",
        "4",
        "--rate",
        "7",
        "--out",
        "t.parquet",
    )
    assert done.code == 0
    expected = generate(workload, 4, 30, 7.0)
    assert read_trace(tmp_path / "t.parquet").digest() == expected.digest()
    assert done.out == "30 requests: t.parquet\n"


def test_a_workload_and_its_file_are_described_alike(cli: Cli) -> None:
    options = ["--workload", "mixed", "--limit", "200", "--seed", "2"]
    direct = cli("trace", "info", *options, "--json").json
    written = cli("trace", "generate", *options, "--out", "t.parquet", "--json").json
    assert written["hash"] == generate("mixed", 2, 200).digest()
    from_file = cli("trace", "info", "t.parquet", "--json").json
    assert direct == json.loads(json.dumps(describe(generate("mixed", 2, 200))))
    assert {**from_file, "name": direct["name"]} == direct
    shown = cli("trace", "info", "t.parquet").out
    assert "prompt_tokens p99" in shown
    assert "200" in shown


def test_converting_keeps_lengths_and_applies_the_options(cli: Cli, tmp_path: Path) -> None:
    rows = [f"2023-11-16 18:15:{i:02d}.5000000,{100 + i},{5 + i}\n" for i in range(6)]
    (tmp_path / "azure.csv").write_text(AZURE + "".join(rows))
    assert cli("trace", "convert", "azure.csv", "a.parquet", "--limit", "4", "--rate-scale", "2").code == 0
    trace = read_trace(tmp_path / "a.parquet")
    assert trace.prompt_tokens.tolist() == [100, 101, 102, 103]
    assert trace.arrival_ns.tolist() == [0, 500_000_000, 1_000_000_000, 1_500_000_000]
    assert cli("trace", "convert", "a.parquet", "b.jsonl", "--to-block-size", "16").code == 0
    back = read_trace(tmp_path / "b.jsonl", block_size=16)
    assert back.prompt_tokens.tolist() == trace.prompt_tokens.tolist()
    assert back.output_tokens.tolist() == trace.output_tokens.tolist()
    assert back.arrival_ns.tolist() == trace.arrival_ns.tolist()


def test_what_a_timed_trace_cannot_hold_is_named(cli: Cli, tmp_path: Path) -> None:
    one = np.ones(1, dtype=np.int64)
    trace = Trace(one, one, one, slo_tpot_ns=25_000_000 * one, tenant=np.array(["a"], dtype=object))
    write_trace(trace, tmp_path / "a.parquet")
    warned = cli("trace", "convert", "a.parquet", "b.jsonl", "--json").json["warnings"]
    assert warned == ["a timed-trace has no column for tenant, slo_tpot_ns; not written"]
    assert cli("trace", "convert", "a.parquet", "b.parquet", "--json").json["warnings"] == []


def test_lint_lists_every_problem_and_fails_on_errors(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "bad.csv").write_text(AZURE + "2023-11-16 18:15:46.5,0,5\n2023-11-16 18:15:47.5,7,abc\n")
    document = cli("trace", "lint", "bad.csv", "--json")
    assert document.code == 2
    assert document.json["ok"] is False
    assert document.json["rows"] == 2
    assert [(p["line"], p["column"], p["severity"]) for p in document.json["problems"]] == [
        (2, "ContextTokens", "error"),
        (3, "GeneratedTokens", "error"),
    ]
    shown = cli("trace", "lint", "bad.csv")
    assert shown.code == 2
    assert "error: bad.csv, line 2, column ContextTokens" in shown.out
    assert "error: bad.csv, line 3, column GeneratedTokens" in shown.out


def test_a_report_is_kept_where_out_says_and_never_over_another(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "good.csv").write_text(AZURE + "2023-11-16 18:15:46.5,7,5\n")
    for command, name in (("info", "trace-info"), ("lint", "trace-lint")):
        done = cli("trace", command, "good.csv", "--out", command, "--json", "--seed", "1")
        assert done.code == 0
        assert json.loads((tmp_path / command / f"{name}.json").read_text()) == done.json
        again = cli("trace", command, "good.csv", "--out", command)
        assert again.code == 2
        assert command in again.err


def test_a_trace_goes_into_a_folder_or_a_file_but_into_one_of_them(cli: Cli, tmp_path: Path) -> None:
    assert cli("trace", "generate", "--workload", "chat", "--requests", "3", "--out", "made").code == 0
    assert cli("trace", "convert", "made/chat.parquet", "--out", "made", "--to", "timed-trace").code == 0
    assert len(read_trace(tmp_path / "made" / "chat.jsonl")) == 3
    assert cli("trace", "convert", "made/chat.parquet").code == 2
    assert cli("trace", "convert", "made/chat.parquet", "a.parquet", "--out", "b.parquet").code == 2
    assert not (tmp_path / "a.parquet").exists()


def test_lint_passes_a_good_file_with_its_warnings(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "unsorted.csv").write_text(AZURE + "2023-11-16 18:15:47.5,7,5\n2023-11-16 18:15:46.5,7,5\n")
    done = cli("trace", "lint", "unsorted.csv")
    assert done.code == 0
    assert "warning: unsorted.csv, line 3" in done.out
    assert "unsorted.csv: no errors, 2 rows, format azure" in done.out
    assert "warning: unsorted.csv, line 3" in cli("trace", "info", "unsorted.csv").err


def test_a_trace_without_requests_is_an_error_wherever_it_is_used(cli: Cli, tmp_path: Path) -> None:
    write_trace(generate("chat", 0, 1).limit(0), tmp_path / "empty.parquet")
    for command in (["trace", "info", "empty.parquet"], ["compare", "--trace", "empty.parquet", "-p", "sloweave"]):
        done = cli(*command)
        assert done.code == 2
        assert "empty.parquet: the trace has no requests" in done.err
