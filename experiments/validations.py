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
from costmodels.profile import FEATURES, Profile, read_profile
from experiments.axes import plan
from experiments.benches import Bench, Measured, prefilling
from experiments.calibration import Calibration, calibrate
from experiments.cells import Cell
from experiments.config import ConfigError
from experiments.draft import Draft
from experiments.replays import AnyOptions, check_policies, open_replaying
from gpu_runner.engine import EngineOptions
from gpu_runner.hybrid.options import HybridOptions
from gpu_runner.replay import paced
from gpu_runner.validate.ends import Row, compare, keeps_up
from gpu_runner.validate.ends_report import ends_section, knee_section
from gpu_runner.validate.pictures import steps_picture
from gpu_runner.validate.promise import Kept, promise_section
from gpu_runner.validate.schedule import schedule_section
from gpu_runner.validate.sections import Section, percent, steps_section
from gpu_runner.validate.step_times import StepErrors
from gpu_runner.validate.tolerances import Tolerances
from policies.chunking.deadline_fill import DeadlineFill
from policies.units import MS, NS
from sim.records import FINISHED, Tables
from traces.schema import Trace

JUDGED_RHO = 0.85

REFERENCE = 60
"""Requests whose steps tell how fast the machine is at the moment."""


@dataclass(frozen=True)
class Protocol:
    """How an engine is measured."""

    rhos: tuple[float, ...] = (0.5, 0.7, 0.85, 0.95)
    """Offered rates over the largest stable one; without any, all requests arrive at once."""
    repeats: int = 3
    """Replays of the same requests at each of them; their standard deviation is the engine's own spread."""

    promise: float | None = None
    """In place of all that: one rate, at which deadline-filling is held to what it promises."""

    @classmethod
    def parse(cls, rhos: str, repeats: int, promise: float | None = None) -> Protocol:
        """Read ``0.5,0.7``, or ``none``.

        Raises:
            ConfigError: if a number is none, or not positive.
        """
        if rhos == "none":
            return cls((), repeats, promise)
        try:
            values = tuple(float(text) for text in rhos.split(","))
        except ValueError:
            values = ()
        if not values or not all(0 < value < math.inf for value in values):
            raise ConfigError(
                f"--rho {rhos!r} should read R,R,..., positive shares of the largest stable rate, like 0.5,0.9, or none"
            )
        return cls(values, repeats, promise)


def validate_here(
    draft: Draft,
    options: AnyOptions,
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
        ConfigError: if there is neither a profile nor a cost model, or both, or they are of another engine.
        EngineError: if an engine cannot start, or a replay fails.
    """
    if protocol.promise is not None and not isinstance(options, EngineOptions):
        raise ConfigError("--promise is about gaps between tokens, but the hybrid engine answers with one token")
    believed = draft.get("cost_model") if draft.has("cost_model") else None
    if (profile is None) == (believed is None):
        raise ConfigError(
            "what do steps of this engine take? give --profile FILE, as `prefillsim profile` makes it, or --cost-model"
        )
    if profile is not None:
        fitted = calibrate(_profile_of(profile, options), "validated")
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
        assert isinstance(options, EngineOptions)
        yield promise_here(cells, str(believed), options, protocol.promise, deadline)
        return
    cost = load_cost_model(str(believed))
    yield from validate_engine(cells, str(believed), cost, options, protocol, tolerances)


def _profile_of(path: Path, options: AnyOptions) -> Profile:
    """Return a profile of the engine that is validated."""
    profile = read_profile(path)
    hybrid = isinstance(options, HybridOptions)
    if (profile.setting["engine"] == "hybrid") != hybrid:
        how = "`prefillsim profile --engine hybrid`" if hybrid else "`prefillsim profile`, and without --engine hybrid"
        raise ConfigError(f"{path} was measured on engine {profile.setting['engine']}; give one that {how} makes")
    return profile


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
    options: AnyOptions,
    protocol: Protocol,
    tolerances: Tolerances,
) -> Iterator[Section]:
    """Yield the sections of levels L2 and L3 of each cell's policy.

    The largest stable rate of a policy is what it serves when all requests are there at once; each rate of the protocol
    is a share of it, on either side of its own: near saturation an error of capacity, which the knee shows by itself,
    would be a many times larger one of latency. The same requests are replayed several times, and each replay is
    simulated with its own arrivals, at the speed that the machine had then, by the steps of other requests of the same
    workload at the same rate before and after it: steps seem to take longer where an engine has pauses.

    Where requests only prefill, or there are no rates, the replays of all at once are repeated and their latencies
    compared too.

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
        yield from _sections(Bench.of(cell, engine, cost), protocol, tolerances)


def _sections(bench: Bench, protocol: Protocol, tolerances: Tolerances) -> Iterator[Section]:
    cell = bench.cell
    label, trace, others = cell.label, cell.source.load(cell.seed), cell.source.load(cell.seed + 1)

    def reference(rate: float | None) -> Trace:
        if bench.memory.regime == "store":
            assert bench.limits.max_model_len is not None
            return prefilling(bench.limits.max_model_len)
        if rate is None:
            return paced(others.limit(REFERENCE), saturate=True)
        return others.scale_rate(rate / mean_rate(others)).limit(REFERENCE)

    rates = bool(protocol.rhos and trace.arrival_ns[-1] > trace.arrival_ns[0])
    judged = not rates or bool(trace.output_tokens.max() == 1)
    at_once = bench.repeat(
        paced(trace, saturate=True), protocol.repeats if judged else 1, "all at once", reference(None)
    )
    engine_rate = float(np.mean([served_rate(m.run) for m in at_once]))
    simulated_rate = float(np.mean([served_rate(bench.simulate(m.came, m.speed)) for m in at_once]))
    ends = [_ends(bench, at_once, tolerances)] if judged else []
    schedules = [m.schedule for m in at_once]
    for rho in protocol.rhos if rates else ():
        rate = rho * engine_rate
        offered = trace.scale_rate(rate / mean_rate(trace))
        repeats = bench.repeat(offered, protocol.repeats, f"ρ {rho:g}", reference(rate))
        schedules += [m.schedule for m in repeats]
        ends.append(_ends(bench, repeats, tolerances, rho, (engine_rate, simulated_rate)))
    yield schedule_section(label, schedules)
    yield knee_section(label, engine_rate, simulated_rate, tolerances)
    yield from ends


def _ends(
    bench: Bench,
    repeats: Sequence[Measured],
    tolerances: Tolerances,
    rho: float | None = None,
    knees: tuple[float, float] | None = None,
) -> Section:
    """Return level L3 of repeats at one rate, a share of the engine's and the simulator's knee; or of all at once."""
    label = bench.cell.label
    measured = [bench.sample(m.run) for m in repeats]
    same_rate = [bench.sample(bench.simulate(m.came, m.speed)) for m in repeats]
    simulated = same_rate
    others = {"as_profiled": [bench.sample(bench.simulate(m.came)) for m in repeats]}
    told: dict[str, Any] = {"policy": label, "speeds": [m.speed for m in repeats]}
    if rho is not None and knees is not None:
        capacity = knees[1] / knees[0]
        simulated = [bench.sample(bench.simulate(m.came.scale_rate(capacity), m.speed)) for m in repeats]
        others["same_rate"] = same_rate
        told["offered_rate"], told["simulated_rate"] = rho * knees[0], rho * knees[1]
        told["stable_repeats"] = sum(keeps_up(m.run.requests) for m in repeats)
    title = label if rho is not None else f"{label}, all at once"
    shares = None if rho is None else (rho, rho)
    picture = f"-{_slug(label)}-{'all' if rho is None else f'{rho:g}'}"
    section = ends_section(title, measured, simulated, tolerances, shares, picture)
    figures = [s.figures for s in measured]
    rows = {name: compare(figures, [s.figures for s in samples], tolerances) for name, samples in others.items()}
    told |= {name: [row.to_dict() for row in found] for name, found in rows.items()}
    text = [*section.text]
    if "same_rate" in rows:
        text.append(_rate_text(capacity, rows["same_rate"]))
    text.append(_drift_text(told["speeds"], rows["as_profiled"]))
    section = dataclasses.replace(section, data={**section.data, **told}, text=text)
    return section if rho is None or rho <= JUDGED_RHO else _not_judged(section)


def promise_here(
    cells: Sequence[Cell], cost_model: str, options: EngineOptions, rate: float, deadline_ns: int
) -> Section:
    """Return the section on SLOWeave's promise: the same requests at the same rate with each policy on the engine.

    Raises:
        EngineError: if an engine cannot start, or a replay fails.
    """
    kept = []
    for cell, engine in open_replaying(cells, cost_model, options):
        trace = cell.source.load(cell.seed)
        bench = Bench.of(cell, engine, load_cost_model(cost_model))
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
        f"Steps of other requests at the same rate took {', '.join(f'{s:.2f}' for s in speeds)} times what the profile "
        "says, measured before and after each repeat; the simulator's steps are that much longer or shorter, so that a "
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
