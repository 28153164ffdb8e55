"""An engine's steps from their decision to the end of their periods, and who is told of them then."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from gpu_runner.recorder import Recorder, Step
from gpu_runner.telemetry import Telemetry
from policies.views import StepRecord


class Periods:
    """The steps that are under way.

    A step's period lasts from its decision to the next one, or to its end where nothing is left to do; with two steps
    in flight, from the end of the step before it, or its own decision if that is later, to its own end. Times are
    nanoseconds of the engine's clock.

    Args:
        deep: whether a step is decided while the one before it runs.
        observers: the policy's parts that want to know of each step.
        failed: is given the error of an observer, which is not asked again.
        recorder: keeps the run.
        telemetry: tells of it.
    """

    def __init__(
        self,
        deep: bool,
        observers: Sequence[Any],
        failed: Callable[[Exception], None],
        recorder: Recorder | None,
        telemetry: Telemetry | None = None,
    ) -> None:
        self._deep = deep
        self._observers = observers
        self._failed = failed
        self._recorder = recorder
        self._telemetry = telemetry
        # None for those without work.
        self._flying: deque[Step | None] = deque()
        # One that has ended, but whose period lasts until the next decision.
        self._closing: Step | None = None
        self._last_end = 0
        self.ended = 0
        """How many steps have ended."""

    def expected_start(self, now: int) -> int:
        """Return when the step that is decided ``now`` is expected to begin."""
        flying = self._flying[-1] if self._flying else None
        if flying is None:
            return now
        return max(now, max(flying.decided, self._last_end) + flying.predicted)

    def depart(self, step: Step | None) -> None:
        """Take a step that is decided; ``None`` for one without work."""
        self._flying.append(step)

    def land(self, now: int) -> Step | None:
        """Let the step that departed first end, and return it."""
        step = self._flying.popleft()
        if step is None:
            return None
        step.end = now
        self.ended += 1
        for note in step.first_tokens:
            note.first_token_ns = now
        step.first_tokens.clear()
        if self._deep:
            step.start = max(step.decided, self._last_end)
            self._last_end = now
            self._tell(step)
        else:
            step.start = step.decided
            self._closing = step
        return step

    def close(self, now: int, *, busy: bool) -> None:
        """End the period of the last step, which lasts until ``now`` if the engine was ``busy`` all the time."""
        step, self._closing = self._closing, None
        if step is not None:
            if busy:
                step.end = now
            self._tell(step)

    def forget_observers(self) -> None:
        """Ask the policy no more."""
        self._observers = ()

    def _tell(self, step: Step) -> None:
        if self._recorder is not None:
            self._recorder.ended(step)
        if self._telemetry is not None:
            self._telemetry.ended(step)
        if self._observers:
            record = StepRecord(step.decided, step.start, step.end - step.start, *step.features)
            try:
                for part in self._observers:
                    part.observe(record)
            except Exception as e:
                self._failed(e)
