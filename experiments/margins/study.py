"""Late gaps, late requests and goodput with each kind of margin, when steps do not take what was predicted.

Run it with ``python -m experiments.margins.study FOLDER``.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import product
from math import exp
from pathlib import Path
from statistics import NormalDist

import numpy as np
from joblib import Parallel, delayed

from costmodels.base import CostModel
from costmodels.calibrated import CalibratedCost
from costmodels.conformal import calibrate
from costmodels.erring import PPM, ErringCost
from costmodels.io import load_cost_model
from costmodels.kernels import step_grid
from costmodels.linear_fit import LinearEstimator
from costmodels.margin import WithMargin
from experiments.margins.truth import DriftingCost
from experiments.plotting import BLUE, GREEN, ORANGE, RED, WIDE, new_figure, save_figure
from experiments.tables import Rows
from policies.spec import parse_policy
from sim.engine import simulate
from sim.metrics import summarise
from sim.objectives import Objectives
from traces.synthetic import generate

D_MS = 25
GOALS = f"ttft:1000,tpot_p99:{D_MS}"
BUSY = ("mixed", 80.0)
"""Workload and requests per second: not overloaded, so that few steps are filled to the deadline."""

FULL = ("long", 60.0)
"""Overloaded: nearly every step is."""

SEEDS = range(10)

REPEATS = 4

DRIFT_STEPS = 600
"""Steps before the driver update, some third of a run."""

MARGINS = {
    "none": "sloweave",
    "0.5 ms": "sloweave:margin=0.5",
    "5 %": "sloweave:margin=5%",
    "15 %": "sloweave:margin=15%",
    "p99 table": "sloweave:margin=p99",
    "conformal 99 %": "sloweave:margin=c99",
    "conformal 99.9 %": "sloweave:margin=c99.9",
    "guard, 100 steps": "fcfs+guarded:window=100",
    "guard, 1000 steps": "fcfs+guarded:window=1000",
    "guard on c99": "fcfs+guarded:margin=c99,window=1000",
}

QUANTILES = (0.5, 0.9, 0.95, 0.99, 0.995, 0.998, 0.999, 0.9999)

NOISE = 0.05


@dataclass(frozen=True)
class Truth:
    """What steps take, while a profile is measured and in the run."""

    measured: ErringCost
    drift: ErringCost | None = None
    at: int = 0
    """Steps of the run before ``drift`` sets in."""

    def cost(self, seed: int) -> CostModel:
        """Return a fresh cost model for one run."""
        before = replace(self.measured, seed=seed)
        if self.drift is None:
            return before
        return DriftingCost(before, replace(self.drift, seed=seed), self.at)


def truths() -> dict[str, Truth]:
    """Return the truths of the study by name."""
    exact = ErringCost(load_cost_model("sloweave-paper"))
    noisy = replace(exact, noise_ppm=20_000)
    longer = replace(noisy, bias_ppm=100_000)
    return {
        "as predicted": Truth(exact),
        "noise of 5 %": Truth(replace(exact, noise_ppm=round(NOISE * PPM))),
        "1 % of steps 30 % longer": Truth(replace(exact, overruns_ppm=10_000, longer_ppm=300_000)),
        "tiles of 128 tokens": Truth(replace(exact, tile=128)),
        "10 % longer than the profile": Truth(noisy, longer, 0),
        "10 % longer after an update": Truth(noisy, longer, DRIFT_STEPS),
    }


def predictor(truth: Truth) -> CalibratedCost:
    """Return the paper's linear form fitted to a profile of ``truth`` before any drift, with its margins."""
    grid = step_grid()
    steps = np.repeat(grid, REPEATS, axis=0)
    # A repeat is another step: it has noise of its own.
    models = [replace(truth.measured, seed=10_000 + r) for r in range(REPEATS)]
    ns = [models[k % REPEATS].step_ns(*step) for k, step in enumerate(steps.tolist())]
    shapes = np.repeat(np.arange(len(grid)), REPEATS)
    return replace(calibrate(LinearEstimator(), steps, ns, "fitted", groups=shapes), within=())


def run(truth: Truth, believed: CostModel, policy: str, seed: int, load: tuple[str, float] = BUSY) -> dict[str, float]:
    """Return what one run was like."""
    goals = Objectives.parse(GOALS)
    trace = generate(load[0], seed=seed, rate=load[1])
    chosen = parse_policy(policy)
    tables = simulate(
        trace, chosen, truth.cost(seed), predictor=believed, objectives=goals, stretch=truth.drift is None
    )
    n, late = tables.steps["n_decode"], tables.steps["duration_ns"] > D_MS * 10**6
    several = tables.requests["output_tokens"] > 1
    summary = summarise(tables.requests, tables.steps, goals)
    filled = (n > 0) & (tables.steps["prefill_tokens"] > 0)
    return {
        "late_steps": float(np.mean(late[filled])),
        "late_gaps": float((n * late).sum() / n.sum()),
        "late_requests": float(np.mean(tables.requests["tpot_p99_ns"][several] > D_MS * 10**6)),
        "goodput": summary["goodput"] or 0.0,
        "slo": summary["slo_attainment"] or 0.0,
        "ttft_p99_ms": summary["ttft_p99_ms"] or 0.0,
    }


Point = tuple[dict[str, object], Truth, CostModel, str, tuple[str, float]]


def margin_rows(seeds: Sequence[int] = SEEDS, jobs: int | None = None) -> Rows:
    """Return a row per truth and margin: means over seeds."""
    known = truths()
    believed = {name: predictor(truth) for name, truth in known.items()}
    points = [(name, margin, policy) for name in known for margin, policy in MARGINS.items()]
    return _means(
        [
            ({"truth": name, "margin": margin}, known[name], believed[name], policy, BUSY)
            for name, margin, policy in points
        ],
        seeds,
        jobs,
    )


def quantile_rows(seeds: Sequence[int] = SEEDS, jobs: int | None = None) -> Rows:
    """Return a row per quantile of a known noise that the margin covers: what share of requests is in time."""
    truth = truths()["noise of 5 %"]
    base = truth.measured.model
    points: list[Point] = []
    for load, q in product((BUSY, FULL), QUANTILES):
        share = Fraction(max(0, round((exp(NOISE * NormalDist().inv_cdf(q)) - 1) * 10**6)), 10**6)
        points.append(
            (
                {"workload": load[0], "quantile": q, "margin_percent": float(100 * share)},
                truth,
                WithMargin(base, 0, share),
                "sloweave",
                load,
            )
        )
    return _means(points, seeds, jobs)


def _means(points: Sequence[Point], seeds: Sequence[int], jobs: int | None) -> Rows:
    done = Parallel(n_jobs=jobs or 1)(
        delayed(run)(truth, believed, policy, seed, load)
        for _, truth, believed, policy, load in points
        for seed in seeds
    )
    rows: Rows = []
    for k, (about, *_) in enumerate(points):
        own = done[k * len(seeds) : (k + 1) * len(seeds)]
        rows.append({**about, **{metric: float(np.mean([r[metric] for r in own])) for metric in own[0]}})
    return rows


def draw(margins: Rows, quantiles: Rows, folder: Path) -> list[Path]:
    """Write the two pictures and the numbers behind them.

    Raises:
        OSError: if they cannot be written.
    """
    files = []
    names = list(dict.fromkeys(str(r["truth"]) for r in margins))
    with new_figure(WIDE, 4.6) as figure:
        axes = figure.subplots(2, 3, sharex=True, sharey=True)
        for axis, name in zip(axes.flat, names, strict=True):
            own = [r for r in margins if r["truth"] == name][::-1]
            kinds = [str(row["margin"]) for row in own]
            late = [100 * row["late_requests"] for row in own]
            axis.barh(kinds, late, color=[_colour(kind) for kind in kinds])
            for at, row in enumerate(own):
                axis.text(103, at, f"{row['goodput']:.0f}", fontsize=6, va="center")
            axis.set_title(name, fontsize=8)
            axis.set_xlim(0, 100)
            axis.grid(False, axis="y")
            axis.tick_params(labelsize=6)
        for axis in axes[1]:
            axis.set_xlabel("late requests (%)", fontsize=7)
        figure.suptitle(f"Requests with a P99 gap above {D_MS} ms; beside the bars, goodput in requests/s", fontsize=9)
        files += save_figure(figure, folder, "margins", margins)
    with new_figure(WIDE / 2, 2.6) as figure:
        axis = figure.subplots()
        for (workload, _), line in ((BUSY, "o-"), (FULL, "s--")):
            own = [r for r in quantiles if r["workload"] == workload]
            over = [100 * (1 - float(r["quantile"])) for r in own]
            for metric, label, colour in (("late_requests", "late requests", RED), ("late_gaps", "late gaps", BLUE)):
                shares = [100 * float(r[metric]) for r in own]
                axis.plot(over, shares, line, color=colour, markersize=3, label=f"{label}, {workload}")
        axis.axhline(2, color="0.5", linewidth=0.8)
        axis.set_xscale("log")
        axis.set_yscale("symlog", linthresh=0.1)
        axis.set_xlabel("steps beyond the margin's quantile (%)")
        axis.set_ylabel("%")
        axis.set_ylim(0, 100)
        axis.legend(fontsize=6)
        files += save_figure(figure, folder, "quantiles", quantiles)
    return files


def _colour(margin: str) -> str:
    """Return one colour each for fixed, calibrated and guarded margins."""
    return GREEN if margin.startswith("guard") else BLUE if margin[0] in "pc" else ORANGE


def main(folder: str) -> None:
    """Run the study into ``folder``."""
    out = Path(folder)
    out.mkdir(parents=True, exist_ok=True)
    draw(margin_rows(jobs=2), quantile_rows(jobs=2), out)


if __name__ == "__main__":
    main(sys.argv[1])
