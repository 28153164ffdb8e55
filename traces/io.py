"""Traces from files and to files, in any format that :data:`FORMATS` lists."""

from __future__ import annotations

import contextlib
import difflib
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import numpy as np

from traces.readers import azure, burstgpt, mooncake, parquet, qwen_bailian, ragpulse, sharegpt, vidur
from traces.readers.base import Draft, Format, finish, settle
from traces.readers.blocks import check_block_size
from traces.readers.files import load
from traces.readers.jsonlines import read_json_lines
from traces.readers.problems import Problems, Unreadable
from traces.readers.table import Table
from traces.readers.tabular import read_csv
from traces.readers.values import listed
from traces.schema import IntArray, Trace, TraceError
from traces.writers import write_parquet, write_timed_trace

_FORMATS = {
    f.name: f
    for f in (
        azure.FORMAT,
        mooncake.MOONCAKE,
        mooncake.TIMED_TRACE,
        ragpulse.FORMAT,
        sharegpt.FORMAT,
        vidur.FORMAT,
        burstgpt.FORMAT,
        qwen_bailian.FORMAT,
        parquet.FORMAT,
    )
}

FORMATS: dict[str, str] = {f.name: f.description for f in _FORMATS.values()}
"""What can be read: names and one-line descriptions."""

WRITABLE = {"parquet": ".parquet", "timed-trace": ".jsonl"}
"""What can be written, and the suffix that stands for it."""

KINDS = {"csv": "CSV", "jsonl": "JSON lines", "parquet": "Parquet"}

DEFAULT_BLOCK = 512
"""Tokens per hash id of a written timed-trace."""


@dataclass
class Scan:
    """A file that was read as far as possible."""

    problems: Problems
    format: str | None = None
    table: Table | None = None
    draft: Draft | None = None
    order: IntArray | None = None


def read_trace(path: str | Path, *, fmt: str | None = None, block_size: int | None = None) -> Trace:
    """Read a trace; its format is recognised from its content, whatever the file is called.

    Requests are sorted by arrival, ties in file order, and the first arrives at 0 (our own Parquet keeps its times).
    What was repaired, assumed or left out is in the trace's warnings.

    Args:
        path: the file.
        fmt: a name in :data:`FORMATS`, instead of recognising it.
        block_size: tokens that a hash id covers, in formats with hash ids.

    Raises:
        TraceError: at the first error, naming file, line and column.
    """
    scan = scan_trace(path, fmt=fmt, block_size=block_size)
    scan.problems.raise_first()
    assert scan.draft is not None
    assert scan.table is not None
    assert scan.order is not None
    return finish(scan.draft, scan.table, scan.order, Path(path).stem)


def scan_trace(path: str | Path, *, fmt: str | None = None, block_size: int | None = None) -> Scan:
    """Read a file and collect what is wrong with it; see :func:`read_trace` for the arguments.

    Raises:
        TraceError: if there is no format ``fmt``, or ``block_size`` is below 1.
    """
    if fmt is not None and fmt not in _FORMATS:
        raise TraceError.unknown("trace format", fmt, FORMATS)
    check_block_size(block_size)
    scan = Scan(Problems(str(path)))
    with contextlib.suppress(Unreadable):
        _scan(Path(path), None if fmt is None else _FORMATS[fmt], block_size, scan)
    return scan


def _scan(path: Path, given: Format | None, block_size: int | None, scan: Scan) -> None:
    problems = scan.problems
    source = load(path, problems)
    if given is not None and given.kind != source.kind:
        problems.fatal(f"the file is {KINDS[source.kind]}, format {given.name} is {KINDS[given.kind]}")
    if source.kind == "parquet":
        table = parquet.read_parquet(path, problems)
    elif source.kind == "csv":
        table = read_csv(source.text, problems)
    else:
        table = read_json_lines(source.text, problems)
    scan.table = table
    if not len(table) and problems.failed:
        return
    chosen = _recognise(table, source.kind) if given is None else given
    scan.format = chosen.name
    _check_columns(table, chosen)
    if not len(table) and source.kind != "parquet":
        problems.fatal("the file has a header but no requests")
    draft = chosen.read(table, block_size)
    scan.format = draft.format if given is None and draft.format is not None else chosen.name
    scan.draft, scan.order = draft, settle(draft, table)


def _recognise(table: Table, kind: str) -> Format:
    """Return the format that fits the columns, the one that needs most of them where several do."""
    candidates = [f for f in _FORMATS.values() if f.kind == kind and f is not mooncake.MOONCAKE]
    fitting = [f for f in candidates if f.fits(table)]
    if not fitting:
        _refuse_columns(table, candidates)
    return max(fitting, key=lambda f: len(f.required))


def _refuse_columns(table: Table, candidates: list[Format]) -> NoReturn:
    nearest = max(candidates, key=lambda f: _likeness(f, table))
    missing = [c for c in nearest.required if c not in table]
    lacks = f" (missing: {listed(missing)})" if missing else f" and allows {listed(nearest.optional)}"
    table.problems.fatal(
        f"no trace format has the columns {listed(table.columns)}; the nearest is {nearest.name}, "
        f"which needs {listed(nearest.required)}{lacks}",
        _header_line(table),
    )


def _likeness(format: Format, table: Table) -> float:
    """Return how well the columns match those that a format needs, from 0 to 1."""

    def best(name: str) -> float:
        return max(difflib.SequenceMatcher(None, name.lower(), c[:100].lower()).ratio() for c in table.columns)

    return float(np.mean([best(name) for name in format.required])) if table.columns else 0.0


def _check_columns(table: Table, chosen: Format) -> None:
    """Refuse missing columns and those that look misspelt; warn of others that are not read."""
    missing = [c for c in chosen.required if c not in table]
    if missing:
        table.problems.fatal(
            f"format {chosen.name} needs {listed(chosen.required)}; missing: {listed(missing)}; "
            f"found: {listed(table.columns)}",
            _header_line(table),
        )
    known = {*chosen.required, *chosen.optional}
    unknown = [c for c in table.columns if c not in known]
    for column in unknown:
        near = difflib.get_close_matches(column, [c for c in chosen.optional if c not in table], 1, 0.8)
        if near:
            table.problems.fatal(
                f"format {chosen.name} has no column {listed([column])}; did you mean {near[0]}?", _header_line(table)
            )
    if unknown:
        what = "is a column" if len(unknown) == 1 else "are columns"
        table.problems.warn(
            _header_line(table), None, f"{listed(unknown)} {what} that format {chosen.name} does not have; not read"
        )


def _header_line(table: Table) -> int | None:
    """Columns are named by the first line of CSV, by every line of JSON, and by no row of Parquet."""
    return None if table.problems.unit == "row" else 1


def write_trace(trace: Trace, path: str | Path, *, fmt: str | None = None, block_size: int | None = None) -> None:
    """Write a trace; the file is complete or as it was before.

    Args:
        trace: what to write.
        path: the file.
        fmt: ``parquet`` (lossless) or ``timed-trace``; by default what the suffix says, ``.parquet`` or ``.jsonl``.
        block_size: tokens per hash id of a timed-trace, 512 by default.

    Raises:
        TraceError: if the format is not one that can be written, or the file cannot be.
    """
    path = Path(path)
    if check_writable(path, fmt, block_size) == "parquet":
        write_parquet(trace, path)
    else:
        write_timed_trace(trace, path, block_size or DEFAULT_BLOCK)


def check_writable(path: Path, fmt: str | None, block_size: int | None) -> str:
    """Return the format that :func:`write_trace` would write for these arguments, and refuse what it would refuse.

    Raises:
        TraceError: if the format is not one that can be written, or ``block_size`` is below 1.
    """
    if fmt is None:
        fmt = next((name for name, suffix in WRITABLE.items() if path.suffix == suffix), None)
        if fmt is None:
            raise TraceError(f"{path}: the suffix is not one of {', '.join(WRITABLE.values())}; give the format")
    if fmt not in WRITABLE:
        raise TraceError(f"{path}: the format {fmt} cannot be written; these can: {', '.join(WRITABLE)}")
    check_block_size(block_size)
    return fmt
