"""A public run of vLLM: requests as served, vLLM's configuration, and the kernel times of its GPU.

The folder holds ``requests.jsonl``, ``meta.json``, ``kernel_*.csv`` and, where there is one, ``timeseries.csv``.

**Clocks.** ``arrival_time`` is the wall clock of vLLM's front end; ``queued_ts``, ``scheduled_ts``, ``first_token_ts``
and ``last_token_ts`` are a monotonic clock of its engine. A request is queued once its prompt has been tokenised and
the step under way lets the engine look, so ``queued_ts - arrival_time`` is the distance of the two clocks plus a delay
of 0 or more, and the smallest such difference is the best estimate of the distance. Arrival is ``arrival_time``: when a
request is queued depends on the steps, which are to be predicted.
"""

from __future__ import annotations

import csv
import itertools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from costmodels.kernels_csv import ATTENTION
from gpu_runner.validate.ends import FloatArray, Sample
from gpu_runner.validate.tolerances import ValidationError
from policies.units import MS, NS
from traces.schema import IntArray, Trace

REQUESTS, META, SECONDS = "requests.jsonl", "meta.json", "timeseries.csv"

NUMBERS = (
    "input_toks",
    "output_toks",
    "arrival_time",
    "queued_ts",
    "scheduled_ts",
    "first_token_ts",
    "last_token_ts",
)
"""Of each request; tokens, and seconds on the clocks above."""

UNSUPPORTED = {
    ("parallel_config", "tensor_parallel_size"): 1,
    ("parallel_config", "pipeline_parallel_size"): 1,
    ("parallel_config", "data_parallel_size"): 1,
    ("scheduler_config", "policy"): "fcfs",
    ("scheduler_config", "long_prefill_token_threshold"): 0,
    ("speculative_config",): None,
    ("lora_config",): None,
    ("kv_transfer_config",): None,
}
"""What of vLLM's configuration is only simulated at these values."""


@dataclass(frozen=True)
class ServerConfig:
    """What of vLLM's resolved configuration decides about its schedule."""

    model: str
    version: str
    budget: int
    """``max_num_batched_tokens``."""
    max_num_seqs: int
    max_model_len: int
    blocks: int
    block_size: int
    prefix_cache: bool
    pipeline_depth: int
    """2 with asynchronous scheduling, else 1."""


@dataclass(frozen=True, eq=False)
class RecordedRun:
    """A run of a server, all times in nanoseconds from the first arrival; arrays of shape (requests,)."""

    folder: Path
    config: ServerConfig
    trace: Trace
    queued_ns: IntArray
    scheduled_ns: IntArray
    first_token_ns: IntArray
    finished_ns: IntArray
    seconds: Mapping[str, FloatArray] | None
    """Columns of ``timeseries.csv``, a row a second: ``t`` (s), throughputs in tokens per second, ``running``,
    ``waiting`` and ``kv_cache_pct``."""

    @property
    def sample(self) -> Sample:
        """What the requests saw; gaps between single tokens were not recorded."""
        gaps = self.trace.output_tokens - 1
        decoding = (self.finished_ns - self.first_token_ns) / np.maximum(gaps, 1)
        end = int(self.finished_ns.max())
        return Sample(
            {
                "ttft": (self.first_token_ns - self.trace.arrival_ns) / MS,
                "tpot": decoding[gaps > 0] / MS,
                "jct": (self.finished_ns - self.trace.arrival_ns) / MS,
            },
            len(self.trace) * NS / end if end else None,
        )


def is_recorded(folder: Path) -> bool:
    """Return whether a folder looks like a public run, complete or not."""
    return (folder / REQUESTS).is_file() or (folder / ATTENTION).is_file()


def read_recorded(folder: Path) -> RecordedRun:
    """Read a public run.

    Raises:
        ValidationError: if a file is missing or malformed, or vLLM ran with something that is not simulated.
    """
    config = _config(folder / META)
    numbers = _requests(folder / REQUESTS)
    order = np.argsort(numbers["arrival_time"], kind="stable")
    tokens = {name: numbers[name][order].astype(np.int64) for name in NUMBERS[:2]}
    arrival, *engine = (numbers[name][order] for name in NUMBERS[2:])
    # The distance of the clocks is largest doubles apart; differences of like times keep their digits.
    start = arrival[0] + np.min(engine[0] - arrival)
    queued, scheduled, first, last = (_ns(t - start) for t in engine)
    trace = Trace(_ns(arrival - arrival[0]), tokens["input_toks"], tokens["output_toks"], name=folder.name)
    too_long = np.flatnonzero(trace.prompt_tokens + trace.output_tokens > config.max_model_len)
    if len(too_long):
        raise ValidationError(f"{folder / REQUESTS}: request {too_long[0]} is longer than max_model_len")
    return RecordedRun(folder, config, trace, queued, scheduled, first, last, _seconds(folder / SECONDS))


def _ns(seconds: NDArray[Any]) -> IntArray:
    whole: IntArray = np.rint(seconds * NS).astype(np.int64)
    return whole


def _requests(path: Path) -> dict[str, FloatArray]:
    columns: dict[str, list[float]] = {name: [] for name in NUMBERS}
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as e:
        raise ValidationError(f"{path} cannot be read: {getattr(e, 'strerror', None) or e}") from None
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            values = [float(row[name]) for name in NUMBERS]
        except KeyError as e:
            raise ValidationError(f"{path}, line {number}: {e.args[0]} is missing ({', '.join(NUMBERS)})") from None
        except (ValueError, TypeError, RecursionError):
            raise ValidationError(
                f"{path}, line {number} should be a JSON object with the numbers {', '.join(NUMBERS)}"
            ) from None
        _check_request(values, f"{path}, line {number}")
        for name, value in zip(NUMBERS, values, strict=True):
            columns[name].append(value)
    if not columns[NUMBERS[0]]:
        raise ValidationError(f"{path} has no requests")
    return {name: np.array(values) for name, values in columns.items()}


def _check_request(values: list[float], where: str) -> None:
    if not np.isfinite(values).all():
        raise ValidationError(f"{where}: every number must be finite")
    if min(values[:2]) < 1:
        raise ValidationError(f"{where}: input_toks and output_toks must be at least 1")
    stamps = dict(zip(NUMBERS[3:], values[3:], strict=True))
    for before, after in itertools.pairwise(stamps):
        if stamps[before] > stamps[after]:
            raise ValidationError(f"{where}: {after} is before {before}")


def _config(path: Path) -> ServerConfig:
    try:
        meta = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as e:
        raise ValidationError(f"{path} cannot be read: {getattr(e, 'strerror', None) or e}") from None
    for keys, simulated in UNSUPPORTED.items():
        if (found := _at(meta, ("resolved_config", *keys), path)) != simulated:
            raise ValidationError(f"{path}: vLLM ran with {keys[-1]} {found!r}; only {simulated!r} is simulated here")
    scheduler = ("resolved_config", "scheduler_config")
    counts = {
        name: _count(meta, keys, path)
        for name, keys in {
            "budget": (*scheduler, "max_num_batched_tokens"),
            "max_num_seqs": (*scheduler, "max_num_seqs"),
            "max_model_len": ("resolved_config", "model_config", "max_model_len"),
            "blocks": ("kv_cache", "num_gpu_blocks"),
            "block_size": ("kv_cache", "block_size"),
        }.items()
    }
    return ServerConfig(
        model=str(_at(meta, ("model",), path)),
        version=str(_at(meta, ("vllm_version",), path)),
        prefix_cache=bool(_at(meta, ("kv_cache", "enable_prefix_caching"), path)),
        pipeline_depth=2 if _at(meta, (*scheduler, "async_scheduling"), path) else 1,
        **counts,
    )


def _at(meta: Any, keys: tuple[str, ...], path: Path) -> Any:
    found = meta
    for key in keys:
        if not (isinstance(found, dict) and key in found):
            raise ValidationError(f"{path} does not say {'.'.join(keys)}, which the simulation needs")
        found = found[key]
    return found


def _count(meta: Any, keys: tuple[str, ...], path: Path) -> int:
    found = _at(meta, keys, path)
    if isinstance(found, bool) or not isinstance(found, int) or found < 1:
        raise ValidationError(f"{path}: {'.'.join(keys)} is {found!r}; it must be a whole number of at least 1")
    return found


def _seconds(path: Path) -> dict[str, FloatArray] | None:
    if not path.is_file():
        return None
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        names = list(rows[0]) if rows else []
        return {name: np.array([float(row[name]) for row in rows]) for name in names}
    except (OSError, ValueError, TypeError) as e:
        raise ValidationError(f"{path} should hold a number in every column of every second: {e}") from None
