"""CSV files as tables of raw text columns."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.csv

from traces.readers.problems import Problems
from traces.readers.table import MOST_COLUMNS, Table
from traces.readers.values import listed
from traces.schema import IntArray


def read_csv(text: str, problems: Problems) -> Table:
    """Read comma-separated ``text`` whose first line names the columns; blank lines are skipped.

    Clean text goes through Arrow; anything else, quotes included, through a slower reader that knows its lines.

    Raises:
        Unreadable: if a column has no name, or two have the same.
    """
    start = len(text) - len(text.lstrip("\n"))
    end = text.find("\n", start)
    end = len(text) if end < 0 else end
    body = text[end + 1 :]
    first = start + 1
    names = _header(text[start:end], first, problems)
    table = None if '"' in text else _read_clean(names, body, first + 1, problems)
    return table or _read_careful(names, body, first + 1, problems)


def _header(line: str, number: int, problems: Problems) -> list[str]:
    try:
        names = [name.strip() for name in next(csv.reader([line]))]
    except csv.Error as e:
        problems.fatal(f"the header cannot be read ({e})", number)
    if len(names) > MOST_COLUMNS:
        problems.fatal(f"the header names {len(names):,} columns; a trace has a few", number)
    seen: set[str] = set()
    for position, name in enumerate(names, 1):
        if not name:
            problems.fatal(f"column {position} has no name in the header", number)
        if name in seen:
            problems.fatal(f"the header has the column {name} twice", number, name)
        seen.add(name)
    return names


def _read_clean(names: list[str], body: str, first: int, problems: Problems) -> Table | None:
    """Read text in which every line is blank or has a value for each column; ``None`` where it is not like that."""
    if not body.strip("\n"):
        return None
    try:
        arrow = pa.csv.read_csv(
            io.BytesIO(body.encode()),
            read_options=pa.csv.ReadOptions(column_names=names),
            parse_options=pa.csv.ParseOptions(quote_char=False),
            convert_options=pa.csv.ConvertOptions(
                column_types=dict.fromkeys(names, pa.string()), strings_can_be_null=False
            ),
        )
    except pa.ArrowInvalid:
        return None
    lines = np.arange(first, first + arrow.num_rows, dtype=np.int64)
    if body.startswith("\n") or "\n\n" in body:
        lines = np.array([i for i, line in enumerate(body.split("\n"), first) if line], dtype=np.int64)
        warn_blank(body, first, lines, problems)
    return Table({name: arrow[name].combine_chunks() for name in names}, lines, problems)


def _read_careful(names: list[str], body: str, first: int, problems: Problems) -> Table:
    rows: list[list[str]] = []
    lines: list[int] = []
    needed = f"the header names {len(names)} columns ({listed(names)})"
    for line, fields in _rows(body, first, problems):
        if len(fields) == len(names):
            rows.append(fields)
            lines.append(line)
        else:
            problems.error(line, None, f"there are {len(fields)} values, {needed}")
    columns = {name: pa.array([row[j] for row in rows], type=pa.string()) for j, name in enumerate(names)}
    at = np.array(lines, dtype=np.int64)
    warn_blank(body, first, at, problems)
    return Table(columns, at, problems)


def _rows(body: str, first: int, problems: Problems) -> Iterator[tuple[int, list[str]]]:
    """Yield the rows that are not blank, each with the line on which it starts."""
    reader = csv.reader(iter(body.split("\n")), strict=True)
    while True:
        line = first + reader.line_num
        try:
            fields = next(reader)
        except StopIteration:
            return
        except csv.Error as e:
            what = "a value is too long" if "field limit" in str(e) else "the quotes do not match"
            problems.error(line, None, f"{what} ({e})")
            continue
        if len(fields) > 1 or any(field.strip() for field in fields):
            yield line, fields


def warn_blank(body: str, first: int, lines: IntArray, problems: Problems) -> None:
    """Warn of blank lines before the last row; those at the end of a file mean nothing."""
    if not len(lines):
        return
    blank = [i for i, line in enumerate(body.split("\n")[: int(lines[-1]) - first], first) if not line.strip()]
    if blank:
        what = "a blank line is" if len(blank) == 1 else f"{len(blank):,} blank lines are"
        problems.warn(blank[0], None, f"{what} skipped")
