"""A run of the real engine, logged as the simulator logs one, so that the same tables come out."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from gpu_runner.identity import Batch
from policies.views import RequestView
from sim.records import FINISHED, NULL, REJECTED, UNFINISHED, RunLog, integers, pack_step
from sim.tables import LoggedRun
from traces.schema import Trace


@dataclass
class Step:
    """One step of the engine, from its decision to its end. Times in nanoseconds on the engine's clock."""

    number: int
    decided: int
    waiting: int
    granted: int
    exception: bool
    n_decode: int = 0
    decode_context: int = 0
    decode_context_max: int = 0
    n_prefill: int = 0
    prefill_tokens: int = 0
    prefill_pairs: int = 0
    predicted: int = 0
    slack: int | None = None
    """To the earliest deadline, from when the step was expected to begin."""
    kv_blocks: int = 0
    start: int = 0
    end: int = 0
    fallback: bool = False
    first_tokens: list[Any] = field(default_factory=list)
    """What is noted of the requests that get their first token from it, until it ends."""
    batch: tuple[Sequence[int], Sequence[int]] = ((), ())
    """Numbers of the requests and their tokens, in batch order; kept only where somebody records or watches."""

    @property
    def features(self) -> tuple[int, int, int, int, int, int]:
        """The arguments of ``CostModel.step_ns``."""
        return (
            self.n_decode,
            self.decode_context,
            self.decode_context_max,
            self.n_prefill,
            self.prefill_tokens,
            self.prefill_pairs,
        )


class Recorder:
    """Keeps a whole run. Requests are named by the number in which they came."""

    def __init__(self, deep: bool, predicts: bool) -> None:
        self.log = RunLog(0)
        self.steps: list[Step] = []
        self._deep = deep
        self._predicts = predicts
        self._views: list[RequestView] = []
        self._generated: dict[int, int] = {}

    def arrived(self, view: RequestView, step: int) -> None:
        """Enter a request that the decision of ``step`` is the first to see."""
        log = self.log
        self._views.append(view)
        log.n += 1
        log.outcome.append(UNFINISHED)
        log.first_token.append(NULL)
        log.finished.append(NULL)
        log.cached.append(0)
        log.visible.append(step)

    def rejected(self, number: int, reason: str) -> None:
        """Note that a request was not let in."""
        self.log.outcome[number] = REJECTED
        self.log.reasons[number] = reason

    def started(self, number: int, cached: int) -> None:
        """Note how much of a request was cached when it started."""
        if number not in self.log.interrupted:
            self.log.cached[number] = cached

    def chunk(self, step: int, number: int, tokens: int) -> None:
        """Note what a request prefills in a step."""
        for column, value in zip(("step", "request", "tokens"), (step, number, tokens), strict=True):
            self.log.chunks[column].append(value)

    def prefilled(self, number: int, step: int) -> None:
        """Note that a request ends its prefill in a step, which gives it a token."""
        log = self.log
        if log.first_token[number] < 0:
            log.first_token[number] = step
        if number in log.interrupted:
            log.resume(number, step)

    def preempted(self, number: int, step: int, decoding: bool) -> None:
        """Note that a request lost its blocks in a step."""
        self.log.preempt(number, step, decoding)

    def finished(self, number: int, step: int, generated: int) -> None:
        """Note that a request got its last token in a step."""
        self.log.finished[number] = step
        self.log.outcome[number] = FINISHED
        self._generated[number] = generated

    def gone(self, number: int, step: int, generated: int) -> None:
        """Note that a request ended early, as when its client goes away, with its last token in ``step``."""
        self.log.reasons[number] = "aborted by the client"
        if generated and step >= 0:
            self.log.stopped[number] = step

    def ended(self, step: Step) -> None:
        """Log a step; in order."""
        self.steps.append(step)

    def batches(self, *, origin_ns: int = 0) -> list[Batch]:
        """Return what vLLM really ran, step by step, on a clock that is 0 at ``origin_ns`` of the engine's."""
        lost: list[list[int]] = [[] for _ in range(len(self.steps) + 1)]
        for step, request, _, _ in self.log.preemptions:
            lost[step].append(request)
        return [
            Batch(
                step.decided - origin_ns,
                step.start - origin_ns,
                step.end - step.start,
                tuple(zip(*step.batch, strict=True)),
                tuple(sorted(victims)),
            )
            for step, victims in zip(self.steps, lost, strict=False)
        ]

    def run(self, trace: Trace, *, origin_ns: int = 0) -> tuple[Trace, LoggedRun]:
        """Return what ran and what happened, on a clock that is 0 at ``origin_ns`` of the engine's.

        Args:
            trace: what was asked for, in the order in which it was given to the engine. Requests that did not come are
                left out, and arrivals replaced by the engine's own.
            origin_ns: what to subtract from all times.
        """
        n = len(self._views)
        arrival = np.array([v.arrival_ns for v in self._views], dtype=np.int64) - origin_ns
        outputs = trace.output_tokens[:n].copy()
        for number, generated in self._generated.items():
            outputs[number] = generated
        came = replace(trace.select(np.arange(n)), arrival_ns=arrival, output_tokens=outputs)
        log = copy(self.log)
        log.steps = bytearray()
        for step in self.steps:
            log.steps += pack_step(
                step.start - origin_ns, *step.features, step.waiting, step.granted, step.exception, 1
            )
        log.durations = integers(step.end - step.start for step in self.steps)
        log.predicted = integers(step.predicted for step in self.steps)
        log.kv_blocks = integers(step.kv_blocks for step in self.steps)
        if self._deep:
            log.decided = integers(step.decided - origin_ns for step in self.steps)
        return came, LoggedRun(came, log, self._predicts)
