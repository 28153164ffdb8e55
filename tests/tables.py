"""Tables of a run that a test has made itself."""

from __future__ import annotations

from dataclasses import dataclass, field

from sim.records import NO_PREEMPTIONS, Columns


@dataclass(frozen=True)
class RunTables:
    """The same tables as a :class:`sim.tables.LoggedRun`, there already."""

    requests: Columns
    steps: Columns
    chunks: Columns
    reasons: dict[int, str]
    preemptions: Columns = field(default_factory=lambda: NO_PREEMPTIONS)
