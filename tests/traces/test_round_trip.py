"""What is written can be read back: exactly as Parquet, with its lengths and shared prefixes as timed-trace."""

from dataclasses import replace
from itertools import takewhile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.traces.strategies import traces
from traces.describe import ideal_prefix_hit_rate
from traces.io import read_trace, write_trace
from traces.lint import lint_trace
from traces.schema import Segments, Trace


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder for all examples of a property."""
    return tmp_path_factory.mktemp("round-trip")


@settings(deadline=None, max_examples=60)
@given(trace=traces())
def test_parquet_gives_back_the_same_trace(folder: Path, trace: Trace) -> None:
    path = folder / "t.parquet"
    write_trace(trace, path)
    again = read_trace(path)
    assert again == trace
    assert again.digest() == trace.digest()
    assert again.warnings == ()


@settings(deadline=None, max_examples=25)
@given(trace=traces())
def test_equal_traces_make_equal_bytes(folder: Path, trace: Trace) -> None:
    a, b = folder / "a.parquet", folder / "b.parquet"
    write_trace(trace, a)
    write_trace(replace(trace.select(np.arange(len(trace))), warnings=("repaired",)), b)
    assert a.read_bytes() == b.read_bytes()
    write_trace(read_trace(a), b)
    assert a.read_bytes() == b.read_bytes()


def whole_tokens(trace: Trace, row: int) -> list[tuple[int, int]]:
    """Every token of a prompt by its content id and place in it."""
    if trace.segments is None:
        return [(-1 - row, k) for k in range(int(trace.prompt_tokens[row]))]
    return [(content, k) for content, tokens in trace.segments.of(row) for k in range(tokens)]


def cut(tokens: list[tuple[int, int]], size: int) -> list[tuple[tuple[int, int], ...]]:
    """Blocks of a prompt, the last one partial."""
    return [tuple(tokens[i : i + size]) for i in range(0, len(tokens), size)]


def leading(a: list, b: list) -> int:
    """How many leading entries are equal."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False)))


@settings(deadline=None, max_examples=60)
@given(trace=traces(min_size=1), size=st.sampled_from([1, 3, 16, 512]))
def test_timed_trace_keeps_lengths_and_shared_blocks(folder: Path, trace: Trace, size: int) -> None:
    path = folder / "t.jsonl"
    write_trace(trace, path, block_size=size)
    again = read_trace(path, block_size=size)
    assert again.warnings == ()
    assert again.arrival_ns.tolist() == (trace.arrival_ns - trace.arrival_ns[0]).tolist()
    assert again.prompt_tokens.tolist() == trace.prompt_tokens.tolist()
    assert again.output_tokens.tolist() == trace.output_tokens.tolist()
    blocks = [cut(whole_tokens(trace, row), size) for row in range(len(trace))]
    assert again.segments is not None
    for a in range(len(trace)):
        ids_a = [i for i, _ in again.segments.of(a)]
        assert [t for _, t in again.segments.of(a)] == list(map(len, blocks[a]))
        for b in range(a):
            ids_b = [i for i, _ in again.segments.of(b)]
            assert leading(ids_a, ids_b) == leading(blocks[a], blocks[b])


@settings(deadline=None, max_examples=50)
@given(trace=traces(min_size=1), size=st.sampled_from([3, 16, 512]))
def test_writing_blocks_again_changes_nothing(folder: Path, trace: Trace, size: int) -> None:
    first, second = folder / "1.jsonl", folder / "2.jsonl"
    write_trace(trace, first, block_size=size)
    again = read_trace(first, block_size=size)
    write_trace(again, second, block_size=size)
    rebased = read_trace(second, block_size=size)
    assert replace(rebased, name=again.name) == again
    assert ideal_prefix_hit_rate(rebased) == ideal_prefix_hit_rate(again)


@settings(deadline=None, max_examples=50)
@given(trace=traces(min_size=1), size=st.sampled_from([16, 64, 512]))
def test_an_inferred_block_size_is_the_written_one_or_warned_of(folder: Path, trace: Trace, size: int) -> None:
    path = folder / "inferred.jsonl"
    write_trace(trace, path, block_size=size)
    told = read_trace(path, block_size=size)
    report = lint_trace(path)
    if report.ok:
        inferred = read_trace(path)
        assert inferred.warnings or inferred == told
    else:
        assert [p.message.partition(" fits this file; ")[2] for p in report.problems] == ["give the block size"]


def test_a_prompt_without_content_shares_nothing(tmp_path: Path) -> None:
    trace = Trace(np.zeros(2, np.int64), np.array([600, 600]), np.ones(2, np.int64))
    write_trace(trace, tmp_path / "t.jsonl")
    ids = read_trace(tmp_path / "t.jsonl", block_size=512).segments
    assert ids is not None
    assert ids.ids.tolist() == [0, 1, 2, 3]


def test_prompts_that_part_inside_a_block_share_only_the_blocks_before(tmp_path: Path) -> None:
    segments = Segments(np.array([0, 2, 4]), np.array([7, 8, 7, 9]), np.array([40, 8, 40, 24]))
    trace = Trace(np.zeros(2, np.int64), np.array([48, 64]), np.ones(2, np.int64), segments=segments)
    write_trace(trace, tmp_path / "t.jsonl", block_size=16)
    lines = (tmp_path / "t.jsonl").read_text().splitlines()
    assert [line.partition('"hash_ids": ')[2] for line in lines] == ["[0, 1, 2]}", "[0, 1, 3, 4]}"]
