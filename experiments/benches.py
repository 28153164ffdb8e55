"""One policy on both hosts: replays on an engine of this machine, and what the simulator makes of them."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np

from costmodels.base import CostModel
from costmodels.scaled import ScaledCost
from experiments.cells import Cell
from experiments.hybrids import kept_tokens
from experiments.replays import real_memory
from gpu_runner.engine import EngineError
from gpu_runner.replay import replay
from gpu_runner.validate.ends import Sample, sample_of
from gpu_runner.validate.schedule import Schedule, compare_schedules
from gpu_runner.validate.step_times import predicted_ns
from gpu_runner.validate.stored import STEP_FEATURES
from sim.engine import simulate
from sim.limits import Limits
from sim.memory import Memory
from sim.records import FINISHED, Tables
from sim.tables import LoggedRun
from traces.schema import Segments, Trace


def prefilling(longest: int) -> Trace:
    """Return requests whose steps tell how fast a machine is that only prefills.

    Three beginnings of half the longest prompt, each with four ends of a sixteenth: where prefixes are stored, three
    whole prompts and nine ends.
    """
    own = max(longest // 16, 1)
    content = np.stack([np.repeat(np.arange(3), 4), 3 + np.arange(12)], axis=1).reshape(-1)
    return Trace(
        np.zeros(12, dtype=np.int64),
        np.full(12, longest // 2 + own, dtype=np.int64),
        np.ones(12, dtype=np.int64),
        segments=Segments(np.arange(0, 25, 2), content, np.tile([longest // 2, own], 12)),
        name="reference",
    )


@dataclass(frozen=True)
class Measured:
    """One replay on the engine."""

    came: Trace
    """Its requests, with their arrivals as the engine knows them."""
    run: LoggedRun
    schedule: Schedule
    """Its batches, and those that the simulator makes on its clocks."""
    speed: float
    """How long steps of reference requests took before and after it, over what the cost model says of them."""


@dataclass(frozen=True)
class Bench:
    """One policy on both hosts."""

    cell: Cell
    engine: Any
    """Of :func:`experiments.replays.open_replaying`."""
    cost: CostModel
    limits: Limits
    memory: Memory

    @classmethod
    def of(cls, cell: Cell, engine: Any, cost: CostModel) -> Bench:
        """Return the bench of an engine that runs a cell's policy."""
        return cls(cell, engine, cost, *real_memory(engine))

    def repeat(self, trace: Trace, times: int, name: str, reference: Trace) -> list[Measured]:
        """Replay a trace several times, with the machine's speed before and after each, by ``reference`` requests.

        Raises:
            EngineError: if not all of it could be replayed.
        """
        found = []
        after = self.speed(reference)
        for repeat in range(times):
            before = after
            came, run = self.measure(trace)
            label = name if times == 1 else f"{name}, repeat {repeat + 1}"
            schedule = self._schedule(label, came, run)
            after = self.speed(reference)
            found.append(Measured(came, run, schedule, (before + after) / 2))
        return found

    def speed(self, reference: Trace) -> float:
        """Return how long the steps of some requests take now, over what the cost model says of them."""
        _, run = self.measure(reference)
        features = np.stack([run.steps[name] for name in STEP_FEATURES], axis=1)
        return float(run.steps["duration_ns"].sum() / predicted_ns(self.cost, features).sum())

    def measure(self, trace: Trace) -> tuple[Trace, LoggedRun]:
        """Replay a trace on the engine, whose prefix cache is empty.

        Raises:
            EngineError: if not all of it could be replayed, or nothing was served.
        """
        self.engine.reset_prefix_cache()
        if self.memory.suffix == "discard":
            self.engine.keep_tokens = kept_tokens(trace, self.memory.block_size)
        came, run, sent = replay(trace, self.engine)
        if sent.stopped is not None:
            raise EngineError(f"a replay of {self.cell.label} ended early: {sent.stopped}") from sent.error
        if self.engine.scheduler.fallen:
            raise EngineError(f"policy {self.cell.label} failed in the engine, which went on without it")
        if not (run.requests["outcome"] == FINISHED).any():
            why = next(iter(run.reasons.values()), "there were none")
            raise EngineError(f"no request of {trace.name} was served under {self.cell.label}; the first: {why}")
        return came, run

    def simulate(self, trace: Trace, speed: float = 1.0) -> Tables:
        """Simulate the same requests on a machine whose steps take ``speed`` times what the policy believes."""
        return simulate(
            trace,
            self.cell.policy.build(),
            self.cost if speed == 1 else ScaledCost(self.cost, speed),
            predictor=self.cost,
            objectives=self.cell.objectives,
            limits=self.limits,
            cache=self.memory.build(trace),
        )

    def sample(self, tables: Tables) -> Sample:
        """Return what the requests of a run saw."""
        return sample_of(tables.requests, tables.steps, tables.preemptions, self.cell.objectives)

    def _schedule(self, label: str, trace: Trace, run: LoggedRun) -> Schedule:
        """Compare a replay's batches with those that the simulator makes on its clocks."""
        origin = int(run.steps["start_ns"][0]) if len(run.steps["start_ns"]) else 0
        batches = self.engine.scheduler.recorder.batches()
        shift = (batches[0].start if batches else 0) - origin
        return compare_schedules(
            label,
            trace,
            run,
            [dataclasses.replace(b, decided=b.decided - shift, start=b.start - shift) for b in batches],
            self.cell.policy.build(),
            predictor=self.cost,
            objectives=self.cell.objectives,
            limits=self.limits,
            cache=self.memory.build(trace),
        )
