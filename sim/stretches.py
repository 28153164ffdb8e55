"""Stretches of steps that only decode, in which nothing can be decided: advanced in one go."""

from __future__ import annotations

import numpy as np

from costmodels.base import CostModel
from policies.queue import PolicyQueue
from sim.decoding import Decoding
from sim.paging import Paging
from sim.records import RunLog, pack_step

STRETCH_MIN = 12
"""Shorter stretches are cheaper step by step than as arrays."""


class Stretches:
    """Logs a stretch of an engine's steps at once, with exactly the result of going step by step.

    The engine's own parts are given: what it logs to, what its steps take and are believed to take, who decodes and
    who waits. ``paging`` counts its blocks, if it counts any; ``ahead`` tells that a step is decided while the one
    before it runs.
    """

    def __init__(
        self,
        log: RunLog,
        cost: CostModel,
        predictor: CostModel,
        decoding: Decoding,
        queue: PolicyQueue,
        paging: Paging | None,
        ahead: bool,
    ) -> None:
        self._log, self._cost, self._predictor = log, cost, predictor
        self._decoding, self._queue, self._paging, self._ahead = decoding, queue, paging, ahead

    def advance(
        self, now: int, begin: int, step: int, n: int, context: int, height: int, until: int
    ) -> tuple[int, int, int]:
        """Advance steps, the first decided ``now``, to the next finish or the first decision at ``until``.

        Args:
            now: nanoseconds, as ``begin`` and ``until``.
            begin: when the first step starts, which is later than ``now`` where another is in flight.
            step: the number of the first.
            n: requests that decode in all of them.
            context: the sum of their contexts in the first.
            height: the largest of these.
            until: the next event.

        Returns:
            The time from ``begin`` to the end of the last step; what the last takes of it; and the number of steps.
            All 0 where too few fit to be worth it.
        """
        log, cost, paging = self._log, self._cost, self._paging
        first = cost.step_ns(n, context, height, 0, 0, 0)
        if first < 1 or until - begin < STRETCH_MIN * first:
            return 0, 0, 0
        # Steps do not get shorter as contexts grow, so no more than this fit before the next event; a step decided
        # while another is in flight is decided when that one starts, so one more is decided before the event.
        finish = self._decoding.finishes[0] // self._decoding.size
        most = min(finish - step + 1, -((begin - until) // first) + self._ahead)
        if paging is not None:
            most, _ = paging.steps_that_fit(step, most)
            if most < STRETCH_MIN:
                return 0, 0, 0
        run = np.asarray(cost.decode_run_ns(n, context, height, most), dtype=np.int64)
        ends = np.cumsum(run)
        taken = min(most, int(np.searchsorted(ends, until - begin, side="left")) + 1 + self._ahead)
        if self._ahead:
            log.decided.append(now)
        log.steps += pack_step(begin, n, context, height, 0, 0, 0, self._queue.size, 0, 0, taken)
        log.durations.frombytes(run[:taken].tobytes())
        if paging is not None:
            log.kv_blocks.extend(paging.take_run(step, taken))
        if self._predictor is not cost:
            believed = np.asarray(self._predictor.decode_run_ns(n, context, height, taken), dtype=np.int64)
            log.predicted.frombytes(believed.tobytes())
        return int(ends[taken - 1]), int(run[taken - 1]), taken
