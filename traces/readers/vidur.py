"""The CSV of Vidur and Splitwise: arrivals in seconds with token counts."""

from __future__ import annotations

from traces.readers.base import Draft, Format
from traces.readers.table import Table


def read(table: Table, block_size: int | None) -> Draft:
    """Read the three columns."""
    return Draft(
        table.seconds("arrived_at"),
        table.tokens("num_prefill_tokens"),
        table.tokens("num_decode_tokens"),
        arrival_column="arrived_at",
    )


FORMAT = Format(
    "vidur",
    "Vidur and Splitwise traces, CSV: arrived_at (s), num_prefill_tokens, num_decode_tokens",
    "csv",
    ("arrived_at", "num_prefill_tokens", "num_decode_tokens"),
    read,
    optional=("num_total_tokens", "pd_ratio"),
)
