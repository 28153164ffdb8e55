"""Check a trace file row by row, with the same checks as reading it, but on past the first error."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from traces.io import scan_trace
from traces.readers.problems import ERROR, Problem

__all__ = ["LintReport", "Problem", "lint_trace"]


@dataclass(frozen=True)
class LintReport:
    """What is wrong with a trace file."""

    path: str
    format: str | None
    """A name in ``traces.io.FORMATS``; ``None`` where the format was not recognised."""
    rows: int
    """Requests in the file, faulty ones included as far as they can be told apart."""
    problems: list[Problem]
    """The first 1,000 in the order of the file; where there are more, a last entry counts them."""

    @property
    def ok(self) -> bool:
        """Whether the file can be read; warnings do not prevent that."""
        return all(p.severity != ERROR for p in self.problems)


def lint_trace(path: str | Path, *, fmt: str | None = None, block_size: int | None = None) -> LintReport:
    """Check a trace file; the arguments are those of :func:`traces.io.read_trace`.

    Raises:
        TraceError: if there is no format ``fmt``, or ``block_size`` is below 1.
    """
    scan = scan_trace(path, fmt=fmt, block_size=block_size)
    rows = 0 if scan.table is None else len(scan.table)
    return LintReport(str(path), scan.format, rows, scan.problems.listed())
