"""The fairness λ that makes mean latency least while P99 latency keeps a bound, with the whole trade-off curve.

λ is in tokens per second: a second of waiting outweighs λ uncached tokens. Measured against the speed at which the
engine prefills, v tokens per second, it is a number without unit: how many seconds of service a second of waiting
outweighs. Time stretched by k with λ/k, or tokens stretched by m with λ·m, leaves every decision as it was, so the
grid is one of λ/v.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from costmodels.base import CostModel
from costmodels.jct import ns_per_token
from experiments.axes import Experiment, plan
from experiments.bound import Bound
from experiments.compare import Estimate, run_warnings
from experiments.config import ConfigError
from experiments.draft import Draft
from experiments.folders import RUNS, latest
from experiments.sweep import run_sweep
from experiments.tables import Rows, summary_rows
from policies.units import NS
from sim.stats import paired

FCFS = math.inf
"""The λ that is first come, first served."""

DECADES = (-3, 1)
"""The grid of λ/v, in powers of ten; 0 and inf besides."""

PER_DECADE = 3

NAME = "tune-lambda"

METRICS = ("jct_mean_ms", "jct_p50_ms", "jct_p99_ms", "longest_wait_ms")

DEFINITIONS = {
    "lam": "fairness λ in tokens per second; 0 is shortest job first, inf is first come, first served",
    "lam_over_speed": "λ over the speed of prefilling, the inverse of what one more uncached token takes",
    "jct": "finished - arrival, in ms, over the finished requests of a run; mean, median and P99",
    "longest_wait": "the longest arrival to first scheduled, in ms",
    "meets_bound": "the mean over seeds of P99 JCT less its bound is at most 0, and no request is unfinished",
    "ci95": "t-interval of the per-seed values",
    "versus_fcfs": "what is changed from λ=inf, paired by seed",
    "tied": "λ whose mean JCT no paired 95 % interval tells from that of the chosen one, and that meet the bound",
    "check": "the chosen λ and λ=inf again on as many seeds that took no part in the choice",
}


@dataclass(frozen=True)
class Tuned:
    """A trade-off curve and what was chosen on it."""

    experiment: Experiment
    bound: Bound
    speed: float
    """Tokens per second that the engine prefills: the inverse of what one more uncached token takes."""
    curve: Rows
    """One row per λ, in rising order; see :func:`curve_rows`."""
    chosen: dict[str, Any] | None
    """The row of least mean among those that meet the bound; ``None`` where none does."""
    tied: list[float]
    check: Rows
    """On other seeds: the rows of λ chosen and of inf; empty where nothing was chosen, or no seed differs."""
    warnings: list[str]
    """What a reader of the curve should know, like how many requests were turned away."""
    failures: list[str]

    @property
    def nearest(self) -> dict[str, Any]:
        """The row that overshoots the bound least."""
        return _least_excess(self.curve)

    def document(self) -> dict[str, Any]:
        """Return the JSON form."""
        cell = self.experiment.cells[0]
        return {
            "lam": self.chosen and self.chosen["lam"],
            "lam_over_speed": self.chosen and self.chosen["lam_over_speed"],
            "tokens_per_s": self.speed,
            "bound": self.bound.text,
            "tied": self.tied,
            "chosen": self.chosen,
            "nearest": None if self.chosen else self.nearest,
            "curve": self.curve,
            "check": self.check,
            "policy": cell.label,
            "trace": cell.source.label,
            "requests": cell.requests,
            "seeds": sorted({c.seed for c in self.experiment.cells}),
            "cost_model": cell.cost.to_dict(),
            "warnings": self.warnings,
            "failures": self.failures,
            "definitions": DEFINITIONS,
        }


def speed_of(cost: CostModel) -> float:
    """Return the tokens per second against which λ is measured: the inverse of what one more uncached token takes."""
    return NS / ns_per_token(cost)


def default_grid(speed: float) -> list[float]:
    """Return λ from 0 to inf in tokens per second: :data:`DECADES` of ``speed``, to two digits."""
    first, last = (PER_DECADE * decade for decade in DECADES)
    return [0.0, *(_two_digits(speed * 10 ** (k / PER_DECADE)) for k in range(first, last + 1)), FCFS]


def new_folder(resume: bool) -> Path:
    """Return ``runs/tune-lambda``, with a number where there is one already; to resume, the newest that there is."""
    newest = latest(NAME)
    if newest is None:
        return RUNS / NAME
    return newest if resume else RUNS / f"{NAME}-{1 + int(newest.name.removeprefix(NAME).lstrip('-') or 1)}"


def parse_lams(text: str) -> list[float]:
    """Read ``100,500,2000``: λ in tokens per second, in rising order.

    Raises:
        ConfigError: if one is not a number, or negative.
    """
    values = []
    for part in text.split(","):
        try:
            value = float(part)
        except ValueError:
            value = math.nan
        if not value >= 0:
            raise ConfigError(f"--lams has {part.strip()!r}, but λ should be a number of tokens/s, at least 0, or inf")
        values.append(value)
    return sorted(set(values))


def _two_digits(value: float) -> float:
    return float(f"{value:.2g}")


def tune(
    draft: Draft,
    bound: Bound,
    *,
    grid: Sequence[float] | None = None,
    rounds: int = 2,
    out: Path,
    resume: bool = False,
    jobs: int | None = None,
    progress: bool = False,
) -> Tuned:
    """Run one policy under every λ of a grid, refine the grid around the best, and try that one on other seeds.

    Args:
        draft: trace, memory, cost model, seeds and one policy that has a ``lam``.
        bound: of P99 JCT.
        grid: λ in tokens per second; by default :func:`default_grid`. 0 and inf are always in it.
        rounds: how often to add a λ halfway, on a logarithmic scale, to both neighbours of the best.
        out: a new folder.
        resume: go on in a folder that exists.
        jobs: processes.
        progress: draw bars on stderr.

    Raises:
        ConfigError: if there are several policies or further axes, or the policy has no λ.
        ConfigError, PolicyError, CostModelError, TraceError: see :func:`experiments.axes.plan`.
    """
    first = plan(_with_grid(draft, [FCFS]))
    _check(first)
    cell = first.cells[0]
    speed = speed_of(cell.predictor or cell.cost)
    values = sorted({0.0, FCFS, *(default_grid(speed) if grid is None else grid)})
    for turn in range(rounds + 1):
        experiment = plan(_with_grid(draft, values))
        sweep = run_sweep(
            experiment, out=out / "curve", resume=resume or turn > 0, jobs=jobs, progress=progress, within=out
        )
        curve = curve_rows(summary_rows(experiment, sweep.results), bound, speed)
        chosen = best(curve)
        more = sorted({*values, *_halfway(values, (chosen or _least_excess(curve))["lam"])})
        if more == values or sweep.failures:
            break
        if turn < rounds:
            values = more
    tied = [] if chosen is None else _tied(curve, chosen)
    check = _check_rows(draft, chosen, experiment, bound, speed, out, resume, jobs, progress)
    warnings = [*experiment.notes, *run_warnings(sweep)]
    return Tuned(experiment, bound, speed, curve, chosen, tied, check, warnings, sweep.failure_lines)


def _with_grid(draft: Draft, values: Sequence[float]) -> Draft:
    changed = draft.copy()
    changed.put("sweep.lam", list(values), "--lams", "options")
    changed.put("keep", "summary", "tune-lambda")
    return changed


def _check(experiment: Experiment) -> None:
    labels = list(dict.fromkeys(cell.label for cell in experiment.cells))
    if len(labels) > 1:
        raise ConfigError(f"tune-lambda tunes one policy, but there are {', '.join(labels)}; give one, with -p")
    others = [axis for axis in experiment.axes if axis != "lam"]
    if others:
        raise ConfigError(f"tune-lambda varies λ alone, but [sweep] has {', '.join(others)}")


def curve_rows(rows: Rows, bound: Bound, speed: float) -> Rows:
    """Return one row per λ of a sweep's table.

    Each has ``lam``, ``lam_over_speed``; of every metric an :class:`~experiments.compare.Estimate` document; by
    ``versus_fcfs`` the paired change of mean and P99 from λ=inf; ``excess_ms`` over the bound, its ``excess_ci95``,
    ``unfinished`` requests, and ``meets_bound``.
    """
    groups: dict[float, Rows] = {}
    for row in sorted(rows, key=lambda row: (row["lam"], row["seed"])):
        groups.setdefault(float(row["lam"]), []).append(row)
    fcfs = groups[FCFS]
    curve = []
    for lam, group in groups.items():
        per_seed = {metric: [row.get(metric) for row in group] for metric in METRICS}
        excess = Estimate.of(bound.excess(per_seed["jct_p99_ms"], [row.get("jct_p99_ms") for row in fcfs]))
        unfinished = sum(row.get("unfinished") or 0 for row in group)
        curve.append(
            {
                "lam": lam,
                "lam_over_speed": lam / speed,
                **{metric: Estimate.of(values).document() for metric, values in per_seed.items()},
                "versus_fcfs": {
                    metric: _change(per_seed[metric], [row.get(metric) for row in fcfs])
                    for metric in ("jct_mean_ms", "jct_p99_ms")
                },
                "excess_ms": excess.mean,
                "excess_ci95": excess.ci95,
                "unfinished": unfinished,
                "meets_bound": excess.mean is not None and excess.mean <= 0 and not unfinished,
            }
        )
    return curve


def _change(values: Sequence[float | None], reference: Sequence[float | None]) -> dict[str, Any]:
    found = paired(values, reference)
    mean, lo, hi = found.difference
    return {"difference": mean, "ci95": (lo, hi), "significant": found.significant}


def best(curve: Rows) -> dict[str, Any] | None:
    """Return the row of least mean JCT that meets the bound, of equals the one with the largest λ; ``None`` if none."""
    able = [row for row in curve if row["meets_bound"]]
    return min(able, key=lambda row: (row["jct_mean_ms"]["mean"], -row["lam"]), default=None)


def _least_excess(curve: Rows) -> dict[str, Any]:
    return min(curve, key=lambda row: (row["excess_ms"] is None, row["excess_ms"] or 0.0, -row["lam"]))


def _halfway(values: Sequence[float], lam: float) -> list[float]:
    """Return λ between the best and its neighbours, where these are neither 0 nor inf."""
    at = values.index(lam)
    near = [values[i] for i in (at - 1, at + 1) if 0 <= i < len(values)]
    return [_two_digits(math.sqrt(lam * v)) for v in near if 0 < v < FCFS and 0 < lam < FCFS]


def _tied(curve: Rows, chosen: dict[str, Any]) -> list[float]:
    least = chosen["jct_mean_ms"]["per_seed"]
    if len(least) < 2:
        return [chosen["lam"]]
    return [
        row["lam"]
        for row in curve
        if row["meets_bound"] and not paired(row["jct_mean_ms"]["per_seed"], least).significant
    ]


def _check_rows(
    draft: Draft,
    chosen: dict[str, Any] | None,
    experiment: Experiment,
    bound: Bound,
    speed: float,
    out: Path,
    resume: bool,
    jobs: int | None,
    progress: bool,
) -> Rows:
    """Run the chosen λ and inf on seeds after those of the choice, whose luck the choice has partly used."""
    seeds = sorted({cell.seed for cell in experiment.cells})
    if chosen is None or not experiment.cells[0].source.seeded:
        return []
    fresh = draft.copy()
    fresh.put("seeds", [seeds[-1] + 1 + k for k in range(len(seeds))], "the seeds of the check", "check")
    other = plan(_with_grid(fresh, sorted({chosen["lam"], FCFS})))
    sweep = run_sweep(other, out=out / "check", resume=resume, jobs=jobs, progress=progress, within=out)
    return [] if sweep.failures else curve_rows(summary_rows(other, sweep.results), bound, speed)
