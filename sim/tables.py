"""A run's log made into its tables: token times follow from step indices, in whole-array operations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from sim.gaps import pauses_of, token_gaps
from sim.records import FINISHED, NULL, PREEMPTION_COLUMNS, STEP_ROW, Columns, RunLog
from traces.schema import IntArray, Trace


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

    @cached_property
    def preemptions(self) -> Columns:
        """One row per preemption."""
        return preemption_table(self.log)

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
    columns = {"decided_ns": _decided(log, columns["start_ns"], repeat), **columns}
    if not predicts:
        columns["predicted_ns"] = np.full(len(duration), NULL, dtype=np.int64)
    elif log.predicted:
        columns["predicted_ns"] = _column(log.predicted)
    else:
        columns["predicted_ns"] = duration
    columns["kv_blocks"] = _column(log.kv_blocks) if log.kv_blocks else np.full(len(duration), NULL, dtype=np.int64)
    columns["busy_ns"] = _column(log.busy) if log.busy else duration.copy()
    if log.stalls and not log.busy:
        columns["busy_ns"][list(log.stalls)] -= list(log.stalls.values())
    columns["replica"] = np.zeros(len(duration), dtype=np.int64)
    return columns


def _decided(log: RunLog, start: IntArray, repeat: IntArray) -> IntArray:
    """Return when each step was decided."""
    if not log.decided:
        return start
    decided = np.concatenate([[0], start[:-1]])
    decided[np.cumsum(repeat) - repeat] = log.decided
    return decided


def request_table(trace: Trace, log: RunLog, steps: Columns) -> Columns:
    """Derive each request's times from the step log."""
    ends = steps["start_ns"] + steps["duration_ns"]
    first, finished = _column(log.first_token), _column(log.finished)
    arrival = trace.arrival_ns
    visible = _column(log.visible) if log.visible else np.searchsorted(steps["decided_ns"], arrival)
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
    preemptions = preemption_table(log)
    for request, rows in log.interrupted.items():
        if rows and first[request] >= 0:  # it waits for its next token still
            last[request] = preemptions["after"][rows[-1]]
    last[list(log.stopped)] = list(log.stopped.values())
    pauses = pauses_of(preemptions)
    paused = np.bincount(pauses["request"], pauses["until"] - pauses["after"] - 1, len(trace)).astype(np.int64)
    gaps = token_gaps(ends, first, last, pauses)
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
        "generated_tokens": np.where(first >= 0, last - first + 1 - paused, 0),
        "chunks": n_chunks,
        "preemptions": np.bincount(preemptions["request"], minlength=len(trace)),
        "replica": np.zeros(len(trace), dtype=np.int64),
        "outcome": np.where(finished >= 0, FINISHED, _column(log.outcome)),
        "aged_chunks": np.bincount(chunks["request"][aged], minlength=len(trace)),
        "slo_exceptions": np.where(first >= 0, overruns[last + 1] - overruns[first + 1], 0)
        - np.bincount(pauses["request"], overruns[pauses["until"]] - overruns[pauses["after"] + 1], len(trace)).astype(
            np.int64
        ),
        "ttft_ns": ttft,
        **gaps,
        "jct_ns": np.where(finished >= 0, finished_ns - arrival, NULL),
        "slo_ttft_ns": _own_objective(trace.slo_ttft_ns, len(trace)),
        "slo_tpot_ns": _own_objective(trace.slo_tpot_ns, len(trace)),
    }


def _own_objective(values: IntArray | None, n: int) -> IntArray:
    return np.full(n, NULL, dtype=np.int64) if values is None else values


def preemption_table(log: RunLog) -> Columns:
    """Return the preemptions as columns; see :class:`Tables`."""
    rows = np.array(log.preemptions, dtype=np.int64).reshape(-1, len(PREEMPTION_COLUMNS))
    return {name: np.ascontiguousarray(rows[:, j]) for j, name in enumerate(PREEMPTION_COLUMNS)}


def chunk_table(log: RunLog) -> Columns:
    """Return the prefill chunks as columns."""
    return {name: _column(values) for name, values in log.chunks.items()}


def _rows(packed: bytearray, width: int) -> IntArray:
    return np.frombuffer(packed, dtype=np.int64).reshape(-1, width)


def _column(values: Sequence[int]) -> IntArray:
    return np.array(values, dtype=np.int64)


def _at(times: IntArray, index: IntArray) -> IntArray:
    if not len(times):
        return np.full(len(index), NULL, dtype=np.int64)
    return np.where(index >= 0, times[index], NULL)
