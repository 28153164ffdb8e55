"""A folder whose checksums hold, but whose files are not a run's, is refused in one sentence."""

from __future__ import annotations

import hashlib
import io
import json
from contextlib import suppress
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sim.parquet import from_parquet
from sim.store import FORMAT, RUN, SUMMARY, TABLES, StoreError, read_run


def write(folder: Path, contents: dict[str, bytes]) -> None:
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    digests = {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}
    (folder / RUN).write_text(json.dumps({"format": FORMAT, "version": 1, "files": digests}))


def parquet(**columns: object) -> bytes:
    buffer = io.BytesIO()
    pq.write_table(pa.table(columns), buffer)
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("first", "says"),
    [
        (b"x", "is not a table of a run"),
        (parquet(a=[1]), "outcome is missing"),
        (parquet(outcome=["x"]), "unknown"),
        (parquet(outcome=[1]), "unknown"),
        (parquet(outcome=[[1]]), "'outcome' holds list<element: int64>; numbers or texts are needed"),
        (parquet(a=pa.array([2**64 - 1], pa.uint64())), "is not a table of a run"),
        (parquet(a=pa.array(np.ones(20_000_000))), "become more than"),
    ],
)
def test_tables_of_something_else(first: bytes, says: str, tmp_path: Path) -> None:
    write(tmp_path, {TABLES[0]: first, TABLES[1]: parquet(a=[1]), SUMMARY: b"{}"})
    with pytest.raises(StoreError, match=says):
        read_run(tmp_path)


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(name=st.sampled_from(TABLES), at=st.integers(0, 400), scrap=st.binary(min_size=1, max_size=8))
def test_damaged_tables(name: str, at: int, scrap: bytes, tmp_path: Path) -> None:
    contents = {TABLES[0]: parquet(outcome=["finished"]), TABLES[1]: parquet(a=[1]), SUMMARY: b"{}"}
    old = contents[name]
    contents[name] = old[:at] + scrap + old[at + len(scrap) :]
    write(tmp_path, contents)
    with suppress(StoreError):
        read_run(tmp_path)


def test_a_long_text_in_every_row_is_kept_once(tmp_path: Path) -> None:
    n, text = 50_000, "x" * 200_000
    many = pa.DictionaryArray.from_arrays(pa.array(np.zeros(n, dtype=np.int32)), pa.array([text]))
    some = pa.array(["finished", None] * (n // 2))
    assert n * len(text) > 10**9
    columns = from_parquet(parquet(a=many, b=pa.array(np.arange(n, dtype=np.uint8)), c=some, d=[None] * n))
    assert columns["a"][0] is columns["a"][-1]
    assert columns["a"][0] == text
    assert columns["b"].dtype == np.int64
    assert columns["c"].tolist() == some.to_pylist()
    assert columns["d"].tolist() == [None] * n
