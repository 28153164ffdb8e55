"""What commands print: one JSON document, or tables and sentences for people."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import typer

SHOWN_FAILURES = 20

PLAIN_WIDTH = 160
"""Columns of tables where the output is no terminal."""

LEAST_WIDTH = 80
"""Columns of tables in narrow terminals: a line that the terminal wraps keeps all its digits."""

NAME_WIDTH = 28
"""Names up to this long are not wrapped, whatever else must be."""

CONTROLS = {c: f"\\x{c:02x}" for c in (*range(32), *range(127, 160)) if chr(c) not in "\t\n"}
"""What a terminal takes for an order, and how it is printed: names are anybody's."""


def visible(text: str) -> str:
    """Return a text without orders to a terminal; tabs and ends of lines stay."""
    return text.translate(CONTROLS)


def emit(document: Any) -> None:
    """Print one JSON document on stdout."""
    from experiments.cells import json_bytes

    sys.stdout.write(json_bytes(document).decode())


def keep(out: Path | None, name: str, document: Any) -> None:
    """Write a JSON document as ``out/NAME.json``, if there is an ``out``.

    Raises:
        ConfigError: if the folder exists and is not empty.
    """
    if out is None:
        return
    from experiments.cells import json_bytes
    from experiments.folders import claim
    from sim.store import atomic_write

    claim(out, name, lambda folder: atomic_write(folder / f"{name}.json", json_bytes(document)), may_resume=False)


def say(*lines: str) -> None:
    """Print plain lines on stdout."""
    for line in lines:
        print(visible(line))


def warn(messages: Iterable[str]) -> None:
    """Print warnings on stderr."""
    for message in messages:
        print(f"warning: {visible(message)}", file=sys.stderr)


def fail_with(failures: Sequence[str], runs: int) -> None:
    """Report runs that failed and end the command with exit status 1; do nothing where none has.

    Raises:
        typer.Exit: if a run has failed.
    """
    if not failures:
        return
    for failure in failures[:SHOWN_FAILURES]:
        print(f"failed: {visible(failure)}", file=sys.stderr)
    more = len(failures) - SHOWN_FAILURES
    print(f"{len(failures)} of {runs} runs failed" + (f", {more} more than shown" if more > 0 else ""), file=sys.stderr)
    raise typer.Exit(1)


def width() -> int:
    """Return how many columns a table may have."""
    return max(shutil.get_terminal_size().columns, LEAST_WIDTH) if sys.stdout.isatty() else PLAIN_WIDTH


def table(columns: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> None:
    """Print a table on stdout as wide as the terminal allows, the first ``left`` columns flush left."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    columns, rows = [visible(column) for column in columns], [[visible(cell) for cell in row] for row in rows]
    drawn = Table(header_style="bold", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for i, column in enumerate(columns):
        longest = max((len(line) for row in rows for line in row[i].split("\n")), default=0)
        drawn.add_column(
            Text(column),
            justify="left" if i < left else "right",
            overflow="fold",
            min_width=min(longest, NAME_WIDTH) if i == 0 else None,
        )
    for row in rows:
        drawn.add_row(*(Text(cell) for cell in row))
    console = Console(width=width(), highlight=False)
    # Console would end the process by itself where the reader has gone.
    with console.capture() as text:
        console.print(drawn)
    sys.stdout.write(text.get())


def wrapped(policy: str) -> str:
    """Return a policy with a line per part where it is too long for one."""
    return policy if len(policy) <= NAME_WIDTH else policy.replace("+", "+\n")


def number(value: float | None) -> str:
    """Return a value with as many digits as a reader can use; a dash for none."""
    if value is None:
        return "-"
    size = abs(value)
    digits = 0 if size >= 1000 else 1 if size >= 10 else 2 if size >= 0.1 or size == 0 else 3
    return f"{value:,.{digits}f}"
