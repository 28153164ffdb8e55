"""What a running scheduler tells of its steps and requests, handed to whoever keeps it by a thread of its own.

The scheduler only appends to a queue; files are written and metrics counted while vLLM waits for the model.
"""

from __future__ import annotations

import atexit
import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import Protocol

from gpu_runner.known import Known
from gpu_runner.metrics_export import open_metrics
from gpu_runner.recorder import Step
from gpu_runner.segments import open_segments
from gpu_runner.settings import Settings

logger = logging.getLogger("vllm.prefillsim")

TICK_S = 0.5
"""How old what was told may be before it is handed on."""
BATCH = 1024
"""Steps or requests that are handed on at once, whatever their age."""
BACKLOG = 1 << 16
"""Most of them that may wait to be handed on: memory is bounded even where a disk hangs."""
PATIENCE_S = 30.0
"""How long an engine that shuts down waits for its disk."""


class Sink(Protocol):
    """Keeps what it is told. Anything that it raises ends it, and is said once."""

    name: str

    def take(self, steps: list[Step], requests: list[tuple[str, Known]]) -> None:
        """Take the steps that have ended and the requests that have left since the last call; perhaps none."""

    def fell_back(self, error: str) -> None:
        """Take the failure of the policy."""

    def close(self) -> None:
        """Keep all that there is; nothing comes any more."""


class Telemetry:
    """Hands what a scheduler tells to sinks, in order. None of its methods raises anything or waits for a disk.

    Args:
        sinks: called in a thread of their own.
        tick_s: seconds between two calls of a sink's ``take``.
        backlog: most steps, and most requests, that may wait for the sinks; beyond that telemetry ends.
    """

    def __init__(self, sinks: list[Sink], *, tick_s: float = TICK_S, backlog: int = BACKLOG) -> None:
        self._sinks = sinks
        self._tick_s = tick_s
        self._backlog = backlog
        # Queues, for appending to one and taking from it need no lock.
        self._steps: deque[Step] = deque()
        self._requests: deque[tuple[str, Known]] = deque()
        self._failures: deque[str] = deque()
        self._closing = self._ended = False
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._run, name="prefillsim-telemetry", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    def ended(self, step: Step) -> None:
        """Take a step that has ended; in order."""
        self._steps.append(step)
        if not len(self._steps) % BATCH:
            self._urge(self._steps)

    def left(self, request_id: str, note: Known) -> None:
        """Take a request that has finished, was broken off or was not let in."""
        self._requests.append((request_id, note))
        if not len(self._requests) % BATCH:
            self._urge(self._requests)

    def fell_back(self, error: Exception) -> None:
        """Take the failure of the policy; all that was told before is kept at once."""
        self._failures.append(f"{type(error).__name__}: {error}")
        self._wake.set()

    def close(self) -> None:
        """Keep what is left, and end; to close twice is to close."""
        if not self._closing:
            self._closing = True
            atexit.unregister(self.close)
            self._wake.set()
            self._thread.join(PATIENCE_S)

    def _urge(self, queue: deque[Step] | deque[tuple[str, Known]]) -> None:
        if not self._ended and len(queue) >= self._backlog:
            self._ended = True
            logger.error("telemetry has ended, and the server goes on: its disk is %d rows behind", len(queue))
        if self._ended:
            queue.clear()
        self._wake.set()

    def _run(self) -> None:
        while self._sinks and not self._ended:
            self._wake.wait(self._tick_s)
            self._wake.clear()
            closing = self._closing
            self._hand_on()
            if closing:
                for sink in list(self._sinks):
                    self._try(sink, sink.close)
                break
        self._ended = True

    def _hand_on(self) -> None:
        requests = [self._requests.popleft() for _ in range(len(self._requests))]
        steps = [self._steps.popleft() for _ in range(len(self._steps))]
        failures = [self._failures.popleft() for _ in range(len(self._failures))]

        def give(sink: Sink) -> None:
            sink.take(steps, requests)
            for failure in failures:
                sink.fell_back(failure)

        for sink in list(self._sinks):
            self._try(sink, lambda sink=sink: give(sink))  # type: ignore[misc]

    def _try(self, sink: Sink, act: Callable[[], None]) -> None:
        try:
            act()
        except Exception as e:
            self._sinks.remove(sink)
            logger.error("telemetry has ended, and the server goes on: %s: %s", sink.name, e)


def open_telemetry(settings: Settings, *, metrics: bool = True) -> Telemetry | None:
    """Return what the settings ask for, ``None`` where that is nothing or cannot be had.

    Args:
        settings: the scheduler's.
        metrics: whether vLLM exports metrics of its own.
    """
    sinks: list[Sink] = []
    if settings.telemetry is not None:
        try:
            sinks.append(open_segments(settings))
        except OSError as e:
            logger.error("there is no telemetry, and the server goes on: %s: %s", settings.telemetry, e)
    if settings.prometheus and metrics:
        exported = open_metrics(settings)
        if exported is not None:
            sinks.append(exported)
    return Telemetry(sinks) if sinks else None
