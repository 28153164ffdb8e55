"""The runs behind PrefillOnly's Figures 6 to 9: every system that fits, over the rate, by set-up and workload.

As in §7.1, the rates are multiples of x, PrefillOnly's throughput when the whole dataset arrives at once. One rate
below the paper's six is added, so that a slow system's curve can still be read off. The paper does not say whether
users arrive with all their requests, so post recommendation is also run with its requests shuffled.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from experiments.axes import Experiment, plan
from experiments.cells import Cell
from experiments.config import Config, ConfigError
from experiments.draft import Draft
from experiments.prefillonly.systems import PREFILLONLY, SETUPS, WORKLOADS, Deployment, deployments
from experiments.sweep import run_sweep
from experiments.tables import Rows, summary_rows

PAPER_MULTIPLES = (0.25, 0.5, 1.0, 2.0, 3.0, 4.0)
MULTIPLES = (0.125, *PAPER_MULTIPLES)
"""Rates, in units of x."""

DIGITS = 3
"""Significant digits of x and of the rates."""

NAME = "prefillonly"

POST, CREDIT = WORKLOADS
SHUFFLED = f"{POST}:arrivals=requests"

LONGEST = {**WORKLOADS, SHUFFLED: WORKLOADS[POST]}
"""The longest prompt of each workload that is run, in tokens."""

TITLES = {POST: "post, whole users", CREDIT: "credit", SHUFFLED: "post, shuffled"}


class Point(NamedTuple):
    """A system on a set-up, under a workload."""

    setup: str
    workload: str
    system: str


@dataclass(frozen=True)
class Grid:
    """Per-seed metrics of every point at every rate, and with the whole dataset at once."""

    x: dict[tuple[str, str], float]
    """PrefillOnly's throughput with the whole dataset at once, requests/s, by set-up and workload."""
    at_once: Rows
    rows: Rows
    points: tuple[Point, ...]
    multiples: tuple[float, ...]
    seeds: tuple[int, ...]

    def qps(self, point: Point) -> list[float]:
        """Return the rates, in requests/s."""
        return [rate_of(self.x[point.setup, point.workload], multiple) for multiple in self.multiples]

    def per_seed(self, point: Point, multiple: float, metric: str) -> list[float]:
        """Return a metric's values in the order of the seeds."""
        return self._by_point[*point, multiple][metric]

    def capacity(self, point: Point) -> list[float]:
        """Return the throughput with the whole dataset at once in requests/s, in the order of the seeds.

        Empty for shuffled requests: at once they are the same as whole users.
        """
        return self._at_once_by_point.get(point, [])

    def systems(self, setup: str, workload: str) -> list[str]:
        """Return the systems whose maximum input length allows the workload, in Table 2's order."""
        return [p.system for p in self.points if (p.setup, p.workload) == (setup, workload)]

    def pairs(self) -> Iterator[tuple[str, str]]:
        """Yield every set-up and workload, workload by workload."""
        yield from dict.fromkeys((p.setup, p.workload) for p in self.points)

    def __post_init__(self) -> None:
        by_point: dict[Any, dict[str, list[float]]] = {}
        for row in self.rows:
            at = by_point.setdefault((row["setup"], row["workload"], row["system"], row["multiple"]), {})
            for metric in METRICS:
                at.setdefault(metric, []).append(float(row[metric]))
        at_once: dict[Any, list[float]] = {}
        for row in self.at_once:
            at_once.setdefault((row["setup"], row["workload"], row["system"]), []).append(float(row["throughput"]))
        object.__setattr__(self, "_by_point", by_point)
        object.__setattr__(self, "_at_once_by_point", at_once)

    _by_point: dict[Any, dict[str, list[float]]] = dataclasses.field(init=False, repr=False)
    _at_once_by_point: dict[Any, list[float]] = dataclasses.field(init=False, repr=False)


METRICS = ("jct_mean_ms", "jct_p99_ms", "throughput", "hit_rate", "rejected", "utilisation")
"""What of a run's summary the figures use."""


def rate_of(x: float, multiple: float) -> float:
    """Return the rate of a multiple of x, rounded so that equal throughputs make equal traces."""
    return float(f"{multiple * x:.{DIGITS}g}")


def cells_of(
    deployment: Deployment,
    workload: str,
    seeds: Sequence[int],
    point: dict[str, Any],
    *,
    rate: float | None = None,
    limit: int | None = None,
) -> tuple[Cell, ...]:
    """Return the cells of a deployment under a workload, one for each seed, that ``point`` tells from others.

    Raises:
        ConfigError, TraceError: if the workload cannot be made so.
    """
    draft = Draft()
    trace = {"workload": workload, "rate": rate, "limit": limit}
    settings = {
        **deployment.settings(),
        "name": NAME,
        "trace": {k: v for k, v in trace.items() if v is not None},
        "seeds": list(seeds),
        "keep": "summary",
    }
    for key, value in settings.items():
        draft.put(key, value, NAME)
    return tuple(dataclasses.replace(c, point=tuple(point.items())) for c in plan(draft).cells)


def run_cells_of(
    cells: Sequence[Cell],
    seeds: Sequence[int],
    folder: Path,
    *,
    resume: bool = False,
    jobs: int | None = None,
    progress: bool = False,
) -> Rows:
    """Run cells of several deployments as one sweep into ``folder``, and return a row for each.

    Raises:
        ConfigError: if the folder exists and ``resume`` is false, or a run has failed.
    """
    config = Config(name=NAME, seeds=tuple(seeds), keep="summary")
    experiment = Experiment(config, {}, tuple(cells), ("each cell has a configuration of its own",))
    sweep = run_sweep(experiment, out=folder, resume=resume, jobs=jobs, progress=progress)
    if sweep.failures:
        cell, error = sweep.failures[0]
        raise ConfigError(f"{len(sweep.failures)} runs failed; the first: {cell.describe()}: {error}")
    return summary_rows(experiment, sweep.results)


def run_grid(
    folder: Path,
    seeds: Sequence[int],
    *,
    setups: Sequence[str] = tuple(SETUPS),
    workloads: Sequence[str] = tuple(LONGEST),
    multiples: Sequence[float] = MULTIPLES,
    limit: int | None = None,
    resume: bool = False,
    jobs: int | None = None,
    progress: bool = False,
) -> Grid:
    """Run everything on the given seeds into ``folder/at-once`` and ``folder/rates``.

    Args:
        folder: for the results.
        seeds: of the workloads.
        setups: names of set-ups.
        workloads: of :data:`LONGEST`; with the shuffled one its plain one too.
        multiples: rates in units of x.
        limit: so many requests of each workload; all of them by default.
        resume: go on in a folder that exists.
        jobs: processes; by default all cores as far as the work is worth them.
        progress: draw a bar on stderr.

    Raises:
        ConfigError: if the folder exists and ``resume`` is false, or a run has failed.
    """
    shared: dict[str, Any] = {"resume": resume, "jobs": jobs, "progress": progress}
    deployed = {
        Point(setup, workload, system): deployment
        for workload in workloads
        for setup in setups
        for system, deployment in deployments(SETUPS[setup], LONGEST[workload]).items()
    }
    cells: list[Cell] = []
    for point, deployment in deployed.items():
        if ":" not in point.workload:
            at_once = f"{point.workload}:arrivals=all-at-once"
            cells += cells_of(deployment, at_once, seeds, point._asdict(), limit=limit)
    at_once_rows = run_cells_of(cells, seeds, folder / "at-once", **shared)
    throughputs: dict[tuple[str, str], list[float]] = {}
    for row in at_once_rows:
        if row["system"] == PREFILLONLY:
            throughputs.setdefault((row["setup"], row["workload"]), []).append(row["throughput"])
    x = {pair: rate_of(sum(values) / len(values), 1.0) for pair, values in throughputs.items()}
    x |= {(p.setup, p.workload): x[p.setup, p.workload.partition(":")[0]] for p in deployed}
    cells = []
    for point, deployment in deployed.items():
        for multiple in multiples:
            rate = rate_of(x[point.setup, point.workload], multiple)
            at = {**point._asdict(), "multiple": multiple, "qps": rate}
            cells += cells_of(deployment, point.workload, seeds, at, rate=rate, limit=limit)
    rows = run_cells_of(cells, seeds, folder / "rates", **shared)
    return Grid(x, at_once_rows, rows, tuple(deployed), tuple(multiples), tuple(seeds))
