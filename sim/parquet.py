"""Tables of a run as parquet."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from sim.arrow import numbers, strings
from sim.records import NULL, Columns

ROW_GROUP = 1 << 17
"""Rows per row group; part of the format, for the bytes depend on it."""


def to_parquet(columns: Columns, metadata: Mapping[str, str]) -> bytes:
    """Return a table as parquet, what is missing as null; equal columns make equal bytes."""
    arrays = [_array(values) for values in columns.values()]
    schema = pa.schema(
        [pa.field(name, array.type) for name, array in zip(columns, arrays, strict=True)],
        metadata=dict(metadata),
    )
    buffer = io.BytesIO()
    pq.write_table(
        pa.table(arrays, schema=schema),
        buffer,
        version="2.6",
        data_page_version="1.0",
        compression="zstd",
        compression_level=1,
        # Dictionaries of numbers that hardly repeat take most of the time and a quarter more space.
        use_dictionary=[name for name, array in zip(columns, arrays, strict=True) if pa.types.is_string(array.type)],
        row_group_size=ROW_GROUP,
    )
    return buffer.getvalue()


def from_parquet(content: bytes) -> Columns:
    """Return the columns of what :func:`to_parquet` wrote.

    Raises:
        ValueError: if it is not parquet; the message is one line.
    """
    try:
        return _columns(pq.ParquetFile(pa.BufferReader(content)).read())
    except (pa.ArrowException, OSError, ValueError, KeyError) as e:
        raise ValueError((str(e).splitlines() or ["it is damaged"])[0]) from None


def _array(values: NDArray[Any]) -> Any:
    if values.dtype.kind in "iu":
        return numbers(values.astype(np.int64), values == NULL)
    if values.dtype.kind == "f":
        return numbers(values, np.isnan(values))
    return strings([None if v is None else str(v) for v in values.tolist()])


def _columns(table: Any) -> Columns:
    columns: Columns = {}
    for name in table.column_names:
        column = table[name]
        if pa.types.is_integer(column.type):
            columns[name] = column.fill_null(NULL).to_numpy()
        elif pa.types.is_floating(column.type):
            columns[name] = column.to_numpy()
        else:
            columns[name] = np.array(column.to_pylist(), dtype=object)
    return columns
