"""What a format is, and the way from its checked columns to a trace."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from traces.readers.table import Table
from traces.schema import IntArray, Segments, Trace


@dataclass(frozen=True)
class Draft:
    """The requests of a file in its order, not yet sorted."""

    arrival_ns: IntArray
    prompt_tokens: IntArray
    output_tokens: IntArray
    segments: Callable[[], Segments] | None = None
    """Called only where the file has no error."""
    session: NDArray[Any] | None = None
    tenant: NDArray[Any] | None = None
    slo_ttft_ns: IntArray | None = None
    slo_tpot_ns: IntArray | None = None
    id: NDArray[Any] | None = None
    row: IntArray | None = None
    name: str | None = None
    """The trace's own name, where the file has one."""
    arrival_column: str | None = None
    """Where the arrivals are from; ``None`` keeps them as they are."""
    rebase: bool = True
    """Let the first arrival be at 0."""
    format: str | None = None
    """The name of a closer format that the content turned out to have."""


class Reader(Protocol):
    """Checks the columns of a table and makes a draft of them."""

    def __call__(self, table: Table, block_size: int | None) -> Draft:
        """Return the draft; problems are reported through the table."""


def accept_all(table: Table) -> bool:
    """Accept any table that has the columns."""
    return True


@dataclass(frozen=True)
class Format:
    """A trace format: how it is recognised, and how it is read."""

    name: str
    description: str
    kind: str
    """``csv``, ``jsonl`` or ``parquet``."""
    required: tuple[str, ...]
    read: Reader
    optional: tuple[str, ...] = ()
    """Other columns of the format, read or not."""
    closed: bool = False
    """Columns that are not listed make it another format."""
    accepts: Callable[[Table], bool] = accept_all
    """Tells formats with equal columns apart."""

    def fits(self, table: Table) -> bool:
        """Whether the table has the columns and content of this format."""
        names = set(table.columns)
        if not names.issuperset(self.required) or (self.closed and names - {*self.required, *self.optional}):
            return False
        return self.accepts(table)


JOINED = 100
"""Fewest requests on both sides of a fall in time that looks like the seam of two recordings."""


def settle(draft: Draft, table: Table) -> IntArray:
    """Return the rows of the trace in order of arrival, ties in file order; warn where that is not the file's order."""
    rows = np.flatnonzero(table.kept & table.ok)
    times = draft.arrival_ns[rows]
    gaps = np.diff(times)
    early = np.flatnonzero(gaps < 0) + 1
    if not len(early):
        return rows
    what = "1 request arrives" if len(early) == 1 else f"{len(early):,} requests arrive"
    seam = int(np.argmin(gaps)) + 1
    fall = -int(gaps[seam - 1])
    is_seam = 2 * fall > int(np.ptp(times)) and len(early) < JOINED <= min(seam, len(rows) - seam)
    joined = (
        f"; on {table.problems.unit} {table.lines[rows[seam]]:,} times fall by {fall / 1e9:,.0f} s, as where two "
        "recordings were joined: sorting lays one over the other"
    )
    table.problems.warn(
        int(table.lines[rows[early[0]]]),
        draft.arrival_column,
        f"{what} before the one above; the trace is sorted by arrival, ties in file order{joined if is_seam else ''}",
    )
    ordered: IntArray = rows[np.argsort(times, kind="stable")]
    return ordered


def finish(draft: Draft, table: Table, order: IntArray, name: str) -> Trace:
    """Build the trace of a file without errors; ``order`` is from :func:`settle`."""
    optional: dict[str, Any] = {
        column: values[order]
        for column in ("session", "tenant", "slo_ttft_ns", "slo_tpot_ns", "id", "row")
        if (values := getattr(draft, column)) is not None
    }
    if draft.row is None and np.any(np.diff(order) < 0):
        optional["row"] = np.argsort(np.argsort(order))
    arrival = draft.arrival_ns[order]
    return Trace(
        arrival - arrival[0] if draft.rebase and len(order) else arrival,
        draft.prompt_tokens[order],
        draft.output_tokens[order],
        segments=None if draft.segments is None else draft.segments().select(order),
        name=name if draft.name is None else draft.name,
        warnings=tuple(w.sentence(table.problems.path) for w in table.problems.warnings),
        **optional,
    )
