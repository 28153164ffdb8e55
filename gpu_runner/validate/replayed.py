"""Level 2: the engine's clocks and durations fed to the simulator, whose batches must then be the engine's.

What is left to differ is what was decided: scheduling errors, told apart from errors in predicted times.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import simpy

from costmodels.base import CostModel
from costmodels.linear import LinearCost
from policies.base import Policy
from policies.views import RequestView
from sim.engine import Engine
from sim.inbox import Inbox
from sim.kvcache import KVCache
from sim.limits import Limits
from sim.objectives import Objectives
from sim.tables import LoggedRun
from sim.views import request_views
from traces.schema import IntArray, Trace


class _RecordedCost(CostModel):
    """Charges what each step took, in order; a nanosecond once there are no more."""

    def __init__(self, durations: Sequence[int]) -> None:
        self.name = "recorded"
        self._durations = iter(durations)

    def step_ns(
        self,
        n_decode: int,
        decode_context: int,
        decode_context_max: int,
        n_prefill: int,
        prefill_tokens: int,
        prefill_pairs: int,
    ) -> int:
        return next(self._durations, 1)

    def to_dict(self) -> dict[str, Any]:
        raise NotImplementedError("recorded steps are no model")


def simulate_recorded(
    trace: Trace,
    policy: Policy,
    *,
    decided_ns: IntArray,
    duration_ns: IntArray,
    visible_step: IntArray,
    predictor: CostModel | None,
    objectives: Objectives | None = None,
    limits: Limits | None = None,
    cache: KVCache | None = None,
) -> LoggedRun:
    """Simulate a run whose times are given: steps take what they took, and requests are seen when they were.

    Args:
        trace: what arrived, with the arrivals that the engine's policy saw.
        policy: a fresh one, as the engine's.
        decided_ns: when the engine decided each step, on the trace's clock; with one step in flight at a time.
        duration_ns: how long each step's period was.
        visible_step: the first step that saw each request, -1 for those that none did; they never come.
        predictor: what the policy believes.
        objectives: of requests that bring none.
        limits: as the engine's.
        cache: as the engine's, fresh.
    """
    # A host without a cost model predicts nothing; what the simulator logs in its place is not compared.
    predictor = predictor or LinearCost()
    env = simpy.Environment()
    inbox = Inbox(env, lambda view, at: False, lambda: None)
    for view, due in _due(trace, objectives or Objectives(), decided_ns, visible_step):
        inbox.put(view, due, 0)
    inbox.close()
    engine = Engine(
        env,
        trace,
        policy,
        _RecordedCost(duration_ns.tolist()),
        predictor=predictor,
        objectives=objectives,
        limits=limits,
        cache=cache,
        inbox=inbox,
        stretch=False,
    )
    env.run()
    return engine.tables()


def _due(
    trace: Trace, objectives: Objectives, decided_ns: IntArray, visible_step: IntArray
) -> Iterator[tuple[RequestView, int]]:
    for view, step in zip(request_views(trace, objectives), visible_step.tolist(), strict=False):
        if step >= 0:
            yield view, int(decided_ns[step])
