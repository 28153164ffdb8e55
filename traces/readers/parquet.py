"""Our own Parquet: every column of a trace, arrivals in nanoseconds, content as lists of segments."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet

from traces.readers.base import Draft, Format
from traces.readers.pages import pages
from traces.readers.problems import Problems
from traces.readers.table import MOST_COLUMNS, MOST_TOKENS, Table
from traces.readers.values import INT64_MAX, NOT_WHOLE
from traces.schema import LATEST_NS, IntArray, Segments

VERSION = 1
METADATA = b"prefillsim.trace"
LATEST = LATEST_NS - 1

LEAST_MEMORY, MOST_TIMES = 1 << 27, 30
"""A file may unpack to so many bytes, or to so many times its size."""

VALUE, OBJECT = 8, 64
"""Bytes of a number in a column of integers, and of a value in any other."""

LIMITS = {"thrift_string_size_limit": 1 << 26, "thrift_container_size_limit": 1 << 20}
SEGMENTS = ("segment_ids", "segment_tokens")
NO_SEGMENTS = "the column holds {}; lists of integers without nulls are needed"


def read_parquet(path: Path, problems: Problems) -> Table:
    """Read a Parquet file's columns.

    Columns that the format does not have are not read, and appear as nulls.

    Raises:
        Unreadable: if it is damaged, of a later version of the format, or unpacks to far more than its size.
    """
    try:
        data = memoryview(path.read_bytes())
        file = pa.parquet.ParquetFile(pa.BufferReader(data), **LIMITS)
        schema = file.schema_arrow
        _check_columns(schema.names, problems)
        known = [name for name in schema.names if name in (*FORMAT.required, *FORMAT.optional)]
        most = max(LEAST_MEMORY, MOST_TIMES * len(data))
        for name in known:
            _check_kind(name, schema.field(name).type, problems)
        _check_size(file.metadata, data, known, most, problems)
        names = {name for name in known if _is_text(schema.field(name).type)}
        if names:  # text stays a dictionary, for a long text in each of a million rows takes no room in the file
            file = pa.parquet.ParquetFile(pa.BufferReader(data), read_dictionary=sorted(names), **LIMITS)
        arrow = file.read(known, use_threads=False)
        columns = {name: pa.nulls(file.metadata.num_rows) for name in schema.names}
        columns |= {name: arrow[name].combine_chunks() for name in known}
        for name in names:
            columns[name] = _text(columns[name], name, most, problems)
    except (pa.ArrowException, OSError, ValueError, MemoryError) as e:
        problems.fatal(f"the Parquet file is damaged ({(str(e).splitlines() or [type(e).__name__])[0]})")
    metadata = _metadata(schema.metadata or {})
    version = metadata.get("version", VERSION)
    if version != VERSION:
        problems.fatal(f"the file has version {version} of the trace format; this program reads version {VERSION}")
    table = Table(columns, np.arange(1, file.metadata.num_rows + 1, dtype=np.int64), problems)
    name = metadata.get("name")
    table.name = name if isinstance(name, str) else None
    return table


def _check_columns(names: list[str], problems: Problems) -> None:
    if len(names) > MOST_COLUMNS:
        problems.fatal(f"the file has {len(names):,} columns; a trace has a few")
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        problems.fatal(f"the file has the column {twice} twice")


def _check_kind(name: str, kind: pa.DataType, problems: Problems) -> None:
    """Refuse what would have to be unpacked to say what is wrong with it."""
    if name in SEGMENTS:
        if not (_is_list(kind) and pa.types.is_primitive(kind.value_type)):
            problems.fatal(NO_SEGMENTS.format(kind), None, name)
        return
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if not (pa.types.is_primitive(kind) or pa.types.is_decimal(kind) or pa.types.is_null(kind) or _is_text(kind)):
        problems.fatal(f"the column holds {kind}; numbers or texts are needed", None, name)


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def _check_size(footer: Any, data: memoryview, known: list[str], most: int, problems: Problems) -> None:
    """Refuse what takes more than ``most`` bytes when it is read."""
    needed = footer.num_rows * VALUE
    for g in range(footer.num_row_groups):
        group = footer.row_group(g)
        for c in range(group.num_columns):
            chunk = group.column(c)
            if chunk.path_in_schema.partition(".")[0] not in known:
                continue
            starts = [at for at in (chunk.data_page_offset, chunk.dictionary_page_offset) if at]
            start = min(starts, default=len(data))
            width = VALUE if chunk.physical_type == "INT64" else OBJECT
            for page in pages(data, start, chunk.total_compressed_size):
                needed += page.unpacked + width * page.values
                if needed > most:
                    break
    if needed > most:
        problems.fatal(
            f"the file of {len(data):,} bytes unpacks to more than {most:,}; a trace is not as repetitive as that"
        )


def _is_text(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _text(column: Any, name: str, most: int, problems: Problems) -> Any:
    """Return a column of text written out."""
    if not pa.types.is_dictionary(column.type):
        return column
    lengths = pc.binary_length(column.dictionary)
    if (pc.sum(pc.take(lengths, column.indices)).as_py() or 0) > most:
        problems.fatal(f"its texts take more than {most:,} bytes; a trace has short names", None, name)
    return pc.cast(column, column.type.value_type)


def _metadata(schema: dict[bytes, bytes]) -> dict[str, Any]:
    """Return what the writer noted beside the columns; other programs' files have nothing there."""
    try:
        metadata = json.loads(schema.get(METADATA, b"{}"))
    except (ValueError, RecursionError):
        return {}
    return metadata if isinstance(metadata, dict) else {}


def read(table: Table, block_size: int | None) -> Draft:
    """Read the columns that are there; arrivals stay as they are, and a trace may be empty."""
    prompts = table.tokens("prompt_tokens")
    has_segments = any(column in table for column in SEGMENTS)
    if has_segments:
        _check_segments(table, prompts)

    def objective(column: str) -> IntArray | None:
        return table.whole(column, 1, LATEST, optional=True) if column in table else None

    return Draft(
        table.whole("arrival_ns", 0, LATEST),
        prompts,
        table.tokens("output_tokens"),
        segments=(lambda: _segments(table)) if has_segments else None,
        session=table.labels("session") if "session" in table else None,
        tenant=table.labels("tenant") if "tenant" in table else None,
        slo_ttft_ns=objective("slo_ttft_ns"),
        slo_tpot_ns=objective("slo_tpot_ns"),
        id=_ids(table) if "id" in table else None,
        row=table.whole("row", 0, LATEST) if "row" in table else None,
        name=table.name,
        arrival_column="arrival_ns",
        rebase=False,
    )


def _ids(table: Table) -> np.ndarray:
    if pa.types.is_integer(table.columns["id"].type):
        ids: np.ndarray = table.whole("id", NOT_WHOLE + 1, INT64_MAX - 1)
    else:
        ids = table.labels("id")
        table.refuse(
            np.array([label is None for label in ids.tolist()], dtype=np.bool_), "id", lambda i: "the id is missing"
        )
    table.unique("id", ids)
    return ids


def _check_segments(table: Table, prompts: IntArray) -> None:
    for column in SEGMENTS:
        if column not in table:
            table.problems.fatal("the column is missing; segments need ids and tokens", None, column)
        kind = table.columns[column].type
        if not (_is_list(kind) and pa.types.is_integer(kind.value_type)) or table.columns[column].flatten().null_count:
            table.problems.fatal(NO_SEGMENTS.format(kind), None, column)
    ids, tokens = (table.columns[column] for column in SEGMENTS)
    table.refuse(_flags(pc.is_null(ids)), SEGMENTS[0], lambda i: "the list is missing")
    table.refuse(_flags(pc.is_null(tokens)), SEGMENTS[1], lambda i: "the list is missing")
    long = np.zeros(len(table), dtype=np.bool_)
    above = ids.flatten().to_numpy(zero_copy_only=False) > INT64_MAX
    long[np.repeat(np.arange(len(table)), _lengths(ids))[above]] = True
    table.refuse(long, SEGMENTS[0], lambda i: "an id is above 2**63 - 1")
    counts, lengths = _lengths(tokens), tokens.flatten().to_numpy(zero_copy_only=False)
    table.refuse(table.ok & (_lengths(ids) != counts), SEGMENTS[1], lambda i: "there are not as many tokens as ids")
    owner = np.repeat(np.arange(len(table)), counts)
    bad = np.zeros(len(table), dtype=np.bool_)
    bad[owner[(lengths < 1) | (lengths > MOST_TOKENS)]] = True
    table.refuse(bad, SEGMENTS[1], lambda i: "a segment needs at least 1 token")
    ends = np.concatenate([[0], np.cumsum(np.where(bad[owner], 0, lengths))])[np.concatenate([[0], np.cumsum(counts)])]
    total = np.diff(ends)
    table.refuse(
        table.ok & (total != prompts),
        SEGMENTS[1],
        lambda i: f"the segments hold {total[i]:,} tokens, the prompt has {prompts[i]:,}",
    )


def _flags(values: pa.Array) -> np.ndarray:
    flags: np.ndarray = values.to_numpy(zero_copy_only=False).astype(np.bool_)
    return flags


def _lengths(lists: pa.Array) -> IntArray:
    lengths: IntArray = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False).astype(np.int64)
    return lengths


def _segments(table: Table) -> Segments:
    ids, tokens = (table.columns[column] for column in SEGMENTS)
    offsets = np.concatenate([[0], np.cumsum(_lengths(ids))]).astype(np.int64)
    flat = (pc.cast(lists.flatten(), pa.int64()).to_numpy(zero_copy_only=False) for lists in (ids, tokens))
    return Segments(offsets, *flat)


FORMAT = Format(
    "parquet",
    "prefillsim's own Parquet: every column of a trace, exactly",
    "parquet",
    ("arrival_ns", "prompt_tokens", "output_tokens"),
    read,
    optional=("session", "tenant", "slo_ttft_ns", "slo_tpot_ns", "id", "row", *SEGMENTS),
)
