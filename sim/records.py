"""What a run leaves behind: the requests, steps and batches tables.

The engine logs compactly (a stretch of decode-only steps is one row with a repeat count); the tables here are
the expanded form, with token times derived from step indices in whole-array operations.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
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

PREEMPTION_COLUMNS = ("step", "request", "after", "until")
"""The step that preempted a request, and the steps of its last token before and its next token after; -1: none."""


def integers(values: Iterable[int] = ()) -> array[int]:
    """Return a growing column of 64-bit integers, which takes 8 bytes for each and no objects."""
    return array("q", values)


@dataclass
class RunLog:
    """What the engine writes while it runs; one slot per request, one packed row per step or stretch."""

    n: int
    steps: bytearray = field(default_factory=bytearray)
    durations: array[int] = field(default_factory=integers)
    predicted: array[int] = field(default_factory=integers)
    """Empty where the policy's cost model is the engine's: then prediction and duration are equal."""
    chunks: dict[str, array[int]] = field(default_factory=lambda: {c: integers() for c in CHUNK_COLUMNS})
    """What was prefilled, in batch order; ``request`` is the index in the trace."""
    reasons: dict[int, str] = field(default_factory=dict)
    kv_blocks: array[int] = field(default_factory=integers)
    """Blocks in use after each step's share was taken; empty where no cache counts blocks."""
    decided: array[int] = field(default_factory=integers)
    """When each row of ``steps`` was decided, and in a stretch every further step when the one before it started; empty
    where every step was decided at its start."""
    visible: list[int] = field(default_factory=list)
    """The step at which each request became visible; empty where it is the first decided at or after its arrival."""
    stopped: dict[int, int] = field(default_factory=dict)
    """By request that was broken off between two of its tokens, the step of its latest one."""
    busy: array[int] = field(default_factory=integers)
    """The mean over a pipeline's stages of the time they worked on each step; empty without a pipeline."""
    stalls: dict[int, int] = field(default_factory=dict)
    """By step, how long it waited for blocks from CPU memory."""
    preemptions: list[list[int]] = field(default_factory=list)
    """See :data:`PREEMPTION_COLUMNS`."""
    interrupted: dict[int, list[int]] = field(default_factory=dict)
    """By preempted request, the rows of ``preemptions`` after which it has not got a token yet."""
    outcome: list[int] = field(init=False)
    first_token: list[int] = field(init=False)
    finished: list[int] = field(init=False)
    cached: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.outcome = [UNFINISHED] * self.n
        self.first_token = [NULL] * self.n
        self.finished = [NULL] * self.n
        self.cached = [0] * self.n

    def preempt(self, request: int, step: int, decoding: bool) -> None:
        """Note that ``request`` was preempted in ``step``."""
        open_rows = self.interrupted.setdefault(request, [])
        after = step - 1 if decoding else self.preemptions[open_rows[-1]][2] if open_rows else NULL
        open_rows.append(len(self.preemptions))
        self.preemptions.append([step, request, after, NULL])

    def resume(self, request: int, step: int) -> None:
        """Note that ``request`` got its next token after a preemption in ``step``."""
        for row in self.interrupted[request]:
            self.preemptions[row][3] = step
        self.interrupted[request].clear()


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
        """Columns ``step``, ``request`` (index) and ``tokens``: what was prefilled, in batch order.

        The one token that a preempted request lacks when it finds all others cached is here too, though its step counts
        it as a decode.
        """

    @property
    def preemptions(self) -> Columns:
        """One row per preemption: ``step``, ``request`` (index), ``after`` and ``until``.

        The last two are the steps of the request's last token before and of its next one after, -1 where there is
        none.
        """

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


NO_PREEMPTIONS: Columns = {name: np.empty(0, dtype=np.int64) for name in PREEMPTION_COLUMNS}


def last_token_steps(first: IntArray, generated: IntArray, pauses: Columns) -> IntArray:
    """Return the step of each request's latest token, given that of its first and how many it got."""
    away = np.bincount(pauses["request"], pauses["until"] - pauses["after"] - 1, len(first))
    steps: IntArray = first + generated - 1 + away.astype(np.int64)
    return steps


def pauses_of(preemptions: Columns) -> Columns:
    """Return the stretches between two tokens of a request in which it was preempted, in order of request and step.

    Columns ``request``, ``after`` and ``until``: it got no token in the steps between the last two, and one in each of
    those before and after. Several preemptions in one stretch make one row.
    """
    names = ("request", "after", "until")
    if not len(preemptions["request"]):
        return {name: preemptions[name] for name in names}
    between = (preemptions["after"] >= 0) & (preemptions["until"] >= 0)
    columns = [preemptions[name][between] for name in names]
    order = np.lexsort(columns[::-1])
    columns = [column[order] for column in columns]
    new = np.ones(len(order), dtype=bool)
    new[1:] = np.any([column[1:] != column[:-1] for column in columns], axis=0)
    return {name: column[new] for name, column in zip(names, columns, strict=True)}


def token_spans(first: IntArray, last: IntArray, pauses: Columns) -> Columns:
    """Return the steps in which requests got tokens as uninterrupted spans, in order of request and step.

    Args:
        first: step of each request's first token, -1 where there is none.
        last: step of its latest.
        pauses: see :func:`pauses_of`.

    Returns:
        Columns ``request``, ``first`` and ``last``; one row per request with a token, and one more per pause.
    """
    rows = np.flatnonzero(first >= 0)
    request = np.concatenate([rows, pauses["request"]])
    begin = np.concatenate([first[rows], pauses["until"]])
    order = np.lexsort((begin, request))
    request, begin = request[order], begin[order]
    end = np.concatenate([last[rows], pauses["after"]])
    end = end[np.lexsort((end, np.concatenate([rows, pauses["request"]])))]
    return {"request": request, "first": begin, "last": end}


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


GAP_BLOCK = 16_000
"""Token gaps sorted at a time: few enough to stay in a core's cache, and to bound memory in long runs."""


def token_gaps(ends: IntArray, first: IntArray, last: IntArray, pauses: Columns | None = None) -> Columns:
    """Return ``tpot_mean_ns``, ``tpot_p99_ns`` (floats, NaN without a gap) and ``itl_max_ns`` per request.

    ``first`` and ``last`` are the steps of each request's first and latest token, -1 where there is none; a
    request emits one token per step between them, except where it pauses.
    """
    gaps = _steady_gaps(ends, first, last)
    if pauses is None or not len(pauses["request"]):
        return gaps
    spans = token_spans(first, last, pauses)
    for request in np.unique(pauses["request"]).tolist():
        own = slice(*np.searchsorted(spans["request"], [request, request + 1]))
        steps = np.concatenate(
            [np.arange(a, b + 1) for a, b in zip(spans["first"][own], spans["last"][own], strict=True)]
        )
        between = np.diff(ends[steps])
        gaps["tpot_mean_ns"][request] = (ends[steps[-1]] - ends[steps[0]]) / len(between)
        gaps["tpot_p99_ns"][request] = np.percentile(between, 99)
        gaps["itl_max_ns"][request] = between.max()
    return gaps


def _steady_gaps(ends: IntArray, first: IntArray, last: IntArray) -> Columns:
    """Return what :func:`token_gaps` does of requests that get a token in every step."""
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


FEW_GAPS = 2_000
"""So many cells take less time to sort than another block."""


def _blocks(sizes: IntArray) -> list[slice]:
    """Cut ascending sizes into runs that differ by at most a factor of two, of at most ``GAP_BLOCK`` cells each.

    Few are one run, whatever their sizes.
    """
    if len(sizes) and len(sizes) * int(sizes[-1]) <= FEW_GAPS:
        return [slice(0, len(sizes))]
    blocks, start = [], 0
    while start < len(sizes):
        stop = int(np.searchsorted(sizes, sizes[start] * 2, side="right"))
        stop = min(stop, start + max(1, GAP_BLOCK // int(sizes[stop - 1])))
        blocks.append(slice(start, stop))
        start = stop
    return blocks
