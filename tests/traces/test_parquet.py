"""Our own Parquet, damaged, or made by another program."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from traces.io import read_trace, write_trace
from traces.schema import Segments, Trace, TraceError

UNSIGNED = pa.array([[1, 2], [2**64 - 1]], pa.list_(pa.uint64()))


@pytest.fixture
def full() -> Trace:
    """A trace with every column."""
    return Trace(
        np.array([0, 5]),
        np.array([3, 4]),
        np.array([1, 1]),
        segments=Segments(np.array([0, 2, 3]), np.array([1, 2, 1]), np.array([1, 2, 4])),
        session=np.array(["a", None], dtype=object),
        tenant=np.array(["x", "y"], dtype=object),
        slo_ttft_ns=np.array([-1, 9]),
        slo_tpot_ns=np.array([8, 9]),
        id=np.array([10, 11]),
        row=np.array([1, 0]),
    )


@pytest.mark.parametrize(
    ("column", "values", "expected"),
    [
        (
            "arrival_ns",
            [0, None],
            "row 2, column arrival_ns: the value is missing; a whole number of at least 0 is needed",
        ),
        ("arrival_ns", [-1, 0], "row 1, column arrival_ns: -1 is not a whole number of at least 0"),
        ("arrival_ns", [0.0, float("nan")], "row 2, column arrival_ns: NaN is not a whole number of at least 0"),
        ("prompt_tokens", ["3", "x"], "row 2, column prompt_tokens: 'x' is not a whole number of at least 1"),
        ("slo_ttft_ns", [None, 0], "row 2, column slo_ttft_ns: 0 is not a whole number of at least 1"),
        ("id", [7, 7], "row 2, column id: 7 is the id of the request on row 1 already"),
        ("id", ["a", None], "row 2, column id: the id is missing"),
        ("session", [1.5, 2.0], "row 1, column session: 1.5 is not a name"),
        ("segment_ids", [[1, 2], None], "row 2, column segment_ids: the list is missing"),
        ("segment_ids", [[1, 2], []], "row 2, column segment_tokens: there are not as many tokens as ids"),
        ("segment_tokens", [[1, 2], [0]], "row 2, column segment_tokens: a segment needs at least 1 token"),
        ("segment_ids", UNSIGNED, "row 2, column segment_ids: an id is above 2**63 - 1"),
        ("segment_tokens", [[1, 3], [4]], "row 1, column segment_tokens: the segments hold 4 tokens, the prompt has 3"),
        (
            "segment_tokens",
            [1, 2],
            "column segment_tokens: the column holds int64; lists of integers without nulls are needed",
        ),
        ("segment_tokens", None, "column segment_tokens: the column is missing; segments need ids and tokens"),
        ("prompt_tokens", None, "no trace format has the columns arrival_ns, output_tokens, "),
    ],
)
def test_parquet_columns_are_checked(tmp_path: Path, full: Trace, column: str, values: Any, expected: str) -> None:
    path = tmp_path / "t.parquet"
    write_trace(full, path)
    table = pa.parquet.read_table(path)
    at = table.column_names.index(column)
    table = table.remove_column(at) if values is None else table.set_column(at, column, pa.array(values))
    pa.parquet.write_table(table, path)
    with pytest.raises(TraceError) as error:
        read_trace(path)
    assert str(error.value).startswith(f"{path}{', ' if expected[:3] in ('row', 'col') else ': '}{expected}")


def test_parquet_of_another_program_is_read_by_its_columns(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    columns = {"arrival_ns": [9, 4], "prompt_tokens": [3, 4], "output_tokens": [1, 2]}
    pa.parquet.write_table(pa.table({k: pa.array(v, pa.int32()) for k, v in columns.items()}), path)
    trace = read_trace(path)
    assert trace.arrival_ns.tolist() == [4, 9]
    assert trace.prompt_tokens.dtype == np.int64
    assert trace.name == "t"
    assert len(trace.warnings) == 1
    assert trace.warnings[0].startswith(f"{path}, row 2, column arrival_ns: 1 request arrives before the one above")


def test_a_later_version_of_parquet_is_refused(tmp_path: Path, full: Trace) -> None:
    path = tmp_path / "t.parquet"
    write_trace(full, path)
    table = pa.parquet.read_table(path)
    note = {b"prefillsim.trace": b'{"name": "t", "version": 99}'}
    pa.parquet.write_table(table.replace_schema_metadata(note), path)
    with pytest.raises(TraceError, match="has version 99 of the trace format; this program reads version 1"):
        read_trace(path)


@pytest.mark.parametrize("note", [b'{"name": 5, "version": 1}', b'["t"]', b"{", b"[" * 100_000])
def test_a_note_of_another_kind_is_no_name(tmp_path: Path, full: Trace, note: bytes) -> None:
    path = tmp_path / "t.parquet"
    write_trace(full, path)
    pa.parquet.write_table(pa.parquet.read_table(path).replace_schema_metadata({b"prefillsim.trace": note}), path)
    assert read_trace(path).name == "t"
