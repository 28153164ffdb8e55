"""What a run leaves behind: the requests, steps and batches tables.

The engine logs compactly (a stretch of decode-only steps is one row with a repeat count); the tables here are
the expanded form, with token times derived from step indices in whole-array operations.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from struct import Struct
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from traces.schema import IntArray, Trace

Columns = dict[str, NDArray[Any]]

FINISHED, REJECTED, REDIRECTED, UNFINISHED = range(4)
OUTCOMES = ("finished", "rejected", "redirected", "unfinished")

NULL = -1
"""Stands for a missing value in integer columns; the tables on disk have nulls."""

STEP_ROW = (
    "start_ns",
    "n_decode",
    "decode_context",
    "decode_context_max",
    "n_prefill",
    "prefill_tokens",
    "prefill_pairs",
    "waiting",
    "granted_tokens",
    "exception",
    "repeat",
)
pack_step = Struct(f"{len(STEP_ROW)}q").pack

CHUNK_COLUMNS = ("step", "request", "tokens")


@dataclass
class RunLog:
    """What the engine writes while it runs; one slot per request, one packed row per step or stretch."""

    n: int
    steps: bytearray = field(default_factory=bytearray)
    durations: list[int] = field(default_factory=list)
    predicted: list[int] = field(default_factory=list)
    """Empty where the policy's cost model is the engine's: then prediction and duration are equal."""
    chunks: dict[str, list[int]] = field(default_factory=lambda: {c: [] for c in CHUNK_COLUMNS})
    """What was prefilled, in batch order; ``request`` is the index in the trace."""
    reasons: dict[int, str] = field(default_factory=dict)
    outcome: list[int] = field(init=False)
    first_token: list[int] = field(init=False)
    finished: list[int] = field(init=False)
    cached: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.outcome = [UNFINISHED] * self.n
        self.first_token = [NULL] * self.n
        self.finished = [NULL] * self.n
        self.cached = [0] * self.n


class Tables(Protocol):
    """The expanded tables as dictionaries of equally long columns, in trace and step order."""

    @property
    def requests(self) -> Columns:
        """One row per request; see :func:`request_table`."""

    @property
    def steps(self) -> Columns:
        """One row per step; see :func:`step_table`."""

    @property
    def chunks(self) -> Columns:
        """Columns ``step``, ``request`` (index) and ``tokens``: what was prefilled, in batch order."""

    @property
    def reasons(self) -> dict[int, str]:
        """Why a request was turned away, by index."""


@dataclass(frozen=True)
class LoggedRun:
    """A run as the engine has logged it; a table is expanded when it is first asked for."""

    trace: Trace
    log: RunLog
    predicts: bool
    """Whether the policy consulted a cost model at all."""

    @cached_property
    def steps(self) -> Columns:
        """One row per step."""
        return step_table(self.log, self.predicts)

    @cached_property
    def requests(self) -> Columns:
        """One row per request."""
        return request_table(self.trace, self.log, self.steps)

    @cached_property
    def chunks(self) -> Columns:
        """What was prefilled, in batch order."""
        return chunk_table(self.log)

    @property
    def reasons(self) -> dict[int, str]:
        """Why a request was turned away, by index."""
        return self.log.reasons


def step_table(log: RunLog, predicts: bool) -> Columns:
    """Expand the step log; ``predicts`` says whether the policy consulted a cost model at all."""
    raw = _rows(log.steps, len(STEP_ROW))
    packed = {name: raw[:, j] for j, name in enumerate(STEP_ROW)}
    repeat = packed.pop("repeat")
    duration = _column(log.durations)
    if len(duration) == len(raw):
        columns: Columns = {name: np.ascontiguousarray(values) for name, values in packed.items()}
    else:
        columns = {name: np.repeat(values, repeat) for name, values in packed.items()}
        at = np.cumsum(repeat) - repeat
        within = np.arange(len(duration)) - np.repeat(at, repeat)
        columns["decode_context"] += within * columns["n_decode"]
        columns["decode_context_max"] += within
        before = np.cumsum(duration) - duration
        columns["start_ns"] += before - np.repeat(before[at], repeat)
    columns["duration_ns"] = duration
    if not predicts:
        columns["predicted_ns"] = np.full(len(duration), NULL, dtype=np.int64)
    elif log.predicted:
        columns["predicted_ns"] = _column(log.predicted)
    else:
        columns["predicted_ns"] = duration
    return columns


def request_table(trace: Trace, log: RunLog, steps: Columns) -> Columns:
    """Derive each request's times from the step log."""
    ends = steps["start_ns"] + steps["duration_ns"]
    first, finished = _column(log.first_token), _column(log.finished)
    arrival = trace.arrival_ns
    visible = np.searchsorted(steps["start_ns"], arrival)
    visible = np.where(visible < len(ends), visible, NULL)
    first_ns = _at(ends, first)
    finished_ns = _at(ends, finished)
    chunks = chunk_table(log)
    n_chunks = np.bincount(chunks["request"], minlength=len(trace))
    started = np.full(len(trace), NULL, dtype=np.int64)
    started[chunks["request"][::-1]] = chunks["step"][::-1]  # of several assignments the last counts: the first chunk
    aged = steps["exception"][chunks["step"]].astype(bool)
    ttft = np.where(first >= 0, first_ns - arrival, NULL)
    last = np.where(finished >= 0, finished, np.where(first >= 0, len(ends) - 1, NULL))
    gaps = token_gaps(ends, first, last)
    overruns = np.concatenate([[0], np.cumsum(steps["exception"])])
    return {
        "arrival_ns": arrival,
        "visible_step": visible,
        "first_scheduled_ns": _at(steps["start_ns"], started),
        "first_token_ns": first_ns,
        "finished_ns": finished_ns,
        "prompt_tokens": trace.prompt_tokens,
        "cached_tokens": np.where(started >= 0, _column(log.cached), NULL),
        "output_tokens": trace.output_tokens,
        "generated_tokens": np.where(first >= 0, last - first + 1, 0),
        "chunks": n_chunks,
        "preemptions": np.zeros(len(trace), dtype=np.int64),
        "outcome": np.where(finished >= 0, FINISHED, _column(log.outcome)),
        "aged_chunks": np.bincount(chunks["request"][aged], minlength=len(trace)),
        "slo_exceptions": np.where(first >= 0, overruns[last + 1] - overruns[first + 1], 0),
        "ttft_ns": ttft,
        **gaps,
        "jct_ns": np.where(finished >= 0, finished_ns - arrival, NULL),
        "slo_ttft_ns": _own_objective(trace.slo_ttft_ns, len(trace)),
        "slo_tpot_ns": _own_objective(trace.slo_tpot_ns, len(trace)),
    }


def _own_objective(values: IntArray | None, n: int) -> IntArray:
    return np.full(n, NULL, dtype=np.int64) if values is None else values


def chunk_table(log: RunLog) -> Columns:
    """Return the prefill chunks as columns."""
    return {name: _column(values) for name, values in log.chunks.items()}


def _rows(packed: bytearray, width: int) -> IntArray:
    return np.frombuffer(packed, dtype=np.int64).reshape(-1, width)


def _column(values: list[int]) -> IntArray:
    return np.array(values, dtype=np.int64)


def _at(times: IntArray, index: IntArray) -> IntArray:
    if not len(times):
        return np.full(len(index), NULL, dtype=np.int64)
    return np.where(index >= 0, times[index], NULL)


GAP_BLOCK = 16_000
"""Token gaps sorted at a time: few enough to stay in a core's cache, and to bound memory in long runs."""


def token_gaps(ends: IntArray, first: IntArray, last: IntArray) -> Columns:
    """Return ``tpot_mean_ns``, ``tpot_p99_ns`` (floats, NaN without a gap) and ``itl_max_ns`` per request.

    ``first`` and ``last`` are the steps of each request's first and latest token, -1 where there is none; a
    request emits one token per step between them.
    """
    n = len(first)
    mean, p99 = np.full(n, np.nan), np.full(n, np.nan)
    longest = np.full(n, NULL, dtype=np.int64)
    counts = np.where(first >= 0, last - first, 0)
    rows = np.flatnonzero(counts > 0)
    gaps = np.diff(ends)
    mean[rows] = (ends[last[rows]] - ends[first[rows]]) / counts[rows]
    buffers = np.empty((2, max(GAP_BLOCK, int(counts.max(initial=0)))), dtype=np.int64)
    # Equal lengths together make dense matrices, and rows of similar length waste little padding.
    rows = rows[np.argsort(counts[rows], kind="stable")]
    for block in _blocks(counts[rows]):
        at = rows[block]
        size = counts[at]
        width = int(size[-1])
        offset = np.arange(width, dtype=np.int64)
        cells = len(at) * width
        index, matrix = (buffer[:cells].reshape(len(at), width) for buffer in buffers)
        np.add(first[at, None], offset, out=index)
        gaps.take(index, out=matrix, mode="clip")
        # What lies beyond a request's last gap sorts to the left, so that its own stand at the right end.
        np.copyto(matrix, NULL, where=offset >= size[:, None])
        position = 0.99 * (size - 1)
        low = position.astype(np.int64)
        weight = position - low
        # Ranks from the top: only the few largest gaps of a row need sorting.
        rank = size - 1 - low
        few = int(rank.max()) + 1
        matrix.partition(width - few, axis=1)
        top = matrix[:, width - few :]
        top.sort(axis=1)
        line = np.arange(len(at))
        a = top[line, few - 1 - rank]
        b = top[line, few - 1 - np.maximum(rank - 1, 0)]
        # The same interpolation as numpy's, so that the two agree to the last bit.
        diff = b - a
        p99[at] = np.where(weight >= 0.5, b - diff * (1 - weight), a + diff * weight)
        longest[at] = top[:, -1]
    return {"tpot_mean_ns": mean, "tpot_p99_ns": p99, "itl_max_ns": longest}


def _blocks(sizes: IntArray) -> list[slice]:
    """Cut ascending sizes into runs that differ by at most a factor of two, of at most ``GAP_BLOCK`` cells each."""
    blocks, start = [], 0
    while start < len(sizes):
        stop = int(np.searchsorted(sizes, sizes[start] * 2, side="right"))
        stop = min(stop, start + max(1, GAP_BLOCK // int(sizes[stop - 1])))
        blocks.append(slice(start, stop))
        start = stop
    return blocks
