"""One run as a diff sees it: its batches step by step, and its whole state at one of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from experiments.recorded import Recorded
from experiments.why.again import CannotRemake, remake
from experiments.why.reasons import PHASES, Lane, Schedule
from experiments.why.stories import host_of, schedule_of, state_of
from sim.batches import batch_table
from sim.records import Columns

Document = dict[str, Any]


@dataclass(frozen=True)
class Known:
    """A run, and what can be found out about its batches."""

    run: Recorded
    schedule: Schedule | None = field(repr=False)
    """``None`` where nothing tells who prefilled when."""
    batches: Columns | None = field(repr=False)
    """Columns ``step``, ``request`` (index) and ``tokens`` in batch order; ``None`` likewise."""
    note: str | None

    @classmethod
    def of(cls, run: Recorded, plugins: Sequence[Path] = ()) -> Known:
        """Find out about a run: a simulation is made again; of others the tables tell, best with stored batches."""
        remade, why_not = None, None
        try:
            remade = remake(run, plugins)
        except CannotRemake as e:
            why_not = str(e)
        schedule = schedule_of(run, remade)
        if run.tables.batches is not None:
            index = {name: i for i, name in enumerate(run.tables.requests["id"].tolist())}
            numbers = np.array([index.get(name, -1) for name in run.tables.batches["request"].tolist()], dtype=np.int64)
            return cls(run, schedule, {**run.tables.batches, "request": numbers}, None)
        if schedule is None:
            unknown = (
                f"{run.path}: who was in which step is not known, so steps are compared by their counts ({why_not})"
            )
            return cls(run, None, None, unknown)
        note = None if remade is not None else f"{run.path}: batches follow from its tables ({why_not})"
        return cls(run, schedule, batch_table(_Tables(schedule)), note)

    @property
    def requests(self) -> Columns:
        """The requests table."""
        return self.run.tables.requests

    @property
    def steps(self) -> Columns:
        """The steps table."""
        return self.run.tables.steps

    @cached_property
    def spans(self) -> dict[int, tuple[int, int]]:
        """The first step of each replica, and how many it has run."""
        replica = self.steps["replica"]
        found = {}
        for r in np.unique(replica).tolist():
            own = np.flatnonzero(replica == r)
            found[r] = int(own[0]), len(own)
        return found

    def of_replica(self, replica: int) -> Columns:
        """Return a replica's steps, none where it has run none."""
        first, size = self.spans.get(replica, (0, 0))
        return {name: values[first : first + size] for name, values in self.steps.items()}

    def batches_of(self, replica: int) -> Columns:
        """Return a replica's batches, with its steps counted from 0."""
        assert self.batches is not None
        first, size = self.spans.get(replica, (0, 0))
        own = (self.batches["step"] >= first) & (self.batches["step"] < first + size)
        rows = {name: values[own] for name, values in self.batches.items()}
        return {**rows, "step": rows["step"] - first}

    def preempted_of(self, replica: int) -> list[tuple[int, int]]:
        """Return the steps and requests of a replica's preemptions, in order."""
        first, size = self.spans.get(replica, (0, 0))
        table = self.run.tables.preemptions
        rows = zip(table["step"].tolist(), table["request"].tolist(), strict=True)
        return sorted((step - first, request) for step, request in rows if first <= step < first + size)

    @cached_property
    def lanes(self) -> dict[int, Lane]:
        """The replicas that have run a step, where it is known who prefilled when."""
        if self.schedule is None:
            return {}
        return {r: Lane(self.schedule, r) for r in self.spans}

    def head(self) -> Document:
        """Return what the run is."""
        return {
            "run": str(self.run.path),
            "policy": self.run.policy,
            "host": host_of(self.run),
            "trace": self.run.trace,
            "seed": self.run.seed,
        }


def state(known: Known, replica: int, step: int) -> Document | None:
    """Return a replica's state in a step counted from its first: who ran, waited and was preempted, and blocks.

    ``None`` where it has no such step. Where nobody knows who was in the step, only its counts are there.
    """
    first, size = known.spans.get(replica, (0, 0))
    if not 0 <= step < size:
        return None
    lane = known.lanes.get(replica)
    if lane is None:
        row = {name: int(values[first + step]) for name, values in known.steps.items() if values.dtype.kind == "i"}
        return {"step": first + step, "replica": replica, "counts": row}
    ids = [str(v) for v in known.requests["id"].tolist()]
    rows = known.batches_of(replica)
    own = rows["step"] == step
    prefilling = set(lane.chunks["request"][lane.chunks["step"] == step].tolist())
    batch = list(zip(rows["request"][own].tolist(), rows["tokens"][own].tolist(), strict=True))
    waiting = lane.waiting_at(step)
    return {
        **state_of(lane, step, known.requests),
        "batch": [{"request": ids[r], "tokens": tokens} for r, tokens in batch],
        "decoding": [ids[r] for r, _ in batch if r not in prefilling],
        "waiting": [ids[s.request] for s in waiting if s.phase != PHASES.index("between its chunks")],
        "stalled": [ids[s.request] for s in waiting if s.phase == PHASES.index("between its chunks")],
        "preempted": [ids[r] for at, r in known.preempted_of(replica) if at == step],
    }


def differing(a: Document | None, b: Document | None) -> Document:
    """Return what of two states is in one of them only: batch entries, those who wait, those who lost their blocks."""
    if a is None or b is None or "batch" not in a or "batch" not in b:
        return {}
    found: Document = {}
    for name in ("batch", "waiting", "preempted"):
        sides = [[tuple(e.values()) if isinstance(e, dict) else e for e in side[name]] for side in (a, b)]
        for key, mine, theirs in (("a", *sides), ("b", *reversed(sides))):
            there = set(theirs)
            found[f"{name}_{key}"] = [
                dict(zip(("request", "tokens"), e, strict=True)) if isinstance(e, tuple) else e
                for e in mine
                if e not in there
            ]
    return found


class _Tables:
    """The tables of a run in the form in which the simulator has them."""

    def __init__(self, schedule: Schedule) -> None:
        self.requests, self.steps = schedule.requests, schedule.steps
        self.chunks, self.preemptions = schedule.chunks, schedule.preemptions
        self.reasons: dict[int, str] = {}
