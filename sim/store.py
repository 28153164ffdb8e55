"""Run folders: two parquet tables, a summary, and where they came from.

A folder holds ``requests.parquet``, ``steps.parquet``, ``preemptions.parquet`` where there were any, on request
``batches.parquet``, ``summary.json`` and, written last, ``run.json``: a folder with ``run.json`` is complete. Equal
runs make equal bytes in all but ``run.json``.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from costmodels.files import read_bounded
from sim.batches import batch_table
from sim.metrics import Summary, summarise
from sim.objectives import Objectives
from sim.records import NO_PREEMPTIONS, OUTCOMES, Columns, Tables
from traces.schema import Trace

FORMAT = "prefillsim run"

FORMAT_VERSION = 1
"""Of the folder and its tables; raised when an older reader would misread them."""

UNITS = "columns ending in _ns: nanoseconds; tokens and pairs: counts; null: not measured"

TABLES = ("requests.parquet", "steps.parquet")
BATCHES = "batches.parquet"
PREEMPTIONS = "preemptions.parquet"
SUMMARY = "summary.json"
RUN = "run.json"

ESCAPE = "backslashreplace"
"""What a file's name can have that UTF-8 has not becomes what JSON writes for it."""

_RESERVED = ("format", "version", "files")


class StoreError(ValueError):
    """A folder that is not a complete run of this version; the message says what is wrong with it."""


@dataclass(frozen=True)
class StoredRun:
    """A run read back. What is missing is as in memory: -1 in integer columns, NaN in floats, ``None`` in strings."""

    requests: Columns
    """The columns of ``Tables.requests``, and ``id``, ``reason``, and ``tenant`` and ``session`` where given."""
    steps: Columns
    """The columns of ``Tables.steps``, and ``step``."""
    preemptions: Columns
    """The columns of ``Tables.preemptions``."""
    batches: Columns | None
    """Columns ``step``, ``position``, ``request`` (id) and ``tokens``; ``None`` where they were not stored."""
    info: dict[str, Any]
    """What the writer passed."""


def write_run(
    folder: Path,
    trace: Trace,
    tables: Tables,
    info: Mapping[str, Any],
    *,
    objectives: Objectives | None = None,
    summary: Summary | None = None,
    batches: bool = False,
) -> None:
    """Write a run into ``folder``, which is made if need be; an earlier run in it is replaced.

    Args:
        folder: where to.
        trace: what arrived; its ids and classes go into the requests table.
        tables: what happened.
        info: JSON types, written to ``run.json`` beside the format and the hashes of the other files.
        objectives: those of ``summary.json``; without them every request that finishes counts as good.
        summary: what :func:`sim.metrics.summarise` made of them, if it has been called already.
        batches: also write ``batches.parquet``, one row per request and step.

    Raises:
        OSError: if the folder cannot be written, as on a full disk; nothing of the run is left then.
        ValueError: if ``info`` uses a key of the format or holds NaN.
        TypeError: if ``info`` is not JSON.
    """
    for key in _RESERVED:
        if key in info:
            raise ValueError(f"the key {key} of run.json belongs to its format; info must not have it")
    head = {"format": FORMAT, "version": FORMAT_VERSION, **info}
    _json(head)
    contents = {
        "requests.parquet": _parquet(_requests(trace, tables)),
        "steps.parquet": _parquet(_steps(tables.steps)),
    }
    if len(tables.preemptions["step"]):
        contents[PREEMPTIONS] = _parquet(tables.preemptions)
    if batches:
        table = batch_table(tables)
        contents[BATCHES] = _parquet({**table, "request": trace.ids[table["request"]]})
    if summary is None:
        summary = summarise(tables.requests, tables.steps, objectives or Objectives(), tables.preemptions)
    contents[SUMMARY] = _json(summary)
    head["files"] = {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}
    contents[RUN] = _json(head)

    made = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    try:
        for stale in (RUN, BATCHES, PREEMPTIONS):
            (folder / stale).unlink(missing_ok=True)
        for name, content in contents.items():
            atomic_write(folder / name, content)
    except BaseException:
        for name in contents:
            (folder / name).unlink(missing_ok=True)
        if made:
            with contextlib.suppress(OSError):
                folder.rmdir()
        raise


def read_run(folder: Path) -> StoredRun:
    """Read what :func:`write_run` wrote.

    Raises:
        StoreError: if the folder is missing, holds no run, an incomplete or damaged one, or one of a newer version.
    """
    from sim.parquet import from_parquet

    head = _read_head(folder)
    tables: dict[str, Columns] = {}
    for name in (*TABLES, PREEMPTIONS, BATCHES, SUMMARY):
        digest = head["files"].get(name)
        if digest is None and name in (BATCHES, PREEMPTIONS):
            continue
        path = folder / name
        if not path.is_file():
            raise StoreError(f"{folder} is not a complete run: {name} is missing")
        content = path.read_bytes()
        if hashlib.sha256(content).hexdigest() != digest:
            raise StoreError(f"{path} is not the file that {RUN} describes: it was changed or damaged")
        if name.endswith(".parquet"):
            try:
                tables[name] = from_parquet(content)
            except ValueError as e:
                raise StoreError(f"{path} is not a table of a run: {e}") from None
    requests, steps = (tables[name] for name in TABLES)
    codes = {outcome: code for code, outcome in enumerate(OUTCOMES)}
    try:
        requests["outcome"] = np.array([codes[o] for o in requests["outcome"].tolist()], dtype=np.int64)
    except (KeyError, TypeError):
        raise StoreError(f"{folder / TABLES[0]} is not a table of a run: outcome is missing or unknown") from None
    info = {key: value for key, value in head.items() if key not in _RESERVED}
    return StoredRun(requests, steps, tables.get(PREEMPTIONS, NO_PREEMPTIONS), tables.get(BATCHES), info)


def atomic_write(path: Path, content: bytes | Callable[[BinaryIO], object]) -> None:
    """Write bytes, or let a function write, under a temporary name; then rename, so readers never see half a file.

    Raises:
        OSError: if it cannot be written; ``path`` is as it was then, and no temporary file is left.
    """
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        with temporary.open("xb") as file:
            if callable(content):
                content(file)
            else:
                file.write(content)
        temporary.replace(path)
    except BaseException as e:
        temporary.unlink(missing_ok=True)
        if isinstance(e, OSError):
            e.filename, e.filename2 = str(path), None
        raise


def _requests(trace: Trace, tables: Tables) -> Columns:
    columns: Columns = {"id": trace.ids}
    for name in ("tenant", "session"):
        if (values := getattr(trace, name)) is not None:
            columns[name] = values
    for name, values in tables.requests.items():
        columns[name] = values
        if name == "outcome":
            columns["outcome"] = np.array(OUTCOMES, dtype=object)[values]
            reasons = np.full(len(values), None, dtype=object)
            reasons[list(tables.reasons)] = list(tables.reasons.values())
            columns["reason"] = reasons
    return columns


def _steps(steps: Columns) -> Columns:
    return {"step": np.arange(len(steps["start_ns"])), **steps}


def _parquet(columns: Columns) -> bytes:
    # Not at the top: processes of a sweep that keeps summaries only start sooner without it.
    from sim.parquet import to_parquet

    return to_parquet(columns, {"prefillsim_format": str(FORMAT_VERSION), "units": UNITS})


def _read_head(folder: Path) -> dict[str, Any]:
    if not folder.is_dir():
        raise StoreError(f"{folder} is not a folder" if folder.exists() else f"there is no folder {folder}")
    path = folder / RUN
    if not path.is_file():
        if any((folder / name).exists() for name in (*TABLES, SUMMARY)):
            raise StoreError(f"{folder} is not a complete run: {RUN} is missing, so the run was interrupted")
        raise StoreError(f"{folder} is not a run: it has no {RUN}")
    try:
        head = json.loads(read_bounded(path))
    except (ValueError, RecursionError) as e:
        raise StoreError(f"{path} is not JSON: {e}") from None
    if not isinstance(head, dict) or head.get("format") != FORMAT:
        raise StoreError(f"{path} does not describe a run: its format is not {FORMAT!r}")
    version, files = head.get("version"), head.get("files")
    if not isinstance(version, int) or version > FORMAT_VERSION:
        raise StoreError(f"{path} is of version {version}; this prefillsim reads version {FORMAT_VERSION} and older")
    if not isinstance(files, dict):
        raise StoreError(f"{path} does not list the files of the run")
    return head


def _json(data: Mapping[str, Any]) -> bytes:
    return (json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode(errors=ESCAPE)
