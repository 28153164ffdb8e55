"""Pipeline parallelism: the stages of a model in tandem."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from costmodels.base import CostModel


class Passage(NamedTuple):
    """One batch's way through the stages. Times in ns from its start."""

    duration: int
    """Until it leaves the last stage."""
    until_next: int
    """Until the first stage may take the next batch."""
    busy: int
    """Mean over the stages of the time they work on it."""


class Tandem:
    """Stages that each work on one batch at a time, in order; a batch waits where the next stage is not free.

    As in vLLM, no more batches are under way than there are stages. Unequal batches leave bubbles: a stage idles
    while it waits for a longer batch of the one before.
    """

    def __init__(self, stages: Sequence[CostModel]) -> None:
        self._stages = stages
        self._free = [0] * len(stages)
        self._ends: deque[int] = deque([0] * (len(stages) - 1), maxlen=max(len(stages) - 1, 1))

    def run(self, now: int, stall: int, *features: int) -> Passage:
        """Send a batch of these step features in at ``now``, when the first stage is free, to begin after ``stall``."""
        at, busy = now + stall, 0
        first_free = 0
        for k, stage in enumerate(self._stages):
            work = stage.step_ns(*features)
            at = max(at, self._free[k]) + work
            self._free[k] = at
            busy += work
            if k == 0:
                first_free = at
        oldest = self._ends[0]
        self._ends.append(at)
        until_next = max(first_free, oldest) - now
        return Passage(at - now, until_next, busy // len(self._stages))
