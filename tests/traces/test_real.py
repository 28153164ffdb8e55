"""The public traces, whole: row counts, repairs, and round trips of real content."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from traces.describe import ideal_prefix_hit_rate
from traces.io import read_trace, write_trace
from traces.lint import lint_trace
from traces.schema import Trace

pytestmark = pytest.mark.real

FILES = {
    "AzureLLMInferenceTrace_code.csv": ("azure", 8_819, 0),
    "AzureLLMInferenceTrace_conv.csv": ("azure", 19_366, 0),
    "mooncake_conversation.jsonl": ("mooncake", 12_031, 0),
    "mooncake_synthetic.jsonl": ("mooncake", 3_993, 0),
    "ragpulse_trace.jsonl": ("ragpulse", 7_106, 1),
    "sharegpt_lengths.csv": ("sharegpt", 30_731, 1),
}


@pytest.mark.parametrize("name", FILES)
def test_every_row_is_read(public_trace: Callable[[str], Trace], public_path: Callable[[str], Path], name: str) -> None:
    fmt, rows, warnings = FILES[name]
    trace = public_trace(name)
    assert len(trace) == rows
    assert len(trace.warnings) == warnings
    assert trace.arrival_ns[0] == 0
    report = lint_trace(public_path(name))
    assert (report.ok, report.format, report.rows, len(report.problems)) == (True, fmt, rows, warnings)


def test_azure_times_are_those_of_the_text(
    public_trace: Callable[[str], Trace], public_path: Callable[[str], Path]
) -> None:
    name = "AzureLLMInferenceTrace_conv.csv"

    def nanoseconds(row: str) -> int:
        clock = row.split(",")[0].split(" ")[1]
        hours, minutes, seconds = clock.split(":")
        whole, fraction = seconds.split(".")
        return ((int(hours) * 60 + int(minutes)) * 60 + int(whole)) * 10**9 + int(fraction) * 100

    rows = public_path(name).read_text().splitlines()[1:]
    times = list(map(nanoseconds, rows))
    trace = public_trace(name)
    assert trace.arrival_ns.tolist() == [t - times[0] for t in times]
    assert trace.prompt_tokens.tolist() == [int(r.split(",")[1]) for r in rows]


def test_the_two_weeks_of_ragpulse_are_sorted_into_one_with_a_warning(public_trace: Callable[[str], Trace]) -> None:
    trace = public_trace("ragpulse_trace.jsonl")
    assert trace.row is not None
    pairs = list(zip(trace.arrival_ns.tolist(), trace.row.tolist(), strict=True))
    assert pairs == sorted(pairs)
    # The seam between lines 3800 and 3801 is the only fall.
    assert sorted(trace.row.tolist()) == list(range(7_106))
    assert np.all(np.diff(trace.arrival_ns[np.argsort(trace.row)])[np.arange(7_105) != 3_799] >= 0)
    assert "line 3801, column timestamp: 1 request arrives before the one above" in trace.warnings[0]
    assert "on line 3,801 times fall by 604,453 s, as where two recordings were joined" in trace.warnings[0]


@pytest.mark.parametrize("name", FILES)
def test_parquet_round_trip(public_trace: Callable[[str], Trace], tmp_path: Path, name: str) -> None:
    trace = public_trace(name)
    write_trace(trace, tmp_path / "t.parquet")
    assert read_trace(tmp_path / "t.parquet") == trace


@pytest.mark.parametrize("name", ["mooncake_conversation.jsonl", "mooncake_synthetic.jsonl"])
def test_mooncake_comes_back_as_it_was(public_trace: Callable[[str], Trace], tmp_path: Path, name: str) -> None:
    trace = public_trace(name)
    write_trace(trace, tmp_path / name)
    again = read_trace(tmp_path / name)
    # Ids are numbered anew by first appearance, which is how Mooncake numbers them but for a few.
    assert ideal_prefix_hit_rate(again) == ideal_prefix_hit_rate(trace)
    assert again.prompt_tokens.tolist() == trace.prompt_tokens.tolist()
    assert again.arrival_ns.tolist() == trace.arrival_ns.tolist()
    write_trace(again, tmp_path / "again.jsonl")
    assert (tmp_path / "again.jsonl").read_bytes() == (tmp_path / name).read_bytes()
