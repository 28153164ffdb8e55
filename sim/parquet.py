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
from traces.readers.pages import pages

ROW_GROUP = 1 << 17
"""Rows per row group; part of the format, for the bytes depend on it."""

LEAST_MEMORY, MOST_TIMES = 1 << 28, 100
"""A file may become so many bytes, or so many times its size."""

VALUE = 8
"""Bytes of a number, or of a reference to a text."""

LIMITS = {"thrift_string_size_limit": 1 << 26, "thrift_container_size_limit": 1 << 20}


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
        ValueError: if it is not parquet, holds something else than numbers and texts, or becomes far more than its
            size; the message is one line.
    """
    try:
        file = pq.ParquetFile(pa.BufferReader(content), **LIMITS)
        _check_size(file.metadata, memoryview(content))
        texts = [field.name for field in file.schema_arrow if pa.types.is_string(field.type)]
        if texts:  # a text that stands in every row is kept once
            file = pq.ParquetFile(pa.BufferReader(content), read_dictionary=texts, **LIMITS)
        return _columns(file.read())
    except (pa.ArrowException, OSError, ValueError, KeyError) as e:
        raise ValueError((str(e).splitlines() or ["it is damaged"])[0]) from None


def _check_size(footer: Any, data: memoryview) -> None:
    most = max(LEAST_MEMORY, MOST_TIMES * len(data))
    needed = footer.num_rows * VALUE
    for g in range(footer.num_row_groups):
        group = footer.row_group(g)
        for c in range(group.num_columns):
            chunk = group.column(c)
            starts = [at for at in (chunk.data_page_offset, chunk.dictionary_page_offset) if at]
            for page in pages(data, min(starts, default=len(data)), chunk.total_compressed_size):
                needed += page.unpacked + VALUE * page.values
                if needed > most:
                    raise ValueError(f"its {len(data):,} bytes become more than {most:,} when they are read")


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
            columns[name] = column.cast(pa.int64()).fill_null(NULL).to_numpy()
        elif pa.types.is_floating(column.type):
            columns[name] = column.to_numpy()
        else:
            columns[name] = _texts(name, column)
    return columns


def _texts(name: str, column: Any) -> NDArray[Any]:
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    if not (pa.types.is_string(kind) or pa.types.is_null(kind)):
        raise ValueError(f"its column {name!r} holds {kind}; numbers or texts are needed")
    if not pa.types.is_dictionary(column.type):
        return np.array(column.to_pylist(), dtype=object)
    parts = [np.empty(0, dtype=object)]
    for chunk in column.chunks:
        known = np.array([*chunk.dictionary.to_pylist(), None], dtype=object)
        parts.append(known[chunk.indices.fill_null(len(known) - 1).to_numpy()])
    return np.concatenate(parts)
