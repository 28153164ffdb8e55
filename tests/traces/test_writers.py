"""A file is written whole or not at all."""

import resource
from pathlib import Path

import numpy as np
import pytest

from traces import writers
from traces.io import read_trace, write_trace
from traces.schema import Trace, TraceError

FORMATS = ["parquet", "timed-trace"]


@pytest.fixture
def trace() -> Trace:
    """A trace that needs some 50 kB as either format."""
    rng = np.random.default_rng(0)
    n = 5_000
    return Trace(np.sort(rng.integers(0, 2**50, n)), rng.integers(1, 4_000, n), rng.integers(1, 4_000, n), name="big")


@pytest.mark.parametrize("fmt", FORMATS)
def test_a_full_disk_leaves_the_old_file(tmp_path: Path, trace: Trace, fmt: str) -> None:
    path = tmp_path / "trace"
    path.write_text("old")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2_000, hard))
    try:
        with pytest.raises(TraceError, match=f"^{path}: the file cannot be written \\(File too large\\)$"):
            write_trace(trace, path, fmt=fmt)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["trace"]


def test_an_interrupt_leaves_the_old_file(tmp_path: Path, trace: Trace, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(trace: Trace, block_size: int) -> object:
        yield [0]
        raise KeyboardInterrupt

    path = tmp_path / "trace.jsonl"
    path.write_text("old")
    monkeypatch.setattr(writers, "block_hashes", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_trace(trace, path)
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["trace.jsonl"]


@pytest.mark.parametrize("fmt", FORMATS)
def test_who_reads_the_old_file_keeps_it(tmp_path: Path, trace: Trace, fmt: str) -> None:
    path = tmp_path / "trace"
    path.write_text("old")
    with path.open() as reader:
        write_trace(trace, path, fmt=fmt)
        assert reader.read() == "old"
    assert path.read_bytes()[:3] != b"old"


@pytest.mark.parametrize("suffix", [".parquet", ".jsonl"])
def test_the_suffix_says_the_format(tmp_path: Path, trace: Trace, suffix: str) -> None:
    write_trace(trace, tmp_path / f"t{suffix}")
    assert len(read_trace(tmp_path / f"t{suffix}", block_size=512)) == len(trace)


def test_what_cannot_be_written(tmp_path: Path, trace: Trace) -> None:
    with pytest.raises(TraceError, match=r"the suffix is not one of \.parquet, \.jsonl; give the format"):
        write_trace(trace, tmp_path / "t.csv")
    with pytest.raises(TraceError, match="the format azure cannot be written; these can: parquet, timed-trace"):
        write_trace(trace, tmp_path / "t.csv", fmt="azure")
    with pytest.raises(TraceError, match="a block has at least 1 token, not 0"):
        write_trace(trace, tmp_path / "t.jsonl", block_size=0)
    with pytest.raises(TraceError, match="a trace without requests cannot be written as timed-trace"):
        write_trace(trace.limit(0), tmp_path / "t.jsonl")
    assert list(tmp_path.iterdir()) == []


def test_where_it_cannot_be_written(tmp_path: Path, trace: Trace) -> None:
    with pytest.raises(TraceError, match="no file that can be replaced"):
        write_trace(trace, tmp_path, fmt="parquet")
    with pytest.raises(TraceError, match=f"No such file or directory\\); the folder {tmp_path / 'no'} does not exist"):
        write_trace(trace, tmp_path / "no" / "t.parquet")
    with pytest.raises(TraceError, match="File name too long"):
        write_trace(trace, tmp_path / ("n" * 300), fmt="parquet")


def test_times_are_written_without_rounding(tmp_path: Path) -> None:
    times = [0, 1, 10**6, 1_500_000, 2**55 + 1]
    trace = Trace(np.array(times), np.full(5, 600), np.ones(5, np.int64))
    write_trace(trace, tmp_path / "t.jsonl")
    assert read_trace(tmp_path / "t.jsonl", block_size=512).arrival_ns.tolist() == times
    lines = (tmp_path / "t.jsonl").read_text().splitlines()
    assert lines[1] == '{"timestamp": 0.000001, "input_length": 600, "output_length": 1, "hash_ids": [2, 3]}'
    assert [line[14 : line.index(",")] for line in lines] == ["0", "0.000001", "1", "1.5", "36028797018.963969"]
