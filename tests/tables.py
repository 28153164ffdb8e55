"""Tables of a run that a test has made itself."""

from __future__ import annotations

from dataclasses import dataclass

from sim.records import Columns


@dataclass(frozen=True)
class RunTables:
    """The same tables as a :class:`sim.records.LoggedRun`, there already."""

    requests: Columns
    steps: Columns
    chunks: Columns
    reasons: dict[int, str]
