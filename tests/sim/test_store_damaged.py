"""A folder whose checksums hold, but whose files are not a run's, is refused in one sentence."""

from __future__ import annotations

import hashlib
import io
import json
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sim.store import FORMAT, RUN, SUMMARY, TABLES, StoreError, read_run


def write(folder: Path, contents: dict[str, bytes]) -> None:
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    digests = {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}
    (folder / RUN).write_text(json.dumps({"format": FORMAT, "version": 1, "files": digests}))


def parquet(**columns: list[object]) -> bytes:
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
