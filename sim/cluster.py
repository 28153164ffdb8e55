"""Several replicas behind a router, in one simulated time.

Every replica prefills and decodes; serving prefill and decode on separate replicas is out of scope.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import simpy
from simpy.events import URGENT

from costmodels.base import CostModel
from policies.base import Policy
from policies.views import RequestView
from sim.collecting import young_only
from sim.content import ContentTree
from sim.engine import Engine
from sim.inbox import Inbox
from sim.kvcache import NullCache
from sim.least import FAR
from sim.limits import Limits
from sim.memory import Memory
from sim.objectives import Objectives
from sim.records import NULL, Columns
from sim.routers import ClusterError, Replica, make_router
from sim.tables import LoggedRun
from sim.views import request_views
from traces.schema import IntArray, Trace


class _Arrival(simpy.Event):
    """A time that comes before all steps that end then, so that these see who arrives at their end."""

    def __init__(self, env: simpy.Environment, delay: int) -> None:
        super().__init__(env)
        self._ok = True
        self._value = None
        env.schedule(self, URGENT, delay)


class Cluster:
    """Replicas, each an engine with a policy and a cache of its own, and the router before them.

    A replica whose admission redirects a request gives it back to the router, which sends it to one that has not had
    it yet; where all have, it counts as redirected, as with a single engine.
    """

    def __init__(
        self,
        env: simpy.Environment,
        trace: Trace,
        policies: Sequence[Policy],
        cost: CostModel,
        *,
        router: str = "user",
        memory: Memory | None = None,
        predictor: CostModel | None = None,
        objectives: Objectives | None = None,
        limits: Limits | None = None,
        stretch: bool = True,
    ) -> None:
        if not policies:
            raise ClusterError("a cluster needs at least 1 replica")
        self._env, self._trace = env, trace
        self._router = make_router(router)
        self._views = request_views(trace, objectives or Objectives())
        self.assigned = np.zeros(len(trace), dtype=np.int64)
        """The replica that each request came to last."""
        self._had: dict[int, set[int]] = {}
        self._undecided = 0
        self._all_sent = False
        env.process(self._route())
        tree = None if memory is None else ContentTree(trace, memory.block_size)
        self.replicas: list[Replica] = []
        self.engines: list[Engine] = []
        for number, policy in enumerate(policies):
            cache = NullCache() if memory is None else memory.build(trace, tree)
            inbox = Inbox(env, self._sender(number), self._decided)
            self.replicas.append(Replica(number, inbox, cache, tree))
            self.engines.append(
                Engine(
                    env,
                    trace,
                    policy,
                    cost,
                    predictor=predictor,
                    objectives=objectives,
                    limits=limits,
                    cache=cache,
                    inbox=inbox,
                    stretch=stretch,
                )
            )

    def _route(self) -> Generator[simpy.Event, Any, None]:
        for view in self._views:
            if view.arrival_ns >= FAR:
                break
            if view.arrival_ns > self._env.now:
                yield _Arrival(self._env, int(view.arrival_ns - self._env.now))
            self._send(view, view.arrival_ns, self.replicas)
        self._all_sent = True
        self._close_if_done()

    def _send(self, view: RequestView, at: int, replicas: Sequence[Replica]) -> None:
        for replica in replicas:
            for gone in replica.inbox.settle(at):
                replica.depart(gone)
        chosen = self._router.choose(view, replicas)
        self.assigned[view.number] = chosen.number
        self._undecided += 1
        weight = view.prompt_tokens - chosen.hit_tokens(view)
        chosen.arrive(view.number)
        chosen.inbox.put(view, at, weight)

    def _sender(self, source: int) -> Any:
        def send_on(view: RequestView, at: int) -> bool:
            had = self._had.setdefault(view.number, set())
            had.add(source)
            rest = [r for r in self.replicas if r.number not in had]
            if rest:
                self.replicas[source].inbox.left(at, [view.number])
                self._send(view, at, rest)
            return bool(rest)

        return send_on

    def _decided(self) -> None:
        self._undecided -= 1
        self._close_if_done()

    def _close_if_done(self) -> None:
        if self._all_sent and not self._undecided:
            for replica in self.replicas:
                replica.inbox.close()

    def tables(self) -> ClusterRun:
        """Return the tables of a run that has ended."""
        return ClusterRun(tuple(engine.tables() for engine in self.engines), self.assigned)


@dataclass(frozen=True)
class ClusterRun:
    """The tables of all replicas in one; steps are numbered through, replica after replica.

    See :class:`sim.records.Tables`.
    """

    runs: tuple[LoggedRun, ...]
    assigned: IntArray
    """The replica of each request."""

    @cached_property
    def _first_steps(self) -> list[int]:
        counts = [len(run.steps["start_ns"]) for run in self.runs]
        return [0, *np.cumsum(counts).tolist()]

    @cached_property
    def steps(self) -> Columns:
        """One row per step."""
        numbered = [{**run.steps, "replica": run.steps["replica"] + r} for r, run in enumerate(self.runs)]
        return _stacked(numbered)

    @cached_property
    def requests(self) -> Columns:
        """One row per request."""
        columns: Columns = {}
        for name in self.runs[0].requests:
            choices = np.stack([run.requests[name] for run in self.runs])
            columns[name] = choices[self.assigned, np.arange(len(self.assigned))]
        first = np.array(self._first_steps)[self.assigned]
        columns["visible_step"] = np.where(columns["visible_step"] == NULL, NULL, columns["visible_step"] + first)
        columns["replica"] = self.assigned
        return columns

    @cached_property
    def chunks(self) -> Columns:
        """What was prefilled."""
        return _stacked([self._renumbered(r, run.chunks, ("step",)) for r, run in enumerate(self.runs)])

    @cached_property
    def preemptions(self) -> Columns:
        """One row per preemption."""
        at = ("step", "after", "until")
        return _stacked([self._renumbered(r, run.preemptions, at) for r, run in enumerate(self.runs)])

    @property
    def reasons(self) -> dict[int, str]:
        """Why a request was turned away, by index."""
        return {i: why for r, run in enumerate(self.runs) for i, why in run.reasons.items() if self.assigned[i] == r}

    def _renumbered(self, replica: int, table: Columns, names: Sequence[str]) -> Columns:
        first = self._first_steps[replica]
        moved = {name: np.where(table[name] == NULL, NULL, table[name] + first) for name in names}
        return {**table, **moved}


def _stacked(tables: Sequence[Columns]) -> Columns:
    return {name: np.concatenate([table[name] for table in tables]) for name in tables[0]}


def simulate_cluster(
    trace: Trace,
    policies: Sequence[Policy],
    cost: CostModel,
    *,
    router: str = "user",
    memory: Memory | None = None,
    predictor: CostModel | None = None,
    objectives: Objectives | None = None,
    limits: Limits | None = None,
    stretch: bool = True,
) -> ClusterRun:
    """Run ``trace`` on one replica per policy, behind a router.

    Args:
        trace: the requests.
        policies: one for each replica, every one an object of its own.
        cost: the true duration of each replica's steps.
        router: a name of :data:`sim.routers.ROUTERS`.
        memory: the KV memory of each replica; unlimited and without hits by default.
        predictor: the cost model that the policies believe; ``cost`` by default.
        objectives: give requests without objectives of their own theirs.
        limits: bounds of each replica.
        stretch: advance decode-only stretches in one go. The tables do not depend on it.

    Raises:
        ClusterError: if there is no such router, or no replica.
        PolicyError, CostModelError: see :func:`sim.engine.simulate`.
    """
    env = simpy.Environment()
    cluster = Cluster(
        env,
        trace,
        policies,
        cost,
        router=router,
        memory=memory,
        predictor=predictor,
        objectives=objectives,
        limits=limits,
        stretch=stretch,
    )
    with young_only():
        env.run()
    return cluster.tables()
