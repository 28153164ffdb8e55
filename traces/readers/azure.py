"""Azure's LLM inference traces of 2023 and 2024: one CSV row per request."""

from __future__ import annotations

from traces.readers.base import Draft, Format
from traces.readers.table import Table


def read(table: Table, block_size: int | None) -> Draft:
    """Read times of day, exact to 100 ns, as time since the first request."""
    return Draft(
        table.date_times("TIMESTAMP"),
        table.tokens("ContextTokens"),
        table.tokens("GeneratedTokens"),
        arrival_column="TIMESTAMP",
    )


FORMAT = Format(
    "azure",
    "Azure LLM inference traces 2023 and 2024, CSV: TIMESTAMP, ContextTokens, GeneratedTokens",
    "csv",
    ("TIMESTAMP", "ContextTokens", "GeneratedTokens"),
    read,
)
