"""Runs as Chrome trace events, which Perfetto and chrome://tracing open: steps, requests, and counters.

Each run is a process. Its steps lie on a thread per replica, on several where they overlap as in a pipeline; requests
are asynchronous spans; queue, batch and KV blocks are counters.
"""

from __future__ import annotations

import json
import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from heapq import heappop, heappush
from typing import Any

import numpy as np

from experiments.chunks import chunks_of
from experiments.recorded import Recorded
from sim.gaps import pauses_of
from sim.records import FINISHED, NULL, OUTCOMES, Columns
from traces.schema import IntArray

Event = dict[str, Any]
Window = tuple[int, int] | None
"""From and to, in nanoseconds of the run's clock; ``None``: all of it."""

THREADS = 1000
"""Thread ids that each process may have."""

REQUEST = "request"
STEP = "step"


def trace_lines(runs: Sequence[Recorded], window: Window = None) -> Iterator[str]:
    """Yield a trace of several runs as JSON text, one event to a line.

    With a window only steps that begin in it, and requests that are there during it, are told.
    """
    head = {"displayTimeUnit": "ms", "otherData": {"made by": "prefillsim timeline", "runs": len(runs)}}
    end = f'{json.dumps(head)[:-1]}, "traceEvents": ['
    encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode
    for pid, run in enumerate(runs, 1):
        for event in run_events(run, pid, window):
            yield f"{end}\n{encode(event)}"
            end = ","
    yield "\n]}\n"


def run_events(run: Recorded, pid: int, window: Window = None) -> Iterator[Event]:
    """Yield the events of one run; times are microseconds, and hold the nanosecond, see :func:`microseconds`."""
    name = f"{run.label} on {run.trace}" + ("" if run.seed is None else f", seed {run.seed}")
    yield {"ph": "M", "name": "process_name", "pid": pid, "args": {"name": name}}
    yield {"ph": "M", "name": "process_sort_index", "pid": pid, "args": {"sort_index": pid}}
    steps = run.tables.steps
    kept = np.flatnonzero(_within(steps["start_ns"], steps["start_ns"], window))
    yield from _step_events(steps, kept, pid)
    yield from _counter_events(steps, kept, pid)
    yield from _request_events(run, pid, window)


def microseconds(ns: int) -> float:
    """Return a time such that a reader who multiplies it by 1000 and drops the fraction gets the nanosecond back.

    That is what Perfetto does.
    """
    us = ns / 1000
    while int(us * 1000.0) < ns:
        us = math.nextafter(us, math.inf)
    return us


def _step_events(steps: Columns, kept: IntArray, pid: int) -> Iterator[Event]:
    lanes = _lanes(steps, kept)
    several = len(np.unique(steps["replica"])) > 1
    for number, (replica, lane) in enumerate(dict.fromkeys(lanes)):
        name = f"replica {replica} steps" if several else "steps"
        name += f", {lane + 1}" if lane else ""
        yield {"ph": "M", "name": "thread_name", "pid": pid, "tid": _tid(pid, number), "args": {"name": name}}
    tids = {key: _tid(pid, number) for number, key in enumerate(dict.fromkeys(lanes))}
    rows = {name: values[kept].tolist() for name, values in steps.items() if values.dtype.kind in "if"}
    for j, (step, key) in enumerate(zip(kept.tolist(), lanes, strict=True)):
        tokens, decodes = rows["prefill_tokens"][j], rows["n_decode"][j]
        args = {
            "step": step,
            "decodes": decodes,
            "decode context": rows["decode_context"][j],
            "prefills": rows["n_prefill"][j],
            "prefill tokens": tokens,
            "waiting": rows["waiting"][j],
        }
        if rows["granted_tokens"][j] >= 0:
            args["budget"] = rows["granted_tokens"][j]
            args["budget left"] = max(rows["granted_tokens"][j] - tokens, 0)
        if rows["predicted_ns"][j] >= 0:
            args["predicted ms"] = rows["predicted_ns"][j] / 1e6
        if rows["exception"][j] > 0:
            args["over a deadline on purpose"] = True
        yield {
            "ph": "X",
            "name": "prefill + decode" if tokens and decodes else "prefill" if tokens else "decode",
            "cat": STEP,
            "pid": pid,
            "tid": tids[key],
            "ts": microseconds(rows["start_ns"][j]),
            "dur": microseconds(rows["duration_ns"][j]),
            "args": args,
        }


def _lanes(steps: Columns, kept: IntArray) -> list[tuple[int, int]]:
    """Return each step's replica, and which of its threads has room: the first, unless steps overlap."""
    busy: dict[int, list[tuple[int, int]]] = {}
    free: dict[int, list[int]] = {}
    lanes = [(0, 0)] * len(kept)
    starts, durations, replicas = (steps[c][kept].tolist() for c in ("start_ns", "duration_ns", "replica"))
    for j in np.argsort(steps["start_ns"][kept], kind="stable").tolist():
        running, idle = busy.setdefault(replicas[j], []), free.setdefault(replicas[j], [])
        while running and running[0][0] <= starts[j]:
            heappush(idle, heappop(running)[1])
        lane = heappop(idle) if idle else len(running)
        heappush(running, (starts[j] + durations[j], lane))
        lanes[j] = (replicas[j], lane)
    return lanes


def _tid(pid: int, number: int) -> int:
    return pid * THREADS + 1 + number % (THREADS - 1)


def _counter_events(steps: Columns, kept: IntArray, pid: int) -> Iterator[Event]:
    """Yield what is new at the start of each step."""
    replicas = np.unique(steps["replica"])
    for replica in replicas.tolist():
        own = kept[steps["replica"][kept] == replica]
        times = steps["start_ns"][own].tolist()
        suffix = f" of replica {replica}" if len(replicas) > 1 else ""
        counters: list[tuple[str, dict[str, Any]]] = [
            ("queue", {"requests": steps["waiting"][own]}),
            ("batch", {"decodes": steps["n_decode"][own], "prefills": steps["n_prefill"][own]}),
        ]
        if len(own) and steps["kv_blocks"][own].max() >= 0:
            counters.append(("KV blocks", {"in use": np.maximum(steps["kv_blocks"][own], 0)}))
        for name, columns in counters:
            values = np.column_stack(list(columns.values()))
            new = np.ones(len(values), dtype=bool)
            new[1:] = (values[1:] != values[:-1]).any(axis=1)
            for j in np.flatnonzero(new).tolist():
                row = dict(zip(columns, values[j].tolist(), strict=True))
                yield {"ph": "C", "name": name + suffix, "pid": pid, "ts": microseconds(times[j]), "args": row}


def _request_events(run: Recorded, pid: int, window: Window) -> Iterator[Event]:
    requests, steps = run.tables.requests, run.tables.steps
    ends = steps["start_ns"] + steps["duration_ns"]
    last = int(ends.max()) if len(ends) else 0
    told = np.column_stack([requests[c] for c in ("arrival_ns", "first_token_ns", "finished_ns")]).max(axis=1)
    unfinished = (requests["outcome"] != FINISHED) & (requests["first_scheduled_ns"] >= 0)
    over: IntArray = np.where(unfinished, np.maximum(told, last), told)
    rows = np.flatnonzero(_within(requests["arrival_ns"], over, window))
    chunks = _by_request(chunks_of(run.tables), ("step", "tokens"))
    pauses = _by_request(pauses_of(run.tables.preemptions), ("after", "until"))
    for i in rows.tolist():
        phases = _Span(pid, i)
        row = {name: values[i] for name, values in requests.items()}
        yield from phases.begin(REQUEST, int(row["arrival_ns"]), _facts(row))
        yield from _phases(phases, row, int(over[i]), steps, ends, chunks.get(i, []), pauses.get(i, []))
        yield from phases.end(REQUEST, int(over[i]))


class _Span:
    """Makes the asynchronous events of one request; all share an id, so viewers nest them."""

    def __init__(self, pid: int, request: int) -> None:
        self._common: Event = {"cat": REQUEST, "pid": pid, "tid": pid, "id2": {"local": f"0x{request + 1:x}"}}

    def begin(self, name: str, ns: int, args: dict[str, Any] | None = None) -> Iterator[Event]:
        yield {"ph": "b", "name": name, **self._common, "ts": microseconds(ns), **({"args": args} if args else {})}

    def end(self, name: str, ns: int) -> Iterator[Event]:
        yield {"ph": "e", "name": name, **self._common, "ts": microseconds(ns)}

    def whole(self, name: str, begin: int, end: int, args: dict[str, Any] | None = None) -> Iterator[Event]:
        yield from self.begin(name, begin, args)
        yield from self.end(name, end)

    def instant(self, name: str, ns: int) -> Iterator[Event]:
        yield {"ph": "n", "name": name, **self._common, "ts": microseconds(ns)}


def _phases(
    span: _Span,
    row: dict[str, Any],
    over: int,
    steps: Columns,
    ends: IntArray,
    chunks: list[tuple[int, ...]],
    pauses: list[tuple[int, ...]],
) -> Iterator[Event]:
    """Yield queueing, prefilling with its chunks, first token, decoding with its preemptions, and finish."""
    arrival, begin, first = (int(row[c]) for c in ("arrival_ns", "first_scheduled_ns", "first_token_ns"))
    if row["outcome"] != FINISHED and begin < 0 and first < 0:
        yield from span.instant(OUTCOMES[int(row["outcome"])], over)
        return
    if begin < 0:  # a client cannot tell when its request was scheduled
        yield from span.whole("queued and prefilled", arrival, first)
    else:
        yield from span.whole("queued", arrival, begin)
        prefilled = first if first >= 0 else over
        yield from span.begin("prefill", begin)
        for step, tokens in chunks:
            if ends[step] <= prefilled:
                yield from span.whole("chunk", int(steps["start_ns"][step]), int(ends[step]), {"tokens": tokens})
        yield from span.end("prefill", prefilled)
    if first < 0:
        return
    yield from span.instant("first token", first)
    yield from span.begin("decode", first)
    chunks = sorted(chunks, key=_step)
    told = NULL
    for after, until in pauses:
        after, told = max(after, told), max(until, told)
        if after >= until:  # a run's pauses follow each other; what others wrote may not
            continue
        yield from span.begin("preempted", int(ends[after]))
        for step, tokens in chunks[bisect_right(chunks, after, key=_step) : bisect_right(chunks, until, key=_step)]:
            yield from span.whole("chunk", int(steps["start_ns"][step]), int(ends[step]), {"tokens": tokens})
        yield from span.end("preempted", int(ends[until]))
    yield from span.end("decode", over)
    if row["outcome"] == FINISHED:
        yield from span.instant("finished", over)


def _step(chunk: tuple[int, ...]) -> int:
    return chunk[0]


def _facts(row: dict[str, Any]) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "id": str(row["id"]),
        "outcome": OUTCOMES[int(row["outcome"])],
        "prompt tokens": int(row["prompt_tokens"]),
        "output tokens": int(row["generated_tokens"]),
        "chunks": int(row["chunks"]),
    }
    if row["cached_tokens"] > 0:
        facts["cached tokens"] = int(row["cached_tokens"])
    if row["preemptions"] > 0:
        facts["preemptions"] = int(row["preemptions"])
    for name, column in (("ttft ms", "ttft_ns"), ("p99 tpot ms", "tpot_p99_ns"), ("latency ms", "jct_ns")):
        if row[column] >= 0:
            facts[name] = float(row[column]) / 1e6
    if row.get("reason") is not None:
        facts["reason"] = str(row["reason"])
    return facts


def _by_request(table: Columns | None, names: Sequence[str]) -> dict[int, list[tuple[int, ...]]]:
    found: dict[int, list[tuple[int, ...]]] = {}
    if table is not None:
        columns = [table[name].tolist() for name in names]
        for request, *values in zip(table["request"].tolist(), *columns, strict=True):
            found.setdefault(request, []).append(tuple(values))
    return found


def _within(begin: IntArray, end: IntArray, window: Window) -> Any:
    if window is None:
        return np.ones(len(begin), dtype=bool)
    return (end >= window[0]) & (begin < window[1])
