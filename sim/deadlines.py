"""Token deadlines that add up: the next token's, over all requests that decode, without looking at each."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping

from policies.views import RequestView
from sim.least import FAR, LeastActive


class AddedUp:
    """The least of "start + outputs so far x time allowed per token" over decoding requests.

    A request's start is the end of the step of its first token, or of its TTFT objective if that is later. Its outputs
    grow by one with each step, so for one allowance "start - allowance x step without outputs" orders requests for
    as long as they decode; few allowances differ. Where the first token is in flight its time is taken to be when the
    next step is expected to begin.

    ``outputs[i]`` are the output tokens of request ``i``.
    """

    def __init__(self, outputs: list[int]) -> None:
        self._outputs = outputs
        self._starts = [-1] * len(outputs)
        # First tokens in flight: when they are there, whose they are, and the end of the TTFT objective.
        self._coming: deque[tuple[int, int, int]] = deque()
        # Of those: the allowance, and the step in which they finish.
        self._unknown: dict[int, tuple[int, int]] = {}
        self._least: dict[int, LeastActive] = {}

    def join(self, view: RequestView, allowed: int | None, last: int, end: int) -> None:
        """Enter a request that gets a token at ``end`` and decodes up to and including the step ``last``."""
        i = view.number
        if self._starts[i] < 0 and not any(i == j for _, j, _ in self._coming):
            self._coming.append((end, i, view.arrival_ns + (view.slo_ttft_ns or 0)))
        if allowed is not None:
            self._enter(i, allowed, last)

    def _enter(self, i: int, allowed: int, last: int) -> None:
        start = self._starts[i]
        if start < 0:
            self._unknown[i] = (allowed, last)
        else:
            before = last + 1 - self._outputs[i]
            self._least.setdefault(allowed, LeastActive()).add(start - allowed * before, last)

    def least(self, step: int, now: int, seen: int) -> int:
        """Return when the next token is due, before ``step`` is decided; ``FAR`` where nobody has a deadline.

        ``seen`` is when that step is expected to begin.
        """
        while self._coming and self._coming[0][0] <= now:
            end, i, objective = self._coming.popleft()
            self._starts[i] = max(end, objective)
            if i in self._unknown:
                self._enter(i, *self._unknown.pop(i))
        due = FAR
        for allowed, active in self._least.items():
            value = active.value if active.until >= step else active.least(step)
            if value != FAR:
                due = min(due, value + allowed * step)
        for _, i, objective in self._coming:
            allowed, last = self._unknown.get(i, (0, -1))
            if last >= step:
                due = min(due, max(seen, objective) + allowed * (step - (last + 1 - self._outputs[i])))
        return due

    def drop(
        self,
        decoding: Iterable[tuple[int, int]],
        running: Mapping[int, RequestView],
        deadline_of: Callable[[RequestView], int | None],
    ) -> None:
        """Keep only ``decoding``, pairs of the step in which a request finishes and its number."""
        self._least.clear()
        self._unknown.clear()
        for last, i in decoding:
            allowed = deadline_of(running[i])
            if allowed is not None:
                self._enter(i, allowed, last)
