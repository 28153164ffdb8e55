"""Traces to files: our own Parquet, and the JSON lines that ``vllm bench serve`` replays."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet

from traces.readers.parquet import METADATA, SEGMENTS, VERSION
from traces.schema import NONE, Trace, TraceError

MS = 1_000_000

MOST_BLOCKS, MOST_IDS = 1 << 22, 1 << 28
"""Hash ids of one prompt, and of a whole timed-trace: some gigabytes of text."""


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[IO[bytes]]:
    """Open a file that takes the place of ``path`` only when everything has been written.

    Raises:
        TraceError: if it cannot be written; ``path`` is then as it was before.
    """
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        try:
            if path.exists() and not path.is_file():
                raise TraceError(f"{path}: this is no file that can be replaced; give the name of a file")
            with part.open("xb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            part.replace(path)
        except OSError as e:
            missing = "" if path.parent.is_dir() else f"; the folder {path.parent} does not exist"
            raise TraceError(f"{path}: the file cannot be written ({e.strerror or e}){missing}") from None
    finally:
        with contextlib.suppress(OSError):
            part.unlink()


def write_parquet(trace: Trace, path: Path) -> None:
    """Write every column of ``trace``; equal traces make equal bytes.

    Missing objectives and names are nulls.

    Raises:
        TraceError: if the file cannot be written.
    """
    columns: dict[str, pa.Array] = {}
    for column in Trace.COLUMNS:
        values = getattr(trace, column)
        if values is None:
            continue
        if column.startswith("slo_"):
            columns[column] = pa.array(values, type=pa.int64(), mask=values == NONE)
        elif values.dtype.kind in "iu":
            columns[column] = pa.array(values, type=pa.int64())
        else:
            columns[column] = pa.array(values.tolist(), type=pa.string())
    if trace.segments is not None:
        offsets = pa.array(trace.segments.offsets, type=pa.int64())
        for column, values in zip(SEGMENTS, (trace.segments.ids, trace.segments.tokens), strict=True):
            columns[column] = pa.LargeListArray.from_arrays(offsets, pa.array(values, type=pa.int64()))
    note = json.dumps({"name": trace.name, "version": VERSION}, sort_keys=True)
    table = pa.table(columns).replace_schema_metadata({METADATA: note.encode()})
    with whole_file(path) as file:
        pa.parquet.write_table(table, file, compression="zstd")


def write_timed_trace(trace: Trace, path: Path, block_size: int) -> None:
    """Write ``timestamp`` (ms), ``input_length``, ``output_length`` and ``hash_ids``, one JSON object per line.

    A hash id stands for a block of ``block_size`` tokens, the last one of a prompt for what is left; two blocks have
    the same id if and only if they hold the same tokens. So prompts share leading ids as far as whole blocks of
    them agree. Ids are numbered by first appearance. Replay the file with ``vllm bench serve --dataset-name
    timed_trace --timed-trace-chunk-hash-size BLOCK_SIZE --timed-trace-sec-multiplier 0.001``.

    Raises:
        TraceError: if the trace is empty, its prompts are too long for blocks of this size, or the file cannot be
            written.
    """
    if not len(trace):
        raise TraceError(f"{path}: a trace without requests cannot be written as timed-trace")
    blocks = -(-trace.prompt_tokens // block_size)
    if blocks.max() > MOST_BLOCKS or blocks.sum() > MOST_IDS:
        raise TraceError(
            f"{path}: {int(blocks.sum()):,} hash ids would be written, {int(blocks.max()):,} of them for one prompt; "
            f"the most are {MOST_IDS:,} and {MOST_BLOCKS:,}, so give a larger block size than {block_size}"
        )
    columns = (trace.arrival_ns, trace.prompt_tokens, trace.output_tokens)
    with whole_file(path) as file:
        for (arrival, prompt, output), hashes in zip(
            zip(*(c.tolist() for c in columns), strict=True), block_hashes(trace, block_size), strict=True
        ):
            file.write(
                f'{{"timestamp": {_milliseconds(arrival)}, "input_length": {prompt}, "output_length": {output}, '
                f'"hash_ids": {hashes}}}\n'.encode()
            )


def _milliseconds(ns: int) -> str:
    """Return nanoseconds as milliseconds without rounding."""
    whole, rest = divmod(ns, MS)
    return f"{whole}.{rest:06d}".rstrip("0") if rest else str(whole)


def block_hashes(trace: Trace, block_size: int) -> Iterator[list[int]]:
    """Yield each request's block ids."""
    if trace.segments is None:
        ends = np.cumsum(-(-trace.prompt_tokens // block_size)).tolist()
        yield from (list(range(start, end)) for start, end in pairwise([0, *ends]))
        return
    number: dict[Any, int] = {}
    for row in range(len(trace)):
        yield [number.setdefault(block, len(number)) for block in _blocks(trace.segments.of(row), block_size)]


def _blocks(segments: list[tuple[int, int]], size: int) -> Iterator[Any]:
    """Cut segments into blocks, each a tuple of pieces (content id, first token, tokens)."""
    pieces: list[int] = []
    room = size
    for content, tokens in segments:
        start = 0
        while start < tokens:
            take = room if room < tokens - start else tokens - start
            if take == size:  # most blocks are of one content
                yield (content, start, take)
            else:
                pieces += (content, start, take)
                room -= take
                if not room:
                    yield tuple(pieces)
                    pieces, room = [], size
            start += take
    if pieces:
        yield tuple(pieces)
