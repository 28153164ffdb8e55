"""Whatever a file holds, it is read or refused with one sentence, and lint agrees with reading."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from traces.io import FORMATS, read_trace, write_trace
from traces.lint import lint_trace
from traces.schema import Trace, TraceError

SEEDS = sorted((Path(__file__).parents[1] / "data").iterdir())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder for all examples of a property."""
    return tmp_path_factory.mktemp("fuzz")


def verdict(path: Path, block_size: int | None) -> None:
    """Reading gives a valid trace or a :class:`TraceError`, and lint agrees which."""
    report = lint_trace(path, block_size=block_size)
    if not report.ok:
        with pytest.raises(TraceError) as error:
            read_trace(path, block_size=block_size)
        first = next(p for p in report.problems if p.severity == "error")
        assert str(error.value) == first.sentence(str(path))
    else:
        trace = read_trace(path, block_size=block_size)
        assert report.format in FORMATS
        assert 1 <= len(trace) <= report.rows
        assert trace.arrival_ns[0] == 0
        assert sorted(p.sentence(str(path)) for p in report.problems) == sorted(trace.warnings)


PATCHES = ("", ",", '"', "\n", "\n\n", "-1", "0", "NaN", "1e3", "null", "{", "]", "é", "\0", " ", "-", "9" * 25)

LENGTH = 3 + 3 * 4


def damaged(drawn: bytes) -> tuple[str, int | None]:
    """Choose a file, up to three edits of it, and a block size; a draw for each choice takes longer."""
    text = SEEDS[drawn[0] % len(SEEDS)].read_text()
    for start in range(3, 3 + 4 * (1 + drawn[1] % 3), 4):
        patch, length = PATCHES[drawn[start] % len(PATCHES)], drawn[start + 1] % 13
        at = int.from_bytes(drawn[start + 2 : start + 4]) % (len(text) + 1)
        text = text[:at] + patch + text[at + length :]
    return text, (None, 16, 512)[drawn[2] % 3]


@settings(deadline=None, max_examples=200)
@given(st.binary(min_size=LENGTH, max_size=LENGTH).map(damaged))
def test_damaged_files_are_read_or_refused_and_lint_agrees(folder: Path, drawn: tuple[str, int | None]) -> None:
    text, block_size = drawn
    path = folder / "damaged"
    path.write_text(text)
    verdict(path, block_size)


@settings(deadline=None, max_examples=60)
@given(content=st.binary(max_size=60) | st.text(max_size=60).map(str.encode))
def test_anything_at_all_is_read_or_refused(folder: Path, content: bytes) -> None:
    path = folder / "anything"
    path.write_bytes(content)
    verdict(path, None)


@settings(deadline=None, max_examples=40)
@given(cut=st.floats(0, 1))
def test_a_cut_off_parquet_is_refused(folder: Path, cut: float) -> None:
    path = folder / "whole.parquet"
    write_trace(Trace(np.array([0, 5]), np.array([3, 4]), np.array([1, 1])), path)
    content = path.read_bytes()
    path.write_bytes(content[: round(cut * (len(content) - 1))])
    with pytest.raises(TraceError):
        read_trace(path)
