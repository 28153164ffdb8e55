"""The simulator against the real engine on this machine: schedules, then latencies over a range of load."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from costmodels.base import CostModel
from costmodels.io import load_cost_model, save_cost_model
from costmodels.profile import FEATURES, read_profile
from costmodels.scaled import ScaledCost
from experiments.axes import plan
from experiments.calibration import Calibration, calibrate
from experiments.cells import Cell
from experiments.config import ConfigError, Draft
from experiments.replays import check_policies, open_replaying, real_memory
from gpu_runner.engine import EngineError, EngineOptions
from gpu_runner.replay import paced, replay
from gpu_runner.validate.ends import Row, Sample, compare, keeps_up, sample_of
from gpu_runner.validate.ends_report import ends_section, knee_section
from gpu_runner.validate.pictures import steps_picture
from gpu_runner.validate.promise import Kept, promise_section
from gpu_runner.validate.schedule import Schedule, compare_schedules, schedule_section
from gpu_runner.validate.sections import Section, percent, steps_section
from gpu_runner.validate.step_times import StepErrors, predicted_ns
from gpu_runner.validate.stored import STEP_FEATURES
from gpu_runner.validate.tolerances import Tolerances
from policies.chunking.deadline_fill import DeadlineFill
from policies.units import MS, NS
from sim.engine import Limits, simulate
from sim.memory import Memory
from sim.records import FINISHED, LoggedRun, Tables
from traces.schema import Trace

JUDGED_RHO = 0.85

REFERENCE = Trace(
    np.zeros(12, dtype=np.int64), np.full(12, 100, dtype=np.int64), np.full(12, 16, dtype=np.int64), name="reference"
)
"""Requests whose steps tell how fast the machine is at the moment."""


@dataclass(frozen=True)
class Protocol:
    """How an engine is measured."""

    rhos: tuple[float, ...] = (0.5, 0.7, 0.85, 0.95)
    """Offered rates over the largest stable one."""
    repeats: int = 3
    """Replays of the same requests at each of them; their standard deviation is the engine's own spread."""

    promise: float | None = None
    """In place of all that: one rate, at which deadline-filling is held to what it promises."""

    @classmethod
    def parse(cls, rhos: str, repeats: int, promise: float | None = None) -> Protocol:
        """Read ``0.5,0.7``.

        Raises:
            ConfigError: if a number is none, or not positive.
        """
        try:
            values = tuple(float(text) for text in rhos.split(","))
        except ValueError:
            values = ()
        if not values or not all(0 < value < math.inf for value in values):
            raise ConfigError(
                f"--rho {rhos!r} should read R,R,..., positive shares of the largest stable rate, like 0.5,0.9"
            )
        return cls(values, repeats, promise)


@dataclass(frozen=True)
class _Bench:
    """One policy on both hosts."""

    cell: Cell
    engine: Any
    """Of :func:`experiments.replays.open_replaying`."""
    cost: CostModel
    limits: Limits
    memory: Memory

    def speed(self) -> float:
        """Return how long the steps of a few requests take now, over what the cost model says of them."""
        _, run = self.measure(REFERENCE)
        features = np.stack([run.steps[name] for name in STEP_FEATURES], axis=1)
        return float(run.steps["duration_ns"].sum() / predicted_ns(self.cost, features).sum())

    def measure(self, trace: Trace) -> tuple[Trace, LoggedRun]:
        """Replay a trace on the engine, whose prefix cache is empty.

        Raises:
            EngineError: if not all of it could be replayed.
        """
        self.engine.reset_prefix_cache()
        came, run, sent = replay(trace, self.engine)
        if sent.stopped is not None:
            raise EngineError(f"a replay of {self.cell.label} ended early: {sent.stopped}") from sent.error
        if self.engine.scheduler.fallen:
            raise EngineError(f"policy {self.cell.label} failed in the engine, which went on without it")
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

    def schedule(self, label: str, trace: Trace, run: LoggedRun) -> Schedule:
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

    def sample(self, tables: Tables) -> Sample:
        """Return what the requests of a run saw."""
        return sample_of(tables.requests, tables.steps, tables.preemptions, self.cell.objectives)


def validate_here(
    draft: Draft,
    options: EngineOptions,
    profile: Path | None,
    protocol: Protocol,
    tolerances: Tolerances,
    folder: Path,
) -> Iterator[Section]:
    """Yield all sections of a validation on this machine.

    Args:
        draft: policies, trace and objectives; the cost model too, where there is no profile.
        options: of the engine.
        profile: measured steps of that engine; the model that fits them best is what policies believe and what the
            simulator charges, and is put into ``folder``.
        protocol: rates and repeats.
        tolerances: of the figures.
        folder: of what is kept beside the report.

    Raises:
        ConfigError: if there is neither a profile nor a cost model, or both.
        EngineError: if an engine cannot start, or a replay fails.
    """
    believed = draft.get("cost_model") if draft.has("cost_model") else None
    if (profile is None) == (believed is None):
        raise ConfigError(
            "what do steps of this engine take? give --profile FILE, as `prefillsim profile` makes it, or --cost-model"
        )
    if profile is not None:
        fitted = calibrate(read_profile(profile), "validated")
        believed = str(folder / "cost-model.json")
        save_cost_model(fitted.model, Path(believed))
        draft.put("cost_model", believed, "--profile")
        yield _step_times(fitted, tolerances)
    cells = plan(draft).cells
    check_policies(cells)
    if protocol.promise is not None:
        deadline = cells[0].objectives.deadline_ns
        if deadline is None:
            raise ConfigError("--promise needs D, the same for all policies: give --slo tpot_p99:MS")
        yield promise_here(cells, str(believed), options, protocol.promise, deadline)
        return
    cost = load_cost_model(str(believed))
    yield from validate_engine(cells, str(believed), cost, options, protocol, tolerances)


def _step_times(fitted: Calibration, tolerances: Tolerances) -> Section:
    """Return level L1: predictions of shapes that the model has not seen, against the median of each one's repeats."""
    found = fitted.rows.assign(predicted=fitted.held_out[fitted.picked]).groupby(list(FEATURES))
    measured, predicted = found["duration_ns"].median().to_numpy(), found["predicted"].median().to_numpy()
    singly = StepErrors.of(fitted.held_out[fitted.picked], fitted.rows["duration_ns"].to_numpy())
    text = (
        f"Measured is the median of a shape's repeats. Of the {singly.steps:,} steps one by one predictions are "
        f"{percent(singly.mape)} off on average; the machine's own noise is in that."
    )
    return steps_section(
        StepErrors.of(predicted, measured),
        tolerances,
        f"held-out shapes, by {fitted.picked}",
        pictures=[steps_picture(predicted / MS, measured / MS, tolerances.of("step"))],
        text=[text],
    )


def validate_engine(
    cells: Sequence[Cell],
    cost_model: str,
    cost: CostModel,
    options: EngineOptions,
    protocol: Protocol,
    tolerances: Tolerances,
) -> Iterator[Section]:
    """Yield the sections of levels L2 and L3 of each cell's policy.

    The largest stable rate of a policy is what it serves when all requests are there at once; each rate of the protocol
    is a share of it, on either side of its own: near saturation an error of capacity, which the knee shows by itself,
    would be a many times larger one of latency. The same requests are replayed several times, and each replay is
    simulated with its own arrivals, at the speed that the machine had then (:data:`REFERENCE`).

    Args:
        cells: of one trace, a policy each.
        cost_model: the name of what policies believe, for the engine's process.
        cost: the same; also what the simulator charges.
        options: of every engine; scheduler and settings are added.
        protocol: rates and repeats.
        tolerances: of the figures.

    Raises:
        EngineError: if an engine cannot start, or a replay fails.
    """
    for cell, engine in open_replaying(cells, cost_model, options):
        bench = _Bench(cell, engine, cost, *real_memory(engine))
        trace = cell.source.load(cell.seed)
        yield from _sections(bench, trace, protocol, tolerances)


def _sections(bench: _Bench, trace: Trace, protocol: Protocol, tolerances: Tolerances) -> Iterator[Section]:
    label = bench.cell.label
    schedules: list[Schedule] = []
    before = bench.speed()
    came, run = bench.measure(paced(trace, saturate=True))
    schedules.append(bench.schedule("saturated", came, run))
    after = bench.speed()
    engine_rate, simulated_rate = served_rate(run), served_rate(bench.simulate(came, (before + after) / 2))
    capacity = simulated_rate / engine_rate
    ends = []
    for rho in protocol.rhos:
        offered = trace.scale_rate(rho * engine_rate / mean_rate(trace))
        measured, simulated, same_rate, as_profiled, stable, speeds = [], [], [], [], [], []
        for repeat in range(protocol.repeats):
            before = after
            came, run = bench.measure(offered)
            schedules.append(bench.schedule(f"ρ {rho:g}, repeat {repeat + 1}", came, run))
            after = bench.speed()
            speeds.append((before + after) / 2)
            measured.append(bench.sample(run))
            simulated.append(bench.sample(bench.simulate(came.scale_rate(capacity), speeds[-1])))
            same_rate.append(bench.sample(bench.simulate(came, speeds[-1])))
            as_profiled.append(bench.sample(bench.simulate(came)))
            stable.append(keeps_up(run.requests))
        section = ends_section(label, measured, simulated, tolerances, (rho, rho), f"-{_slug(label)}-{rho:g}")
        figures = [s.figures for s in measured]
        others = {
            name: compare(figures, [s.figures for s in samples], tolerances)
            for name, samples in (("same_rate", same_rate), ("as_profiled", as_profiled))
        }
        told = {
            "policy": label,
            "offered_rate": rho * engine_rate,
            "simulated_rate": rho * simulated_rate,
            "stable_repeats": sum(stable),
            "speeds": speeds,
            **{name: [row.to_dict() for row in rows] for name, rows in others.items()},
        }
        text = [*section.text, _rate_text(capacity, others["same_rate"]), _drift_text(speeds, others["as_profiled"])]
        section = dataclasses.replace(section, data={**section.data, **told}, text=text)
        ends.append(section if rho <= JUDGED_RHO else _not_judged(section))
    yield schedule_section(label, schedules)
    yield knee_section(label, engine_rate, simulated_rate, tolerances)
    yield from ends


def promise_here(
    cells: Sequence[Cell], cost_model: str, options: EngineOptions, rate: float, deadline_ns: int
) -> Section:
    """Return the section on SLOWeave's promise: the same requests at the same rate with each policy on the engine.

    Raises:
        EngineError: if an engine cannot start, or a replay fails.
    """
    kept = []
    for cell, engine in open_replaying(cells, cost_model, options):
        bench = _Bench(cell, engine, load_cost_model(cost_model), *real_memory(engine))
        trace = cell.source.load(cell.seed)
        _, run = bench.measure(trace.scale_rate(rate / mean_rate(trace)))
        fills = isinstance(cell.policy.build().chunking, DeadlineFill)
        kept.append(Kept.of(cell.label, fills, run, deadline_ns))
    return promise_section(deadline_ns, rate, kept)


def _worst(rows: Sequence[Row]) -> float | None:
    return max((row.error for row in rows if row.error is not None), key=abs, default=None)


def _rate_text(capacity: float, rows: Sequence[Row]) -> str:
    return (
        f"The simulator's arrivals are {capacity:.2f} times as dense, so that either side is at the same share of its "
        f"own largest stable rate. At the engine's rate the largest error is {percent(_worst(rows), signed=True)}."
    )


def _drift_text(speeds: Sequence[float], plain: Sequence[Row]) -> str:
    return (
        f"Steps of a few reference requests took {', '.join(f'{s:.2f}' for s in speeds)} times what the profile says, "
        "measured before and after each repeat; the simulator's steps are that much longer or shorter, so that a "
        "machine that has changed since it was profiled is not taken for an error of the simulation. Without that the "
        f"largest error at the engine's rate would be {percent(_worst(plain), signed=True)}."
    )


def _not_judged(section: Section) -> Section:
    text = f"Above ρ {JUDGED_RHO:g} small errors of capacity are large ones of latency: reported, not judged."
    return dataclasses.replace(section, passed=None, misses=[], text=[*section.text, text])


def _slug(label: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", label.lower()).strip("-")


def served_rate(tables: Tables) -> float:
    """Return the requests per second that a run served, from the first arrival to the last finish."""
    r: Any = tables.requests
    done = r["outcome"] == FINISHED
    return float(done.sum() * NS / (r["finished_ns"][done].max() - r["arrival_ns"].min()))


def mean_rate(trace: Trace) -> float:
    """Return the arrivals per second of a trace."""
    return (len(trace) - 1) * NS / float(trace.arrival_ns[-1] - trace.arrival_ns[0])
