"""A stored simulation made again from its own record, with what its policy granted and, at one step, who was next."""

from __future__ import annotations

import dataclasses
import struct
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import simpy

from costmodels.io import cost_model_from_dict
from experiments.cells import Cell, Plugin, hash_of, load_plugins, package_version
from experiments.config import ClusterConfig, TraceConfig
from experiments.recorded import HOSTS, Recorded, read_runs
from experiments.run import USER_ERRORS, plugin_errors, prepare
from experiments.source import TraceSource
from policies.base import Policy, PolicyError
from policies.spec import PolicySpec
from policies.views import BatchView, Grant
from sim.cluster import Cluster
from sim.engine import Engine
from sim.limits import Limits
from sim.memory import Memory
from sim.objectives import Objectives
from sim.records import STEP_ROW, Tables
from sim.routers import ClusterError
from sim.store import StoreError
from traces.schema import Trace

REQUESTS = ("first_scheduled_ns", "first_token_ns", "finished_ns", "cached_tokens", "chunks", "preemptions", "outcome")
STEPS = ("decided_ns", "start_ns", "duration_ns", "n_decode", "prefill_tokens", "granted_tokens", "waiting")
"""What must come out the same."""


class CannotRemake(ValueError):
    """A run that cannot be made again here; the message says why."""


@dataclass(frozen=True)
class Remade:
    """A run made again, equal to the stored one in every time and count."""

    trace: Trace
    tables: Tables
    grants: dict[int, Grant]
    """What the policy granted, by step as the steps table numbers them; a step in which it was not asked is missing."""
    order: list[int] | None
    """Who still waited when the watched step had been handed out, the next one first; ``None``: no step was watched."""


def remake(run: Recorded, plugins: Sequence[Path] = (), watch: int | None = None) -> Remade:
    """Run a stored simulation once more.

    Args:
        run: with its tables.
        plugins: the files of policy parts that it used.
        watch: a step, numbered as in the steps table, whose queue is wanted.

    Raises:
        CannotRemake: if it was no simulation, or something it depends on is gone or has changed since.
    """
    cell = cell_of(run, plugins)
    try:
        trace, policy = prepare(cell)
        with plugin_errors(cell):
            made = _run(trace, policy, cell, watch, run)
    except (*USER_ERRORS, ClusterError) as e:
        raise CannotRemake(str(e)) from None
    stored = run.tables
    for name, theirs, ours, columns in (
        ("requests", stored.requests, made.tables.requests, REQUESTS),
        ("steps", stored.steps, made.tables.steps, STEPS),
    ):
        for column in columns:
            if column in theirs and not np.array_equal(theirs[column], ours[column]):
                raise CannotRemake(f"{column} of its {name} comes out different: the code that made it was another")
    return made


def cell_of(run: Recorded, plugins: Sequence[Path] = ()) -> Cell:
    """Return the cell that a run's record describes, if it can be had here.

    Raises:
        CannotRemake: if not; the message says why.
    """
    if run.host:
        host = HOSTS.get(run.host, run.host)
        raise CannotRemake(f"it ran in {'the ' * (' ' in host)}{host}, which is never quite as fast twice")
    resolved, key = run.info.get("resolved"), run.info.get("key")
    if not isinstance(resolved, dict) or hash_of(resolved) != key:
        raise CannotRemake("run.json does not hold the configuration that its key stands for")
    if resolved.get("package") != package_version():
        raise CannotRemake(f"it was made by prefillsim {resolved.get('package')}, and this is {package_version()}")
    try:
        loaded = load_plugins(tuple(plugins))
        if lacking := set(resolved["plugins"]) - {p.sha256 for p in loaded}:
            raise CannotRemake(
                f"it used {len(lacking)} plug-in{'s'[: len(lacking) > 1]} whose text is not here: give --plugin FILE"
            )
        cell = _cell(run, resolved, loaded)
    except CannotRemake:
        raise
    except USER_ERRORS as e:
        raise CannotRemake(str(e)) from None
    except (KeyError, TypeError, ValueError) as e:
        raise CannotRemake(f"run.json describes no run of this version: {type(e).__name__}: {e}") from None
    if cell.digest != resolved.get("trace"):
        raise CannotRemake(f"{cell.source.label} has other requests now (hash {cell.digest}, was {resolved['trace']})")
    return cell


def _cell(run: Recorded, resolved: dict[str, Any], plugins: tuple[Plugin, ...]) -> Cell:
    source = TraceSource.of(TraceConfig.model_validate(run.info["trace_source"]))
    believed, memory = resolved["policy_cost_model"], resolved["memory"]
    router = resolved["router"]
    seed = int(run.info["seed"])
    return Cell(
        source,
        seed,
        source.facts(seed),
        dataclasses.replace(PolicySpec.from_dict(resolved["policy"]), label=run.policy),
        Objectives(**resolved["objectives"]),
        cost_model_from_dict(resolved["cost_model"]),
        None if believed is None else cost_model_from_dict(believed),
        Limits(**resolved["engine"]),
        None if memory is None else Memory(**memory),
        ClusterConfig(replicas=resolved["replicas"], **({} if router is None else {"router": router})),
        None,
        plugins,
        (),
        "records",
        str(run.info["key"]),
    )


def _run(trace: Trace, policy: Policy, cell: Cell, watch: int | None, run: Recorded) -> Remade:
    env = simpy.Environment()
    common: dict[str, Any] = {
        "predictor": cell.predictor,
        "objectives": cell.objectives,
        "limits": cell.limits,
        # Within a stretch nobody could look at the queue.
        "stretch": watch is None,
    }
    replicas = cell.cluster.replicas
    host: Engine | Cluster
    if replicas == 1:
        cache = None if cell.memory is None else cell.memory.build(trace)
        host = Engine(env, trace, policy, cell.cost, cache=cache, **common)
        engines = [host]
    else:
        policies = [policy, *(cell.policy.build() for _ in range(1, replicas))]
        host = Cluster(env, trace, policies, cell.cost, router=cell.cluster.router, memory=cell.memory, **common)
        engines = host.engines
    of_step = run.tables.steps["replica"]
    firsts = [int(np.searchsorted(of_step, r)) for r in range(replicas)]
    spies = [
        _Spy(engine, watch - first if watch is not None and of_step[watch] == r else None)
        for r, (engine, first) in enumerate(zip(engines, firsts, strict=True))
    ]
    env.run()
    grants = {first + step: g for spy, first in zip(spies, firsts, strict=True) for step, g in spy.grants.items()}
    order = next((spy.order for spy in spies if spy.order is not None), None)
    return Remade(trace, host.tables(), grants, order)


class _Spy:
    """Notes what one engine's policy grants in each step, and at a watched step who is next; changes nothing.

    The engine logs a step's duration once the step has been handed out, so the length of that column is the number of
    the step under way.
    """

    def __init__(self, engine: Engine, watched: int | None) -> None:
        self.grants: dict[int, Grant] = {}
        self.order: list[int] | None = None
        self._engine = engine
        engine.log.durations = durations = _Durations("q")
        if watched is not None:
            durations.watched, durations.tell = watched, self._look
        chunking = engine.policy.chunking
        object.__setattr__(chunking, "grant", partial(self._note, chunking.grant, durations))

    def _note(self, grant: Any, durations: array[int], batch: BatchView) -> Grant:
        granted: Grant = grant(batch)
        self.grants[len(durations)] = granted
        return granted

    def _look(self) -> None:
        queue = self._engine.queue
        if not len(queue):
            self.order = []
            return
        steps = self._engine.log.steps
        begin = struct.unpack_from("q", steps, len(steps) - 8 * len(STEP_ROW))[0]
        try:
            self.order = [view.number for view in queue.first(len(queue), begin)]
        except PolicyError:
            self.order = None


class _Durations(array):  # type: ignore[type-arg]
    """The column of durations, which tells when the watched step has been entered."""

    watched = -1
    tell: Callable[[], None] | None = None

    def append(self, value: int) -> None:
        super().append(value)
        if self.tell is not None and len(self) == self.watched + 1:
            self.tell()


def one_run(folder: Path) -> Recorded:
    """Read the folder of one run.

    Raises:
        StoreError: if it is none, or holds several.
    """
    runs = read_runs([folder])
    if len(runs) > 1:
        names = ", ".join(run.path.name for run in runs[:5])
        raise StoreError(f"{folder} holds {len(runs)} runs; give one of them: {names}{', ...'[: 5 * (len(runs) > 5)]}")
    return runs[0]
