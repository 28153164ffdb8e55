"""Lengths of ShareGPT conversations: token counts without arrivals."""

from __future__ import annotations

import numpy as np

from traces.readers.base import Draft, Format
from traces.readers.table import Table


def read(table: Table, block_size: int | None) -> Draft:
    """Read the lengths; everything arrives at time 0, with a warning."""
    table.problems.warn(
        None, None, "the file has no arrival times; unless --rate is given, all requests arrive at time 0"
    )
    return Draft(
        np.zeros(len(table), dtype=np.int64), table.tokens("num_prefill_tokens"), table.tokens("num_decode_tokens")
    )


FORMAT = Format(
    "sharegpt",
    "ShareGPT lengths without arrivals, CSV: num_prefill_tokens, num_decode_tokens",
    "csv",
    ("num_prefill_tokens", "num_decode_tokens"),
    read,
    optional=("num_total_tokens", "pd_ratio"),
    # A misspelt arrival column must not pass for a file without arrivals.
    closed=True,
)
