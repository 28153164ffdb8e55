"""Replays a trace against a live server over HTTP, and makes tables of what a client can see.

A client sees requests and tokens, no steps: the steps table is empty, tokens have a table of their own, and what only
steps could tell (utilisation, queues, batches) is not measured. An arrival is the time at which the trace wanted the
request sent, so a client or a server that is late makes its requests wait, as it makes users wait.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from gpu_runner.clock import Clock
from gpu_runner.openai_client import Answer, Server, completion
from gpu_runner.prompts import prompt_ids
from gpu_runner.replay import Progress, Sent, objective_arguments
from policies.units import NS
from sim.metrics import Summary, summarise
from sim.objectives import Objectives
from sim.records import FINISHED, NO_PREEMPTIONS, NULL, REJECTED, UNFINISHED, Columns, RunLog
from sim.store import atomic_write
from sim.tables import request_table, step_table
from traces.schema import Trace

TOKENS = "tokens.parquet"

NOT_MEASURED = (
    "steps",
    "utilisation",
    "queue_mean",
    "queue_max",
    "batch_mean",
    "slowdown_mean",
    "slowdown_p99",
    "jain_fairness",
    "longest_wait_ms",
    "preemptions",
    "slo_exceptions",
    "aged_chunks",
)
"""Of a summary: what a client cannot see."""


@dataclass(frozen=True)
class ClientRun:
    """What a client saw, in the tables that a run has; times are nanoseconds since the replay began."""

    requests: Columns
    """As of any run, and ``sent_ns``: when the request really went out."""
    tokens: Columns
    """One row per output token, in order of request and time: ``request`` (index), ``position`` and ``time_ns``."""
    reasons: dict[int, str]
    """Why a request has no whole answer, by index."""

    @property
    def steps(self) -> Columns:
        """No rows: a client sees no steps."""
        return step_table(RunLog(0), predicts=False)

    @property
    def chunks(self) -> Columns:
        """No rows."""
        return {name: np.empty(0, dtype=np.int64) for name in ("step", "request", "tokens")}

    @property
    def preemptions(self) -> Columns:
        """No rows."""
        return NO_PREEMPTIONS

    def summary(self, objectives: Objectives) -> Summary:
        """Return the metrics that a client can measure, ``None`` for all others."""
        requests, events, pauses = _as_steps(self.requests, self.tokens)
        summary = summarise(requests, events, objectives, pauses)
        summary.update(dict.fromkeys(NOT_MEASURED))
        if (requests["cached_tokens"][requests["outcome"] == FINISHED] == NULL).any():
            summary["prefill_throughput"] = summary["hit_rate"] = None
        return summary

    def write_tokens(self, folder: Path, trace: Trace) -> None:
        """Write ``tokens.parquet`` into a run's folder.

        Raises:
            OSError: if it cannot be written.
        """
        ids = trace.ids[self.tokens["request"]].tolist()
        table = pa.table({**{name: pa.array(v) for name, v in self.tokens.items()}, "request": pa.array(ids)})

        def write(file: BinaryIO) -> None:
            pq.write_table(table, file, compression="zstd")

        atomic_write(folder / TOKENS, write)


def replay_live(
    trace: Trace,
    server: Server,
    vocab: int,
    *,
    clock: Clock | None = None,
    progress: Progress = lambda sent, finished: None,
) -> tuple[ClientRun, Sent]:
    """Send a trace's requests to a server, each at its time, however many are under way, and return what came back.

    An error that concerns one request is that request's outcome: rejected where no token came, otherwise unfinished. An
    interrupt ends the replay early; requests that were not sent by then are in no table.

    Args:
        trace: of :func:`gpu_runner.replay.paced`; arrivals are nanoseconds after the start.
        server: of :func:`gpu_runner.openai_client.find_server`.
        vocab: token ids of prompts are below this.
        clock: the machine's by default.
        progress: told when a request is sent and when one ends.

    Returns:
        The run, of the requests that were sent, and how late the client itself was.
    """
    clock = clock or Clock()
    messages = []
    for i in range(len(trace)):
        extra = objective_arguments(trace, i)
        body = completion(server.model, prompt_ids(trace, i, vocab), int(trace.output_tokens[i]), extra)
        messages.append(server.request(body))
    answers: list[Answer] = []
    sent = Sent()
    epoch = clock.now_ns()
    try:
        asyncio.run(_send_all(trace, messages, server, clock, epoch, answers, sent, progress))
    except KeyboardInterrupt as e:
        sent.stopped, sent.error = "interrupted", e
    for answer in answers:
        answer.settle()
    sent.count = len(answers)
    sent.late_ns = [
        a.sent_ns - epoch - int(t) for a, t in zip(answers, trace.arrival_ns, strict=False) if a.sent_ns >= 0
    ]
    return client_run(trace.limit(sent.count), answers, epoch), sent


async def _send_all(
    trace: Trace,
    messages: list[bytes],
    server: Server,
    clock: Clock,
    epoch: int,
    answers: list[Answer],
    sent: Sent,
    progress: Progress,
) -> None:
    async def one(message: bytes, answer: Answer) -> None:
        await server.complete(message, answer, clock.now_ns)
        sent.finished += 1
        progress(len(answers), sent.finished)

    async with asyncio.TaskGroup() as tasks:
        for arrival, message in zip((trace.arrival_ns + epoch).tolist(), messages, strict=True):
            while (left := arrival - clock.now_ns()) > 0:
                await asyncio.sleep(left / NS)
            answer = Answer()
            answers.append(answer)
            tasks.create_task(one(message, answer))
            progress(len(answers), sent.finished)


def client_run(trace: Trace, answers: list[Answer], epoch: int) -> ClientRun:
    """Make the tables of what came back.

    Args:
        trace: the requests that were sent.
        answers: one each.
        epoch: the start on the clock of the answers, from which the tables count.
    """
    n = len(trace)
    counts = np.array([len(a.token_ns) for a in answers], dtype=np.int64)
    times = np.array([t for a in answers for t in a.token_ns], dtype=np.int64) - epoch
    starts = np.cumsum(counts) - counts
    request = np.repeat(np.arange(n), counts)
    tokens: Columns = {"request": request, "position": np.arange(len(times)) - starts[request], "time_ns": times}

    outcome = np.array(
        [FINISHED if a.finished and a.token_ns else UNFINISHED if a.token_ns else REJECTED for a in answers],
        dtype=np.int64,
    )
    reasons = {i: a.problem or "no token came" for i, a in enumerate(answers) if outcome[i] != FINISHED}
    some = counts > 0
    first, last = np.full(n, NULL, dtype=np.int64), np.full(n, NULL, dtype=np.int64)
    first[some], last[some] = times[starts[some]], times[starts[some] + counts[some] - 1]
    finished = np.where(outcome == FINISHED, last, NULL)

    requests = request_table(trace, RunLog(n), step_table(RunLog(0), predicts=False))
    requests |= {
        "first_token_ns": first,
        "finished_ns": finished,
        "cached_tokens": np.array(
            [NULL if a.cached_tokens is None else a.cached_tokens for a in answers], dtype=np.int64
        ),
        "generated_tokens": counts,
        "chunks": np.full(n, NULL, dtype=np.int64),
        "preemptions": np.zeros(n, dtype=np.int64),
        "outcome": outcome,
        "ttft_ns": np.where(some, first - trace.arrival_ns, NULL),
        **_gaps(times, starts, counts),
        "jct_ns": np.where(finished >= 0, finished - trace.arrival_ns, NULL),
        "sent_ns": np.array([NULL if a.sent_ns < 0 else a.sent_ns - epoch for a in answers], dtype=np.int64),
    }
    return ClientRun(requests, tokens, reasons)


def _gaps(times: np.ndarray[Any, Any], starts: np.ndarray[Any, Any], counts: np.ndarray[Any, Any]) -> Columns:
    n = len(counts)
    mean, p99 = np.full(n, np.nan), np.full(n, np.nan)
    longest = np.full(n, NULL, dtype=np.int64)
    for i in np.flatnonzero(counts > 1).tolist():
        own = times[starts[i] : starts[i] + counts[i]]
        gaps = np.diff(own)
        mean[i] = (own[-1] - own[0]) / len(gaps)
        p99[i] = np.percentile(gaps, 99)
        longest[i] = gaps.max()
    return {"tpot_mean_ns": mean, "tpot_p99_ns": p99, "itl_max_ns": longest}


def _as_steps(requests: Columns, tokens: Columns) -> tuple[Columns, Columns, Columns]:
    """Return requests, and the moments at which tokens came as if they were steps, so that gaps are pooled as ever.

    A request pauses between any two of its tokens. Tokens that came at the same nanosecond are put one apart, which is
    far below what a client can tell.
    """
    order = np.lexsort((tokens["position"], tokens["request"], tokens["time_ns"]))
    count = np.arange(len(order))
    ends = np.maximum.accumulate(tokens["time_ns"][order] - count) + count if len(order) else tokens["time_ns"]
    step = np.empty(len(ends), dtype=np.int64)
    step[order] = count
    events = {name: np.zeros(len(ends), dtype=np.int64) for name in step_table(RunLog(0), predicts=False)}
    events["start_ns"][1:] = ends[:-1]
    events["duration_ns"] = ends - events["start_ns"]
    for name in ("predicted_ns", "kv_blocks"):
        events[name] = np.full(len(ends), NULL, dtype=np.int64)
    first = np.flatnonzero(tokens["position"] == 0)
    begun = requests["first_token_ns"].copy()
    begun[tokens["request"][first]] = ends[step[first]]
    later = np.flatnonzero(tokens["position"] > 0)
    pauses = {"step": step[later], "request": tokens["request"][later], "after": step[later - 1], "until": step[later]}
    return {**requests, "first_token_ns": begun}, events, pauses
