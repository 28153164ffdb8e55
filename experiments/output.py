"""What commands print: one JSON document, or tables and sentences for people."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import Any

import typer

SHOWN_FAILURES = 20

PLAIN_WIDTH = 160
"""Columns of tables where the output is no terminal."""


def emit(document: Any) -> None:
    """Print one JSON document on stdout."""
    from experiments.cells import json_bytes

    sys.stdout.write(json_bytes(document).decode())


def say(*lines: str) -> None:
    """Print plain lines on stdout."""
    for line in lines:
        print(line)


def warn(messages: Iterable[str]) -> None:
    """Print warnings on stderr."""
    for message in messages:
        print(f"warning: {message}", file=sys.stderr)


def fail_with(failures: Sequence[str], runs: int) -> None:
    """Report runs that failed and end the command with exit status 1; do nothing where none has.

    Raises:
        typer.Exit: if a run has failed.
    """
    if not failures:
        return
    for failure in failures[:SHOWN_FAILURES]:
        print(f"failed: {failure}", file=sys.stderr)
    more = len(failures) - SHOWN_FAILURES
    print(f"{len(failures)} of {runs} runs failed" + (f", {more} more than shown" if more > 0 else ""), file=sys.stderr)
    raise typer.Exit(1)


def table(columns: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1) -> None:
    """Print a table on stdout, the first ``left`` columns flush left; colours and borders as the terminal has them."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(width=None if sys.stdout.isatty() else PLAIN_WIDTH, highlight=False)
    drawn = Table(header_style="bold")
    for i, column in enumerate(columns):
        drawn.add_column(Text(column), justify="left" if i < left else "right", overflow="fold")
    for row in rows:
        drawn.add_row(*(Text(cell) for cell in row))
    console.print(drawn)


def number(value: float | None) -> str:
    """Return a value with as many digits as a reader can use; a dash for none."""
    if value is None:
        return "-"
    size = abs(value)
    digits = 0 if size >= 1000 else 1 if size >= 10 else 2 if size >= 0.1 or size == 0 else 3
    return f"{value:,.{digits}f}"
