"""Runs and sweeps read back from their folders, whichever command wrote them; what they say is not trusted."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from costmodels.files import read_bounded
from experiments.config import ConfigError
from policies.units import FOREVER_NS
from sim.metrics import Summary
from sim.objectives import Objectives
from sim.records import NULL, OUTCOMES
from sim.store import RUN, SUMMARY, StoredRun, StoreError, read_run

INDEX = "sweep.json"
CELLS = "cells"

CELL_KEY = re.compile(r"[0-9a-f]{8,64}")

REQUEST_COLUMNS = (
    *("arrival_ns", "visible_step", "first_scheduled_ns", "first_token_ns", "finished_ns", "prompt_tokens"),
    *("cached_tokens", "output_tokens", "generated_tokens", "chunks", "preemptions", "replica", "outcome"),
    *("aged_chunks", "slo_exceptions", "ttft_ns", "tpot_mean_ns", "tpot_p99_ns", "itl_max_ns", "jct_ns"),
    *("slo_ttft_ns", "slo_tpot_ns"),
)
STEP_COLUMNS = (
    *("start_ns", "duration_ns", "n_decode", "decode_context", "n_prefill", "prefill_tokens", "waiting"),
    *("granted_tokens", "exception", "predicted_ns", "kv_blocks", "busy_ns", "replica"),
)

FRACTIONS = ("tpot_mean_ns", "tpot_p99_ns")
"""Columns whose numbers need not be whole."""

MOST_REPLICAS = 4096
"""What is told of each replica looks through all steps."""

HOSTS = {"vllm": "vLLM", "hybrid": "hybrid engine", "server": "server"}
"""What a run was made on, other than the simulator, for people."""

FINITE = 2**62
"""Beyond this a time is no nanoseconds of any run, and differences of two do not fit 64 bits."""


@dataclass(frozen=True)
class Described:
    """What is known of a run without its tables."""

    path: Path
    policy: str
    trace: str
    seed: int | None
    host: str
    """Empty for the simulator."""
    trace_hash: str
    objectives: Objectives
    point: dict[str, Any]
    """By axis of the sweep that the run belongs to."""
    summary: Summary
    info: dict[str, Any] = field(repr=False)
    """What ``run.json`` says beside the format."""

    @property
    def label(self) -> str:
        """The policy, and the host where it is not the simulator."""
        return f"{self.policy} ({HOSTS.get(self.host, self.host)})" if self.host else self.policy

    def own_objectives(self) -> str:
        """Return the objectives in the form of ``--slo``."""
        return str(self.objectives)


@dataclass(frozen=True)
class Recorded(Described):
    """A run with its tables."""

    tables: StoredRun = field(repr=False)


@dataclass(frozen=True)
class Swept:
    """A sweep, or a comparison: every run's summary."""

    path: Path
    name: str
    axes: dict[str, list[Any]]
    config: dict[str, Any]
    cells: list[Described]
    failures: list[str]
    notes: list[str]


def read_any(path: Path) -> list[Recorded] | Swept:
    """Read a run's folder, a folder of runs' folders (as ``replay`` makes of several policies), or a sweep's.

    Raises:
        StoreError: if it is none, or one that is damaged; the message says which.
    """
    if not path.is_dir():
        raise StoreError(f"{path} is not a folder" if path.exists() else f"there is no folder {path}")
    if (path / INDEX).is_file():
        return _read_sweep(path)
    if not (path / RUN).is_file():
        inner = sorted(p.parent for p in path.glob(f"*/{RUN}"))
        if inner:
            return [read_recorded(folder) for folder in inner]
        tables = any(path.glob("*.parquet"))
        raise StoreError(
            f"{path} is not a complete run: {RUN} is missing, so the run was interrupted"
            if tables
            else f"{path} is neither a run nor a sweep: it has no {RUN} and no {INDEX}"
        )
    return [read_recorded(path)]


def read_runs(paths: Sequence[Path]) -> list[Recorded]:
    """Read the folders of runs, and those in folders of runs; not sweeps, which are too many at once.

    Raises:
        StoreError: if one is none, or damaged.
    """
    runs: list[Recorded] = []
    for path in paths:
        read = read_any(path)
        if isinstance(read, Swept):
            raise StoreError(
                f"{path} is a sweep of {len(read.cells)} runs; give folders of it, like {path / CELLS}/KEY"
            )
        runs += read
    return runs


def read_recorded(folder: Path) -> Recorded:
    """Read one run with its tables.

    Raises:
        StoreError: if it is not a complete run with tables that can be used.
    """
    head = _json(folder / RUN)
    if isinstance(head, dict) and head.get("format") is None and "resolved" in head:
        raise StoreError(f'{folder} holds a summary only (keep = "summary"): its tables were not kept')
    try:
        stored = read_run(folder)
    except StoreError:
        raise
    except (LookupError, ValueError, TypeError, AttributeError, NotImplementedError, OSError) as e:
        raise StoreError(f"{folder} holds tables that cannot be read: {type(e).__name__}: {e}") from None
    for name, table, columns in (
        ("requests.parquet", stored.requests, REQUEST_COLUMNS),
        ("steps.parquet", stored.steps, STEP_COLUMNS),
    ):
        for column in columns:
            if column not in table:
                raise StoreError(f"{folder / name} has no column {column}")
            if table[column].dtype.kind not in "if":
                raise StoreError(f"{folder / name}: column {column} should hold numbers")
            if table[column].dtype.kind == "f" and column not in FRACTIONS:
                raise StoreError(f"{folder / name}: column {column} should hold whole numbers")
            extreme = _extreme(table[column])
            if extreme > FINITE:
                raise StoreError(f"{folder / name}: column {column} holds {extreme:.6g}, which is no time or count")
    if "id" not in stored.requests:
        raise StoreError(f"{folder / 'requests.parquet'} has no column id")
    _check_references(folder, stored)
    described = _described(folder, stored.info, _json(folder / SUMMARY))
    return Recorded(**described, tables=stored)


def _extreme(values: NDArray[Any]) -> float:
    """Return the largest size among values, 0 where nothing was measured."""
    measured = values[~np.isnan(values)] if values.dtype.kind == "f" else values
    return max(abs(float(measured.min())), abs(float(measured.max()))) if len(measured) else 0.0


def _check_references(folder: Path, stored: StoredRun) -> None:
    """Refuse tables that point at requests or steps that there are none of."""
    n, steps = len(stored.requests["arrival_ns"]), len(stored.steps["start_ns"])
    if (stored.requests["outcome"] >= len(OUTCOMES)).any():
        raise StoreError(f"{folder / 'requests.parquet'}: an outcome is not known")
    for column in ("slo_ttft_ns", "slo_tpot_ns"):
        if ((stored.requests[column] < 1) & (stored.requests[column] != NULL)).any():
            raise StoreError(f"{folder / 'requests.parquet'}: column {column} holds no time above 0")
    owner, lane, visible = stored.requests["replica"], stored.steps["replica"], stored.requests["visible_step"]
    if ((lane < 0) | (lane >= MOST_REPLICAS)).any() or (np.diff(lane) < 0).any():
        raise StoreError(f"{folder / 'steps.parquet'}: the steps are not those of one replica after the other")
    within = (np.searchsorted(lane, owner) <= visible) & (visible <= np.searchsorted(lane, owner, side="right"))
    if not (within | (visible == NULL)).all():
        raise StoreError(f"{folder / 'requests.parquet'}: column visible_step points outside its replica's steps")
    pointing = [
        ("preemptions.parquet", stored.preemptions, {"request": n, "step": steps, "after": steps, "until": steps})
    ]
    if stored.batches is not None:
        pointing.append(("batches.parquet", stored.batches, {"step": steps}))
    for name, table, bounds in pointing:
        for column, bound in bounds.items():
            values = table.get(column, np.empty(0))
            if column not in table or values.dtype.kind != "i":
                raise StoreError(f"{folder / name} has no column {column} of whole numbers")
            least = -1 if column in ("after", "until") else 0
            if len(values) and not least <= int(values.min()) <= int(values.max()) < bound:
                raise StoreError(f"{folder / name}: column {column} points outside the other tables")


def _read_sweep(folder: Path) -> Swept:
    index = _json(folder / INDEX)
    if not isinstance(index, dict) or not isinstance(index.get("axes"), dict):
        raise StoreError(f"{folder / INDEX} does not describe a sweep")
    if index.get("status") != "finished":
        raise StoreError(f"{folder} is an unfinished sweep; end it with the command that began it and --resume")
    cells, failures = [], []
    listed = index.get("cells")
    if not isinstance(listed, list):
        raise StoreError(f"{folder / INDEX} does not list its runs")
    for entry in listed:
        key = entry.get("key") if isinstance(entry, dict) else None
        if not isinstance(key, str) or not CELL_KEY.fullmatch(key):
            raise StoreError(f"{folder / INDEX} lists a run without a usable key: {str(key)[:80]!r}")
        if entry.get("error") is not None:
            failures.append(
                f"{entry.get('policy')} on {entry.get('trace')}, seed {entry.get('seed')}: {entry['error']}"
            )
            continue
        own = folder / CELLS / key
        info, summary = _json(own / RUN), _json(own / SUMMARY)
        if not isinstance(info, dict):
            raise StoreError(f"{own / RUN} does not describe a run")
        # The same run may stand at several points and under several names, of which its folder knows but one.
        info = {**info, **{k: entry[k] for k in ("policy", "seed", "point") if k in entry}}
        described = _described(own, info, summary)
        described["trace"] = str(entry.get("trace", described["trace"]))
        cells.append(Described(**described))
    axes = {str(axis): values for axis, values in index["axes"].items() if isinstance(values, list)}
    config = index.get("config")
    notes = index.get("notes")
    return Swept(
        folder,
        str(index.get("name", folder.name)),
        axes,
        config if isinstance(config, dict) else {},
        cells,
        failures,
        [str(note) for note in notes] if isinstance(notes, list) else [],
    )


def _described(path: Path, info: dict[str, Any], summary: Any) -> dict[str, Any]:
    source = info.get("trace_source")
    source = source if isinstance(source, dict) else {}
    resolved = info.get("resolved")
    resolved = resolved if isinstance(resolved, dict) else {}
    point = info.get("point")
    seed = info.get("seed")
    return {
        "path": path,
        "policy": str(info.get("policy", path.name)),
        "trace": str(source.get("workload") or Path(str(source.get("file") or "unknown trace")).name),
        "seed": seed if isinstance(seed, int) else None,
        "host": str(info.get("host", "")),
        "trace_hash": str(info.get("trace_hash", "")),
        "objectives": _objectives(resolved.get("objectives")),
        "point": {str(k): v for k, v in point.items()} if isinstance(point, dict) else {},
        "summary": _summary(path, summary),
        "info": info,
    }


def _objectives(given: Any) -> Objectives:
    if not isinstance(given, dict):
        return Objectives()
    bounds = {k: given.get(k) for k in ("ttft", "tpot", "tpot_p99", "itl_max", "jct")}
    return Objectives(**{k: v for k, v in bounds.items() if isinstance(v, int) and 0 < v < FOREVER_NS})


def _summary(path: Path, given: Any) -> Summary:
    if not isinstance(given, dict):
        raise StoreError(f"{path / SUMMARY} is not a summary")
    return {str(k): v if _is_number(v) else None for k, v in given.items()}


def _is_number(value: Any) -> bool:
    return (
        isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and abs(value) < 1e300
    )


def _json(path: Path) -> Any:
    try:
        return json.loads(read_bounded(path))
    except OSError as e:
        raise StoreError(f"{path} cannot be read: {e.strerror}") from None
    except (ValueError, RecursionError) as e:
        raise StoreError(f"{path} is not JSON: {e}") from None


def window_of(text: str | None) -> tuple[int, int] | None:
    """Read ``FROM:TO`` in milliseconds and return nanoseconds, ``None`` for none.

    Raises:
        ConfigError: if it has another form, or ends before it begins.
    """
    if text is None:
        return None
    begin, colon, end = text.partition(":")
    try:
        times = (float(begin), float(end))
    except ValueError:
        times = (math.nan, math.nan)
    if not colon or not all(math.isfinite(t) and abs(t) < 1e12 for t in times) or times[0] >= times[1]:
        raise ConfigError(f"--window {text!r} should read FROM:TO in ms, like 5000:5400")
    return round(times[0] * 1e6), round(times[1] * 1e6)
