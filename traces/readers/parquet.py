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
from traces.readers.problems import Problems
from traces.readers.table import MOST_TOKENS, Table
from traces.readers.values import INT64_MAX, NOT_WHOLE
from traces.schema import LATEST_NS, IntArray, Segments

VERSION = 1
METADATA = b"prefillsim.trace"
LATEST = LATEST_NS - 1
SEGMENTS = ("segment_ids", "segment_tokens")


def read_parquet(path: Path, problems: Problems) -> Table:
    """Read a Parquet file's columns.

    Raises:
        Unreadable: if it is damaged, or of a later version of the format.
    """
    try:
        arrow = pa.parquet.read_table(path, use_threads=False)
    except (pa.ArrowException, OSError) as e:
        problems.fatal(f"the Parquet file is damaged ({str(e).splitlines()[0]})")
    metadata = _metadata(arrow.schema.metadata or {})
    version = metadata.get("version", VERSION)
    if version != VERSION:
        problems.fatal(f"the file has version {version} of the trace format; this program reads version {VERSION}")
    columns = {name: arrow[name].combine_chunks() for name in arrow.column_names}
    table = Table(columns, np.arange(1, arrow.num_rows + 1, dtype=np.int64), problems)
    name = metadata.get("name")
    table.name = name if isinstance(name, str) else None
    return table


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
        is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind)
        if not (is_list and pa.types.is_integer(kind.value_type)) or table.columns[column].flatten().null_count:
            table.problems.fatal(f"the column holds {kind}; lists of integers without nulls are needed", None, column)
    ids, tokens = (table.columns[column] for column in SEGMENTS)
    table.refuse(_flags(pc.is_null(ids)), SEGMENTS[0], lambda i: "the list is missing")
    table.refuse(_flags(pc.is_null(tokens)), SEGMENTS[1], lambda i: "the list is missing")
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
