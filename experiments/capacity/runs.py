"""Runs what a search for capacities asks for, all policies and levels of a round together, and keeps every run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from experiments.axes import PER_CELL, Experiment, plan
from experiments.capacity.estimate import estimate, points_of
from experiments.capacity.found import ESTIMATED, Found, Measured, Rates
from experiments.capacity.search import LEAST_SEEDS, Design, Grid, Search, Values
from experiments.cells import Cell
from experiments.config import Config, ConfigError
from experiments.draft import Draft
from experiments.folders import RUNS, latest
from experiments.run import check_cells
from experiments.sweep import run_sweep
from policies.units import NS
from sim.objectives import Objectives
from sim.stats import Interval

NAME = "capacity"

SEEDS = 64
"""The most that are run at one rate, by default."""


def new_folder(resume: bool) -> Path:
    """Return ``runs/capacity``, with a number where there is one already; to resume, the newest that there is."""
    newest = latest(NAME)
    if newest is None:
        return RUNS / NAME
    return newest if resume else RUNS / f"{NAME}-{1 + int(newest.name.removeprefix(NAME).lstrip('-') or 1)}"


def measure_capacity(
    draft: Draft,
    levels: Sequence[float],
    *,
    span: tuple[float, float] | None = None,
    precision: float = 0.025,
    confidence: float = 0.95,
    out: Path,
    resume: bool = False,
    jobs: int | None = None,
    progress: bool = False,
) -> Measured:
    """Search for every policy's capacity at every level.

    Args:
        draft: trace, policies, objectives and seeds; 64 by default.
        levels: shares of requests, from 0 to 1.
        span: lowest and highest rate in requests per second; by default the search starts at the trace's own rate and
            goes on for :data:`experiments.capacity.search.OCTAVES` doublings and halvings.
        precision: the ratio of neighbouring rates less 1, at most.
        confidence: of each interval.
        out: a new folder, which becomes a sweep's over rates.
        resume: go on in a folder that exists.
        jobs: processes.
        progress: draw bars on stderr.

    Raises:
        ConfigError: if the rate is not all that varies, there are no objectives, or too few seeds for a test.
        ConfigError, PolicyError, CostModelError, TraceError: see :func:`experiments.axes.plan`.
    """
    draft = _flat(draft)
    setup = _set_up(draft)
    seeds = setup.seeds
    grid = _grid(setup, span, precision)
    design = Design(grid, len(seeds), setup.cells[0].requests, confidence)
    labels = list(dict.fromkeys(cell.label for cell in setup.cells))
    searches = {(label, level): Search(design, level) for label in labels for level in levels}
    values: dict[str, dict[int, list[float]]] = {label: {} for label in labels}
    cells: dict[tuple[int, int, int], Cell] = {}
    sweep = None
    while True:
        wants: dict[tuple[str, int], int] = {}
        for (label, _), search in searches.items():
            for place, n in search.wanted(values[label]):
                wants[label, place] = max(n, wants.get((label, place), 0))
        wants = wants or _topped_up(searches, values)
        if not wants and sweep is not None:
            break
        for (label, place), n in wants.items():
            done = len(values[label].get(place, ()))
            for cell in _cells(draft, setup.rates, grid.rate(place), seeds[done:n], label):
                cells[place, labels.index(label), cell.seed] = cell
        axes = {setup.rates.axis: [grid.rate(place) for place in sorted({place for place, *_ in cells})]}
        experiment = Experiment(setup.config, axes, tuple(cells[at] for at in sorted(cells)), ())
        sweep = run_sweep(experiment, out=out, resume=resume or sweep is not None, jobs=jobs, progress=progress)
        if sweep.failures:
            break
        for label in labels:
            values[label] = {}
        for (place, k, _), cell in sorted(cells.items()):
            attainment = (sweep.results[cell.key].summary or {})["slo_attainment"]
            values[labels[k]].setdefault(place, []).append(float(attainment or 0.0))
    found = []
    for (label, _), search in searches.items():
        capacity = search.found(values[label])
        middle = estimate(capacity, values[label], grid, ESTIMATED)
        scaled = Interval(*(None if v is None else v * setup.rates.per_second for v in middle))
        found.append(Found(label, capacity, scaled))
    return Measured(sweep, design, setup.rates, list(levels), values, found)


@dataclass(frozen=True)
class _SetUp:
    """What is known before the first run."""

    config: Config
    cells: tuple[Cell, ...]
    """Every policy on the first seed, at the rate where the search starts."""
    seeds: tuple[int, ...]
    rates: Rates
    base: float
    """Where the search starts, on the axis."""


def _flat(draft: Draft) -> Draft:
    """Return a draft without axes, which keeps summaries.

    Raises:
        ConfigError: if there are axes other than those that every experiment has.
    """
    draft = draft.copy()
    taken = draft.take_axes()
    for axis in PER_CELL:
        if axis in taken:
            draft.put(axis, *taken.pop(axis))
    if taken:
        raise ConfigError(f"capacity varies the rate alone, but [sweep] has {', '.join(taken)}")
    if not draft.has("seeds"):
        draft.put("seeds", SEEDS, "default")
    draft.put("keep", "summary", NAME)
    return draft


def _set_up(draft: Draft) -> _SetUp:
    config = draft.finish()
    one = draft.copy()
    one.put("seeds", [config.seeds[0]], draft.origin("seeds"), NAME)
    cells = plan(one).cells
    check_cells(cells)
    source = cells[0].source
    trace = source.load(cells[0].seed)
    if cells[0].objectives == Objectives() and trace.slo_ttft_ns is None and trace.slo_tpot_ns is None:
        raise ConfigError("capacity needs objectives, like --slo ttft:1000,tpot_p99:25")
    if source.seeded and len(config.seeds) < LEAST_SEEDS:
        raise ConfigError(
            f"{draft.origin('seeds')}: so few seeds tell nothing for sure; give at least {LEAST_SEEDS}, better {SEEDS} "
            "(the most that are run at one rate)"
        )
    seeds = config.seeds if source.seeded else config.seeds[:1]
    if source.seeded:
        if source.rate_scale != 1:
            raise ConfigError("capacity finds the rate, so --rate-scale does not go with it; leave it out")
        rate = source.rate
        if rate is None and source.workload is not None:
            from traces.synthetic import find_workload

            rate = find_workload(source.workload).rate
        assert rate is not None
        return _SetUp(config, cells, seeds, Rates("rate", 1.0), rate)
    span = int(trace.arrival_ns[-1] - trace.arrival_ns[0])
    if not span:
        raise ConfigError(f"the requests of {source.label} arrive all at once, so it has no rate; give one with --rate")
    per_second = (len(trace) - 1) * NS / span / source.rate_scale
    return _SetUp(config, cells, seeds, Rates("rate_scale", per_second), source.rate_scale)


def _grid(setup: _SetUp, span: tuple[float, float] | None, precision: float) -> Grid:
    if span is None:
        return Grid.around(setup.base, precision)
    low, high = (rate / setup.rates.per_second for rate in span)
    return Grid.between(low, high, precision)


def _cells(draft: Draft, rates: Rates, value: float, seeds: Sequence[int], label: str) -> tuple[Cell, ...]:
    at = draft.copy()
    at.put(f"sweep.{rates.axis}", [value], "--rates", NAME)
    at.put("seeds", list(seeds), draft.origin("seeds"), NAME)
    at.put("policies", [label], draft.origin("policies"), NAME)
    return plan(at).cells


def _topped_up(
    searches: Mapping[tuple[str, float], Search], values: Mapping[str, Values]
) -> dict[tuple[str, int], int]:
    """Return what is to be run so that all policies have equally many seeds wherever a level's interval lies."""
    wants: dict[tuple[str, int], int] = {}
    for level in {level for _, level in searches}:
        points = [
            (label, place)
            for (label, own), search in searches.items()
            if own == level
            for place in points_of(search.found(values[label]), values[label])
        ]
        most = max((len(values[label][place]) for label, place in points), default=0)
        for label, place in points:
            if len(values[label][place]) < most:
                wants[label, place] = max(most, wants.get((label, place), 0))
    return wants
