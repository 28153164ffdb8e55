"""SLOWeave with a guard: the margin follows what steps really take, and steps only decode while it is exceeded."""

from __future__ import annotations

from collections import deque
from typing import Annotated, NamedTuple

from annotated_types import Ge

from costmodels.base import CostModel
from costmodels.margin import with_margin
from policies.base import Observer
from policies.chunking.deadline_fill import DeadlineFill
from policies.registry import register
from policies.views import BatchView, Grant, StepRecord

PPM = 10**6

KEPT = 1 << 16
"""Most rows of telemetry; a host that runs for days keeps the last."""


class Telemetry(NamedTuple):
    """What the guard saw of one step; times in ns (SLOWeave, Figure 1 and Table 1)."""

    decided_ns: int
    predicted_ns: int
    """By the cost model, with the margin that the policy was given."""
    observed_ns: int
    slack_ns: int
    """What the margin in force left: negative where the step exceeded it."""
    share_ppm: int
    """By how much the guard had widened predictions when the step was decided, in millionths."""
    fallback: bool
    """The step was decided while the guard allowed no prefill beside decodes."""


@register
class Guarded(Observer, DeadlineFill):
    """Deadline filling whose margin is the largest under-prediction of the last steps."""

    name = "guarded"
    source = "SLOWeave §5.1, Figure 1 and Table 1 (telemetry, fallback); the window is this project's"

    window: Annotated[int, Ge(1)] = 1000
    """Steps with decodes that the margin looks back on: one that is like them exceeds it once in window + 1 steps."""

    def reset(self, predictor: CostModel | None) -> None:
        super().reset(predictor)
        assert predictor is not None
        self._step_ns = with_margin(predictor, self.margin).step_ns
        self._seen = 0
        # Residuals that no later one exceeds, falling, with the number of their step: the first is the maximum.
        self._worst: deque[tuple[int, int]] = deque()
        self._share_ppm = 0
        self._fallback = False
        self.telemetry: deque[Telemetry] = deque(maxlen=KEPT)
        """Rows of the last steps with decodes, in order."""

    def observe(self, step: StepRecord) -> None:
        if not step.n_decode:
            return
        predicted = self._step_ns(*step[3:])
        observed = step.duration_ns
        share = self._share_ppm
        allowed = predicted - (-predicted * share // PPM)
        self.telemetry.append(
            Telemetry(step.decided_ns, predicted, observed, allowed - observed, share, self._fallback)
        )
        residual = max(0, -((predicted - observed) * PPM // predicted))
        worst, self._seen = self._worst, self._seen + 1
        while worst and worst[-1][1] <= residual:
            worst.pop()
        worst.append((self._seen, residual))
        if worst[0][0] <= self._seen - self.window:
            worst.popleft()
        self._share_ppm = worst[0][1]
        self._fallback = observed > allowed

    def grant(self, batch: BatchView) -> Grant:
        if not batch.n_decode or batch.earliest_deadline_ns is None:
            return super().grant(batch)
        aged = batch.now_ns - batch.candidates[0].request.arrival_ns > self._age_ns
        if self._fallback and not aged:
            return Grant(0)
        if not self._share_ppm:
            return super().grant(batch)
        # t + ceil(s t) <= b and t <= b / (1 + s) are the same for integers t and b.
        left = (batch.earliest_deadline_ns - batch.now_ns) * PPM // (PPM + self._share_ppm)
        return super().grant(batch._replace(earliest_deadline_ns=batch.now_ns + left))
