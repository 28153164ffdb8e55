"""Replays a trace in real time through the real engine, open loop: requests arrive when the trace says so."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, fields, replace
from typing import Any, Protocol

import numpy as np

from gpu_runner.clock import Clock
from gpu_runner.prompts import prompt_array
from gpu_runner.settings import KEY
from policies.units import MS, NS
from sim.records import NULL, REJECTED, RunLog, integers
from sim.stats import percentiles
from sim.tables import LoggedRun
from traces.schema import IntArray, Trace

PER_REQUEST = ("outcome", "first_token", "finished", "cached", "visible")
"""Lists of a run's log with a place for each request."""

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
        """A recording scheduler, idle."""

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
) -> tuple[Trace, LoggedRun, Sent]:
    """Replay a trace through an engine with a recording :class:`gpu_runner.scheduler.PolicyScheduler`.

    A request is handed in before the first step that starts after its arrival, and its time in the queue counts from
    the arrival. Those that can never run are turned away as the simulator does. An interrupt and an error of the engine
    end the replay early: what was sent by then is in the tables, unfinished where it had not finished.

    Args:
        trace: of :func:`paced`; arrivals are nanoseconds after the start.
        host: warmed up and idle.
        clock: the scheduler's by default.
        progress: told after each step.

    Returns:
        The requests that were sent, with their arrivals as the engine knows them; the run; and how they got in.
    """
    scheduler = host.scheduler
    clock = clock or Clock(scheduler.clock)
    prompts = [prompt_array(trace, i, host.vocab) for i in range(len(trace))]
    sent = Sent()
    scheduler.begin()
    # vLLM keeps arrivals as floats, which whole seconds survive: nobody arrives before the start.
    epoch = (clock.now_ns() // NS + 1) * NS
    known = [known_arrival(epoch + t) - epoch for t in trace.arrival_ns.tolist()]
    trace = trace.with_arrivals(lambda n: np.array(known, dtype=np.int64))
    try:
        _drive(trace, prompts, host, clock, epoch, sent, progress)
    except KeyboardInterrupt as e:
        sent.stopped, sent.error = "interrupted", e
    except Exception as e:  # whatever it is, what was measured before must not be lost
        sent.stopped, sent.error = f"the engine failed: {type(e).__name__}: {e}", e
    asked = trace.limit(sent.count)
    rows = np.array([i for i in range(sent.count) if i not in sent.refused], dtype=np.int64)
    came, run = scheduler.finish_recording().run(asked.select(rows), origin_ns=epoch)
    if len(came) == len(asked):
        return came, run, sent
    return *_spread(asked, rows[: len(came)], came, run, sent.refused), sent


def known_arrival(time_ns: int) -> int:
    """Return the nearest time that survives the way through floats of seconds, 0.13 µs away at most."""
    return round(time_ns / NS * 1e9)


def _spread(
    asked: Trace, rows: IntArray, came: Trace, run: LoggedRun, refused: Mapping[int, str]
) -> tuple[Trace, LoggedRun]:
    """Return a run of all that were sent, given that of those ``rows`` that a step has seen."""
    at = rows.tolist()
    outputs = asked.output_tokens.copy()
    outputs[rows] = came.output_tokens
    trace = replace(asked, output_tokens=outputs)
    old, log = run.log, RunLog(len(trace))
    for f in fields(RunLog):
        if f.name not in ("n", *PER_REQUEST):
            setattr(log, f.name, copy(getattr(old, f.name)))
    for name in PER_REQUEST:
        values = getattr(old, name)
        if name == "visible":
            log.visible = [NULL] * len(trace) if values else []
        for i, value in zip(at, values, strict=False):
            getattr(log, name)[i] = value
    log.chunks = {**old.chunks, "request": integers(at[i] for i in old.chunks["request"])}
    log.preemptions = [[step, at[i], after, until] for step, i, after, until in old.preemptions]
    for name in ("reasons", "stopped", "interrupted"):
        setattr(log, name, {at[i]: value for i, value in getattr(old, name).items()})
    for i, reason in refused.items():
        log.outcome[i] = REJECTED
        log.reasons[i] = reason
    return trace, LoggedRun(trace, log, run.predicts)


def _drive(
    trace: Trace, prompts: list[Any], host: Host, clock: Clock, epoch: int, sent: Sent, progress: Progress
) -> None:
    arrivals = (trace.arrival_ns + epoch).tolist()
    outputs = trace.output_tokens.tolist()
    while sent.count < len(arrivals) or host.busy:
        while sent.count < len(arrivals) and arrivals[sent.count] <= (now := clock.now_ns()):
            index = sent.count
            sent.count += 1
            sent.late_ns.append(now - arrivals[index])
            if reason := _refusal(len(prompts[index]), outputs[index], host.max_model_len):
                sent.refused[index] = reason
                continue
            arguments = objective_arguments(trace, index)
            try:
                host.add(str(index), prompts[index].tolist(), outputs[index], arrivals[index], arguments)
            except ValueError as e:
                sent.refused[index] = str(e).partition("\n")[0]
        if host.busy:
            sent.finished += len(host.step())
        elif sent.count < len(arrivals):
            clock.sleep_until(arrivals[sent.count])
        progress(sent.count, sent.finished)


def _refusal(prompt: int, outputs: int, longest: int) -> str | None:
    if prompt + outputs <= longest:
        return None
    return f"{prompt} prompt and {outputs} output tokens exceed max_model_len {longest}"
