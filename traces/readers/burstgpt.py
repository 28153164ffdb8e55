"""BurstGPT's CSV, version 1 and version 2 (which adds ``Session ID`` and ``Elapsed time``)."""

from __future__ import annotations

from traces.readers.base import Draft, Format
from traces.readers.table import Table


def read(table: Table, block_size: int | None) -> Draft:
    """Read the requests that were answered; no response tokens means a failed request, which is left out.

    Raises:
        Unreadable: if every request failed.
    """
    outputs = table.tokens("Response tokens", low=0)
    failed = table.ok & (outputs == 0)
    n = int(failed.sum())
    if n:
        if n == len(table):
            table.problems.fatal("every request has 0 response tokens, so all of them failed", None, "Response tokens")
        what = "1 request has" if n == 1 else f"{n:,} requests have"
        table.problems.warn(
            int(table.lines[failed.argmax()]), "Response tokens", f"{what} 0 response tokens and failed; left out"
        )
        table.leave_out(failed)
    return Draft(
        table.seconds("Timestamp"),
        table.tokens("Request tokens"),
        outputs,
        session=table.labels("Session ID", blank_is_none=True) if "Session ID" in table else None,
        arrival_column="Timestamp",
    )


FORMAT = Format(
    "burstgpt",
    "BurstGPT versions 1 and 2, CSV: Timestamp (s), Request tokens, Response tokens",
    "csv",
    ("Timestamp", "Request tokens", "Response tokens"),
    read,
    optional=("Model", "Total tokens", "Log Type", "Session ID", "Elapsed time"),
)
