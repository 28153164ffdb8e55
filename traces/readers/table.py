"""A trace file as raw columns, and the row checks that every format shares."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from typing import Any

import numpy as np

from traces.readers.problems import Problems
from traces.readers.values import (
    NOT_WHOLE,
    BoolArray,
    Values,
    absent,
    as_list,
    date_times,
    decimals,
    show,
    whole_numbers,
)
from traces.schema import LATEST_NS, NONE, IntArray

MOST_COLUMNS = 100
"""More columns than that are no trace; each has a place for every row."""

MOST_TOKENS = 2**31
"""Longest prompt or output that is believed."""

EPOCH_MS = 10**11
"""Seconds from here on are taken for milliseconds since 1970: as seconds they would lie after the year 5000."""

MOST_SECONDS = LATEST_NS // 10**9
"""Times in seconds are below this, times in milliseconds below a thousand times this."""


class Table:
    """The raw columns of a file; each method checks one and returns it as an array of all rows.

    A row that fails a check is reported once per column and keeps a placeholder, so that the other checks go on.
    """

    def __init__(self, columns: dict[str, Values], lines: IntArray, problems: Problems) -> None:
        self.columns = columns
        self.lines = lines
        """Where each row stands in its file, shape (rows,)."""
        self.problems = problems
        self.ok: BoolArray = np.ones(len(lines), dtype=np.bool_)
        """Rows without an error so far."""
        self.name: str | None = None
        """The trace's own name, where the file has one."""
        self.kept: BoolArray = np.ones(len(lines), dtype=np.bool_)
        """Rows that are requests; the others are left out and not checked."""

    def __len__(self) -> int:
        return len(self.lines)

    def __contains__(self, column: str) -> bool:
        return column in self.columns

    def refuse(self, bad: BoolArray, column: str | None, message: Callable[[int], str]) -> None:
        """Report the rows where ``bad`` holds; ``message(i)`` explains row ``i``."""
        rows = np.flatnonzero(bad & self.kept)
        self.problems.errors(self.lines[rows], column, lambda i: message(int(rows[i])))
        self.ok[rows] = False

    def leave_out(self, rows: BoolArray) -> None:
        """Exempt rows from checks, and leave them out of the trace."""
        self.kept &= ~rows

    def whole(self, column: str, low: int, high: int, optional: bool = False) -> IntArray:
        """Return a column of whole numbers from ``low`` (at least 0) to ``high``.

        ``optional`` turns missing values into ``NONE``.
        """
        values = self.columns[column]
        numbers = whole_numbers(values)
        bad = (numbers < low) | (numbers > high)
        if optional and bad.any():
            empty = np.array([absent(v) is not None for v in as_list(values)], dtype=np.bool_)
            numbers = np.where(empty, NONE, numbers)
            bad &= ~empty
        if bad.any():
            raw = as_list(values)
            self.refuse(bad, column, lambda i: _explain_whole(raw[i], int(numbers[i]), low, high))
            numbers = np.where(bad, low, numbers)
        return numbers

    def tokens(self, column: str, low: int = 1) -> IntArray:
        """Return a column of token counts."""
        return self.whole(column, low, MOST_TOKENS)

    def seconds(self, column: str) -> IntArray:
        """Return a column of times in seconds as nanoseconds.

        Milliseconds since 1970 are recognised, with a warning.
        """
        values = self.columns[column]
        numbers = decimals(values)
        negative = (numbers.whole < 0) | (numbers.fraction < 0)
        epoch = numbers.valid & (numbers.whole >= EPOCH_MS) & (numbers.whole < MOST_SECONDS * 1000)
        large = numbers.valid & (numbers.whole >= MOST_SECONDS) & ~epoch
        usable = numbers.valid & ~negative & ~large
        milliseconds = bool(usable.any() and epoch[usable].all())
        if not milliseconds:
            large |= epoch
        bad = ~numbers.valid | negative | large
        if bad.any():
            raw = as_list(values)
            hint = " (milliseconds since 1970? Other rows are in seconds)"
            self.refuse(bad, column, lambda i: _explain_time(raw[i], "seconds", hint if epoch[i] else ""))
        if milliseconds:
            first = int(self.lines[np.flatnonzero(usable)[0]])
            self.problems.warn(first, column, "times are taken as milliseconds since 1970, not as seconds")
        numbers.whole[bad] = numbers.fraction[bad] = 0
        return numbers.scaled(6 if milliseconds else 9)

    def milliseconds(self, column: str) -> IntArray:
        """Return a column of times in milliseconds as nanoseconds."""
        values = self.columns[column]
        numbers = decimals(values)
        bad = ~numbers.valid | (numbers.whole < 0) | (numbers.fraction < 0) | (numbers.whole >= MOST_SECONDS * 1000)
        if bad.any():
            raw = as_list(values)
            self.refuse(bad, column, lambda i: _explain_time(raw[i], "milliseconds", ""))
            numbers.whole[bad] = numbers.fraction[bad] = 0
        return numbers.scaled(6)

    def date_times(self, column: str) -> IntArray:
        """Return a column of dates with times as nanoseconds since 1970."""
        values = self.columns[column]
        times, valid = date_times(values)
        if not valid.all():
            raw = as_list(values)
            self.refuse(~valid, column, lambda i: _explain_date(raw[i]))
        return times

    def labels(self, column: str, blank_is_none: bool = False) -> np.ndarray:
        """Return a column of names, ``None`` for nulls and, where said so, blanks; numbers become text."""
        names = np.empty(len(self), dtype=object)
        bad = np.zeros(len(self), dtype=np.bool_)
        for i, value in enumerate(as_list(self.columns[column])):
            if value is None or (blank_is_none and isinstance(value, str) and not value.strip()):
                continue
            if isinstance(value, str) and (value.isascii() or _encodes(value)):
                names[i] = value
            elif isinstance(value, int) and not isinstance(value, bool):
                names[i] = str(value)
            else:
                bad[i] = True
        if bad.any():
            raw = as_list(self.columns[column])
            self.refuse(bad, column, lambda i: absent(raw[i]) or f"{show(raw[i])} is not a name")
        return names

    def unique(self, column: str, labels: np.ndarray) -> None:
        """Report every label that an earlier row has."""
        first: dict[Any, int] = {}
        again = np.zeros(len(self), dtype=np.bool_)
        named = labels.tolist()
        for i in np.flatnonzero(self.ok).tolist():
            again[i] = first.setdefault(named[i], i) != i
        unit = self.problems.unit
        self.refuse(
            again,
            column,
            lambda i: f"{show(named[i])} is the id of the request on {unit} {self.lines[first[named[i]]]} already",
        )

    def id_lists(self, column: str) -> tuple[IntArray, IntArray]:
        """Return a column of lists of content ids as the length of each list and all ids in a row.

        Lists that are not what they should be count as empty. Ids beyond 62 bits are numbered anew.
        """
        return self.content_ids(column, as_list(self.columns[column]))

    def content_ids(self, column: str, lists: list[Any]) -> tuple[IntArray, IntArray]:
        """Check lists of content ids as :meth:`id_lists` does, from ``column`` or made of it."""
        bad = np.array([type(ids) is not list for ids in lists], dtype=np.bool_)
        if bad.any() or set(map(type, chain.from_iterable(lists))) - {int}:
            bad = np.array([type(ids) is not list or any(type(x) is not int for x in ids) for ids in lists])
        if bad.any():
            raw = lists
            lists = [[] if wrong else ids for ids, wrong in zip(raw, bad.tolist(), strict=True)]
            self.refuse(bad, column, lambda i: absent(raw[i]) or f"{show(raw[i])} is not a list of whole numbers")
        counts = np.fromiter(map(len, lists), dtype=np.int64, count=len(lists))
        flat = list(chain.from_iterable(lists))
        if flat and not (min(flat) >= 0 and max(flat) < 2**62):
            number: dict[int, int] = {}
            flat = [number.setdefault(x, len(number)) for x in flat]
        return counts, np.array(flat, dtype=np.int64)


def _encodes(text: str) -> bool:
    """Whether UTF-8 can write ``text``: JSON can spell half a character."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _explain_whole(value: Any, number: int, low: int, high: int) -> str:
    missing = absent(value)
    if missing:
        return f"{missing}; a whole number of at least {low} is needed"
    if number > high and number != NOT_WHOLE:
        return f"{show(value)} is larger than {high:,}, the most that is allowed"
    return f"{show(value)} is not a whole number of at least {low}"


def _explain_time(value: Any, unit: str, hint: str) -> str:
    missing = absent(value)
    if missing:
        return f"{missing}; a number of {unit} is needed"
    try:
        number = float("nan") if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = float("nan")
    if not np.isfinite(number):
        return f"{show(value)} is not a number of {unit}"
    if number < 0:
        return f"{show(value)} is negative; times start at 0"
    return f"{show(value)} is too large for a number of {unit}{hint}"


def _explain_date(value: Any) -> str:
    missing = absent(value)
    needed = "a date and time like 2023-11-16 18:17:03.9799600, from 1970 to 2115"
    return f"{missing}; {needed} is needed" if missing else f"{show(value)} is not {needed}"
