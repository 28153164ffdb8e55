"""Mooncake's JSON lines, which vLLM's ``timed_trace`` dataset shares.

Columns: ``timestamp`` (ms), ``input_length``, ``output_length`` and ``hash_ids``, one id per block of the prompt; equal
leading ids are a shared prefix. Mooncake's blocks have 512 tokens; vLLM lets the user say.
"""

from __future__ import annotations

from traces.readers.base import Draft, Format
from traces.readers.blocks import MOONCAKE_BLOCK, block_segments, check_blocks, infer_block_size
from traces.readers.table import Table

COLUMNS = ("timestamp", "input_length", "output_length")


def read(table: Table, block_size: int | None) -> Draft:
    """Read the requests with content in blocks of ``block_size`` tokens, inferred where it is ``None``."""
    arrivals = table.milliseconds("timestamp")
    prompts, outputs = table.tokens("input_length"), table.tokens("output_length")
    if "hash_ids" not in table:
        table.problems.warn(None, None, "the file has no hash_ids, so every prompt is taken as unlike every other")
        return Draft(arrivals, prompts, outputs, arrival_column="timestamp", format="timed-trace")
    counts, ids = table.id_lists("hash_ids")
    size = block_size or infer_block_size(table, "hash_ids", prompts, counts)
    check_blocks(table, "hash_ids", prompts, counts, size)
    return Draft(
        arrivals,
        prompts,
        outputs,
        segments=lambda: block_segments(prompts, counts, ids, size),
        arrival_column="timestamp",
        format="mooncake" if size == MOONCAKE_BLOCK else "timed-trace",
    )


def read_mooncake(table: Table, block_size: int | None) -> Draft:
    """Read the requests with content in blocks of 512 tokens, unless ``block_size`` says otherwise."""
    return read(table, block_size or MOONCAKE_BLOCK)


TIMED_TRACE = Format(
    "timed-trace",
    "vLLM timed_trace, JSON lines: timestamp (ms), input_length, output_length, hash_ids of blocks of a given size",
    "jsonl",
    COLUMNS,
    read,
    optional=("hash_ids",),
)

MOONCAKE = Format(
    "mooncake",
    "Mooncake traces, JSON lines: timed-trace with blocks of 512 tokens",
    "jsonl",
    (*COLUMNS, "hash_ids"),
    read_mooncake,
)
