"""An engine that serves one request at a time on a clock of its own, with the methods that a replay uses."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from costmodels.base import CostModel
from gpu_runner.clock import Clock
from gpu_runner.recorder import Recorder, Step
from policies.views import RequestView

START_NS = 1_800_000_000 * 10**9 + 123_456_789


class VirtualClock(Clock):
    """Time passes only where somebody sleeps or works."""

    def __init__(self) -> None:
        self.time_ns = START_NS
        super().__init__(lambda: self.time_ns)

    def sleep_until(self, time_ns: int) -> None:
        assert time_ns > self.time_ns, "nobody sleeps while a request is due"
        self.time_ns = time_ns


class FakeEngine:
    """First come, first served, whole prompts; it is its own scheduler."""

    vocab = 1024

    def __init__(
        self, cost: CostModel, max_model_len: int = 10**6, before: Callable[[int], object] = lambda step: None
    ) -> None:
        self.cost, self.max_model_len, self.before = cost, max_model_len, before
        self.virtual = VirtualClock()
        self.clock = self.virtual.now_ns
        self.added: list[tuple[str, list[int], int, int, dict[str, Any]]] = []
        self.begin()

    @property
    def scheduler(self) -> FakeEngine:
        return self

    @property
    def busy(self) -> bool:
        return bool(self.queue)

    def begin(self) -> None:
        self.recorder = Recorder(False, True)
        self.queue: list[tuple[RequestView, int]] = []
        self.unseen: list[RequestView] = []
        self.tokens = self.steps = 0

    def finish_recording(self) -> Recorder:
        return self.recorder

    def add(
        self,
        request_id: str,
        ids: Sequence[int],
        max_tokens: int,
        arrival_ns: int | None = None,
        extra_args: Mapping[str, Any] | None = None,
    ) -> None:
        assert arrival_ns is not None
        assert arrival_ns <= self.virtual.time_ns, "handed in before it arrived"
        if max_tokens == 13:
            raise ValueError("13 tokens\nare unlucky")
        view = RequestView(len(self.added), round(arrival_ns / 1e9 * 1e9), len(ids))
        self.added.append((request_id, list(ids), max_tokens, arrival_ns, dict(extra_args or {})))
        self.queue.append((view, max_tokens))
        self.unseen.append(view)

    def step(self) -> list[str]:
        assert self.busy, "a step without work"
        self.before(self.steps)
        for view in self.unseen:
            self.recorder.arrived(view, self.steps)
        self.unseen.clear()
        (view, outputs), now = self.queue[0], self.virtual.time_ns
        step = Step(self.steps, now, len(self.queue) - (self.tokens > 0), 0, False)
        if self.tokens == 0:
            n = view.prompt_tokens
            step.granted, step.n_prefill, step.prefill_tokens, step.prefill_pairs = n, 1, n, n * (n + 1) // 2
            self.recorder.started(view.number, 0)
            self.recorder.chunk(self.steps, view.number, n)
            self.recorder.prefilled(view.number, self.steps)
        else:
            step.n_decode, step.decode_context = 1, view.prompt_tokens + self.tokens - 1
            step.decode_context_max = step.decode_context
        step.predicted = self.cost.step_ns(*step.features)
        step.start, step.end = now, now + step.predicted
        self.virtual.time_ns = step.end
        self.recorder.ended(step)
        self.tokens += 1
        self.steps += 1
        if self.tokens < outputs:
            return []
        self.recorder.finished(view.number, self.steps - 1, outputs)
        self.queue.pop(0)
        self.tokens = 0
        return [self.added[view.number][0]]
