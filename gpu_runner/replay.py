"""Replays a trace in real time through the real engine, open loop: requests arrive when the trace says so."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from gpu_runner.prompts import prompt_array
from gpu_runner.settings import KEY
from policies.units import MS
from sim.records import NULL, REJECTED, LoggedRun
from sim.stats import percentiles
from traces.schema import IntArray, Trace

SPIN_NS = 200_000
"""The last stretch of a pause is spent looking at the clock, for sleeping overshoots by about 0.1 ms."""

LATE_NS = 10 * MS
"""Requests handed in later than this after their arrival, without a step to wait for, are worth a warning."""

Progress = Callable[[int, int], object]
"""Told how many requests have been sent and how many have finished."""


class Host(Protocol):
    """The part of :class:`gpu_runner.engine.Engine` that a replay needs."""

    @property
    def busy(self) -> bool:
        """Whether any request has not finished."""

    @property
    def vocab(self) -> int:
        """Tokens of the model's vocabulary."""

    @property
    def max_model_len(self) -> int:
        """Most tokens of a request, prompt and outputs."""

    @property
    def scheduler(self) -> Any:
        """The scheduler, whose ``recorder`` keeps what happens."""

    def add(
        self,
        request_id: str,
        ids: Sequence[int],
        max_tokens: int,
        arrival_ns: int | None = None,
        extra_args: Mapping[str, Any] | None = None,
    ) -> None:
        """Hand in a request."""

    def step(self) -> list[str]:
        """Run one step, and return the ids of the requests that finished in it."""


class Clock(Protocol):
    """A clock in nanoseconds since the epoch of ``time.time_ns``."""

    def now_ns(self) -> int:
        """Return the time."""

    def sleep_until(self, time_ns: int) -> None:
        """Return at a time, or at once if it is past."""


class RealClock:
    """The machine's clock: the time of day when it is made, and monotonic from then on."""

    def __init__(self) -> None:
        self._offset = time.time_ns() - time.monotonic_ns()

    def now_ns(self) -> int:
        """Return the time."""
        return time.monotonic_ns() + self._offset

    def sleep_until(self, time_ns: int) -> None:
        """Return at a time, or at once if it is past."""
        while (left := time_ns - self.now_ns()) > 0:
            if left > SPIN_NS:
                time.sleep((left - SPIN_NS) / 1e9)


@dataclass
class Sent:
    """What became of the requests on their way into the engine."""

    count: int = 0
    """How many were due, and so were handed in or refused, in trace order."""
    finished: int = 0
    late_ns: list[int] = field(default_factory=list)
    """By how much each was handed in after its arrival: it waits for the step that runs then."""
    refused: dict[int, str] = field(default_factory=dict)
    """Why requests never reached the engine, by index."""
    stopped: str | None = None
    """Why the replay ended early."""
    error: BaseException | None = None

    def facts(self) -> dict[str, Any]:
        """Return what ``run.json`` says; times in milliseconds."""
        late = percentiles(np.array(self.late_ns), [50, 99, 100]) if self.late_ns else (None, None, None)
        named = zip(("late_p50_ms", "late_p99_ms", "late_max_ms"), late, strict=True)
        return {
            "sent": self.count,
            "refused": len(self.refused),
            "stopped": self.stopped,
            **{name: None if value is None else round(value / MS, 4) for name, value in named},
        }


def paced(trace: Trace, speed: float = 1.0, saturate: bool = False) -> Trace:
    """Return the trace as it is to be replayed, whose arrivals are real time.

    Args:
        trace: as it was recorded or made.
        speed: how many times as fast.
        saturate: everything arrives at once, at the start.

    Raises:
        TraceError: if the speed is not a positive number.
    """
    if saturate:
        return trace.with_arrivals(lambda n: np.zeros(n, dtype=np.int64))
    return trace if speed == 1 else trace.scale_rate(speed)


def prompts_of(trace: Trace, vocab: int) -> list[IntArray]:
    """Return every prompt's token ids, made before the clock starts."""
    return [prompt_array(trace, i, vocab) for i in range(len(trace))]  # type: ignore[misc]


def objective_arguments(trace: Trace, index: int) -> dict[str, str | float]:
    """Return what a request tells the scheduler of itself, in the terms of :class:`gpu_runner.settings.Wishes`."""
    arguments: dict[str, str | float] = {}
    for name, column in (("ttft_ms", trace.slo_ttft_ns), ("tpot_ms", trace.slo_tpot_ns)):
        if column is not None and column[index] != NULL:
            arguments[f"{KEY}_{name}"] = int(column[index]) / MS
    for name, labels in (("tenant", trace.tenant), ("session", trace.session)):
        if labels is not None and labels[index] is not None:
            arguments[f"{KEY}_{name}"] = str(labels[index])
    return arguments


def replay(
    trace: Trace, host: Host, *, clock: Clock | None = None, progress: Progress = lambda sent, finished: None
) -> tuple[LoggedRun, Sent]:
    """Replay a trace through an engine whose scheduler has a recorder, and return what happened.

    A request is handed in before the first step that starts after its arrival, and its time in the queue counts from
    the arrival. Those that can never run are turned away as the simulator does. An interrupt and an error of the engine
    end the replay early: what was sent by then is in the tables, unfinished where it had not finished.

    Args:
        trace: of :func:`paced`; arrivals are nanoseconds after the start.
        host: warmed up and idle.
        clock: the machine's by default.
        progress: told before each step.

    Returns:
        The run, of the requests that were sent, and how they got in.
    """
    clock = clock or RealClock()
    prompts = prompts_of(trace, host.vocab)
    sent = Sent()
    recorder = host.scheduler.recorder
    epoch = clock.now_ns()
    recorder.begin(epoch)
    try:
        _drive(trace, prompts, host, clock, epoch, sent, progress)
    except KeyboardInterrupt as e:
        sent.stopped, sent.error = "interrupted", e
    except Exception as e:  # whatever it is, what was measured before must not be lost
        sent.stopped, sent.error = f"the engine failed: {type(e).__name__}: {e}", e
    run: LoggedRun = recorder.run(trace.limit(sent.count))
    for index, reason in sent.refused.items():
        run.log.outcome[index] = REJECTED
        run.log.reasons[index] = reason
    return run, sent


def _drive(
    trace: Trace, prompts: list[IntArray], host: Host, clock: Clock, epoch: int, sent: Sent, progress: Progress
) -> None:
    arrivals = (trace.arrival_ns + epoch).tolist()
    outputs = trace.output_tokens.tolist()
    while sent.count < len(arrivals) or host.busy:
        while sent.count < len(arrivals) and arrivals[sent.count] <= (now := clock.now_ns()):
            index, arrival = sent.count, arrivals[sent.count]
            sent.count += 1
            sent.late_ns.append(now - arrival)
            total = len(prompts[index]) + outputs[index]
            if total > host.max_model_len:
                sent.refused[index] = (
                    f"{len(prompts[index])} prompt and {outputs[index]} output tokens exceed max_model_len "
                    f"{host.max_model_len}"
                )
                continue
            arguments = {"arrival_ns": arrival, **objective_arguments(trace, index)}
            try:
                host.add(str(index), prompts[index].tolist(), outputs[index], arrival, arguments)
            except ValueError as e:
                sent.refused[index] = str(e).splitlines()[0]
        if host.busy:
            sent.finished += len(host.step())
        elif sent.count < len(arrivals):
            clock.sleep_until(arrivals[sent.count])
        progress(sent.count, sent.finished)
