"""What is wrong with a trace file, where, and how severe it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn

from traces.schema import IntArray, TraceError

CAP = 1000
"""Most problems that are kept of one check, and of one file."""

ERROR, WARNING = "error", "warning"


@dataclass(frozen=True)
class Problem:
    """One finding in a trace file."""

    line: int | None
    """Counted from 1; ``None`` where the file as a whole is meant."""
    column: str | None
    severity: str
    """``error``: the file cannot be used; ``warning``: something was repaired, assumed or left out."""
    message: str
    unit: str = "line"
    """What ``line`` counts: lines of a text file, rows of a Parquet file."""

    def sentence(self, path: str) -> str:
        """Return the problem with its place in the file ``path``."""
        line = "" if self.line is None else f", {self.unit} {self.line}"
        column = "" if self.column is None else f", column {self.column}"
        return f"{path}{line}{column}: {self.message}"


class Unreadable(Exception):
    """Reading cannot go on; the reason is among the problems."""


class Problems:
    """Collects the problems of one file."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.unit = "line"
        self.warnings: list[Problem] = []
        self._errors: list[Problem] = []
        self._single = 0
        self._omitted = 0

    @property
    def failed(self) -> bool:
        """Whether there is an error."""
        return bool(self._errors)

    def error(self, line: int | None, column: str | None, message: str) -> None:
        """Record an error of one row; errors of one check come in the order of the file."""
        self._single += 1
        if self._single > CAP:
            self._omitted += 1
        else:
            self._errors.append(Problem(line, column, ERROR, message, self.unit))

    def errors(self, lines: IntArray, column: str | None, message: Callable[[int], str]) -> None:
        """Record an error on each of ``lines``, ascending; ``message(i)`` explains the one on ``lines[i]``."""
        for i, line in enumerate(lines[:CAP].tolist()):
            self._errors.append(Problem(line, column, ERROR, message(i), self.unit))
        self._omitted += max(0, len(lines) - CAP)

    def fatal(self, message: str, line: int | None = None, column: str | None = None) -> NoReturn:
        """Record an error after which nothing more can be read."""
        self._errors.append(Problem(line, column, ERROR, message, self.unit))
        raise Unreadable

    def warn(self, line: int | None, column: str | None, message: str) -> None:
        """Record a warning."""
        self.warnings.append(Problem(line, column, WARNING, message, self.unit))

    def raise_first(self) -> None:
        """Raise the first error in the order of the file, if there is any.

        Raises:
            TraceError: naming file, line and column.
        """
        if self._errors:
            first = min(self._errors, key=_place)
            raise TraceError(first.sentence(self.path))

    def listed(self) -> list[Problem]:
        """Return the first problems in the order of the file; where there are more, the last entry counts them."""
        found = sorted(self._errors + self.warnings, key=_place)
        omitted = self._omitted + max(0, len(found) - CAP)
        if not omitted:
            return found
        severity = ERROR if self._omitted or any(p.severity == ERROR for p in found[CAP:]) else WARNING
        more = f"{omitted:,} more problems are not shown"
        return [*found[:CAP], Problem(None, None, severity, more, self.unit)]


def _place(problem: Problem) -> int:
    return 0 if problem.line is None else problem.line
