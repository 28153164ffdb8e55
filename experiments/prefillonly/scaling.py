"""How λ should scale with the GPU's speed and with the spread of lengths: runs on two GPUs and two spreads.

Where λ has to keep P99 latency within a multiple of first come, first served's, the λ of least mean is the smallest
that does, since the mean grows with λ when nothing is shared. It is read off per seed, between the λ of a grid.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from experiments.plotting import BLUE, ORANGE, RED, WIDE, new_figure, save_figure
from experiments.prefillonly.bench import Load, Point, aggregate, at_once, grouped, run_all, runs_of, saturation
from experiments.prefillonly.systems import Setup, deploy
from experiments.prefillonly.variations import LLM
from experiments.tables import Rows, csv_bytes
from experiments.tuning import speed_of
from sim.stats import paired, t_interval
from sim.store import atomic_write

GPUS = ("l4", "h100-pcie")

SIGMAS = (0.2, 0.8)
"""Of log-normal lengths with one mean."""

RATIOS = (0.0, *(2.0**k for k in range(-7, 2)), math.inf)
"""λ over the speed of prefilling."""

LONGEST = 60_000

UTILISATION = 0.9

BOUND = 1.2
"""P99 latency over that of first come, first served."""

LABEL = "needed"


def scaling_runs(seeds: Sequence[int], jobs: int | None = None) -> Rows:
    """Run every λ on each GPU and spread; rows have ``gpu``, ``sigma``, ``ratio``, ``lam``, ``tokens_per_s``."""
    points: list[Point] = []
    for gpu in GPUS:
        system = deploy(Setup(gpu, gpu, gpu, LLM, "pcie"), "prefillonly", LONGEST)
        speed = speed_of(system.cost_model())
        for sigma in SIGMAS:
            workload = f"credit-verification:users=600,profile_mean=15000,profile_sigma={sigma:g},clip=1000-{LONGEST}"
            rate = UTILISATION * saturation(system, at_once(workload), tuple(seeds), jobs)
            for ratio in RATIOS:
                at = {"gpu": gpu, "sigma": sigma, "ratio": ratio, "lam": ratio * speed, "tokens_per_s": speed}
                policy = f"prefillonly:lam={ratio * speed:.9g}"
                points.append((at, system.with_policy(policy), Load(workload, rate)))
    return run_all(runs_of(points, seeds), jobs)


def relative_rows(rows: Rows) -> Rows:
    """Return one row per GPU, spread and λ: mean and P99 over those at λ=inf, of the same seed, with intervals."""
    reference = {(r["gpu"], r["sigma"], r["seed"]): r for r in rows if math.isinf(r["ratio"])}
    relative = []
    for row in rows:
        fcfs = reference[row["gpu"], row["sigma"], row["seed"]]
        changed = {f"{m}_over_fcfs": row[f"{m}_s"] / fcfs[f"{m}_s"] for m in ("mean", "p99")}
        relative.append({**row, **changed})
    by = ("gpu", "sigma", "ratio", "lam", "tokens_per_s")
    return aggregate(relative, by, ("mean_over_fcfs", "p99_over_fcfs"))


def needed(rows: Rows, bound: float = BOUND) -> float | None:
    """Return the smallest λ over speed that keeps the bound, of one seed's rows; ``None`` where 0 does already.

    Above it every λ of the grid keeps the bound too. Between two λ of the grid P99 is taken as linear over log λ.
    """
    ordered = sorted(rows, key=lambda row: row["ratio"])
    excess = [row["p99_s"] / ordered[-1]["p99_s"] - bound for row in ordered]
    over = [k for k, e in enumerate(excess) if e > 0]
    if not over:
        return None
    k = over[-1]
    low, high = ordered[k]["ratio"], ordered[k + 1]["ratio"]
    if low == 0 or math.isinf(high):
        return float(high if low == 0 else low)
    share = excess[k] / (excess[k] - excess[k + 1])
    return float(low * (high / low) ** share)


def needed_rows(rows: Rows, bound: float = BOUND) -> Rows:
    """Return, by GPU and spread, the λ over speed that is needed: geometric mean and 95 % interval over seeds.

    ``vs_first`` is its ratio to that of the first GPU, paired by seed, and to that of the first spread likewise.
    """
    logs = {
        at: [None if (found := needed(own, bound)) is None else math.log(found) for own in _by_seed(group)]
        for at, group in grouped(rows, ["gpu", "sigma", "tokens_per_s"]).items()
    }
    by_place = {(gpu, sigma): values for (gpu, sigma, _), values in logs.items()}
    table = []
    for (gpu, sigma, speed), values in logs.items():
        row: dict[str, Any] = {"gpu": gpu, "sigma": sigma, "tokens_per_s": speed, "bound": bound}
        row |= _exponentials(f"{LABEL}_over_speed", t_interval(values))
        row |= {f"{LABEL}_lam{end}": v and v * speed for end, v in _ends(row, f"{LABEL}_over_speed")}
        row |= _exponentials("vs_first_gpu", paired(values, by_place[GPUS[0], sigma]).difference)
        row |= _exponentials("vs_first_spread", paired(values, by_place[gpu, SIGMAS[0]]).difference)
        table.append({**row, "seeds": sum(v is not None for v in values)})
    return table


def _by_seed(rows: Rows) -> list[Rows]:
    return list(grouped(rows, ["seed"]).values())


def _ends(row: dict[str, Any], name: str) -> list[tuple[str, float | None]]:
    return [(end, row[name + end]) for end in ("", "_lo", "_hi")]


def _exponentials(name: str, interval: tuple[float | None, float | None, float | None]) -> dict[str, float | None]:
    ends = zip(("", "_lo", "_hi"), interval, strict=True)
    return {name + end: None if v is None else math.exp(v) for end, v in ends}


def draw_scaling(folder: Path, seeds: Sequence[int], jobs: int | None = None) -> list[Path]:
    """Write P99 and mean latency over λ in tokens per second and over λ in units of speed, and the λ that is needed.

    Raises:
        OSError: if something cannot be written.
    """
    rows = scaling_runs(seeds, jobs)
    relative = relative_rows(rows)
    path = folder / "left-out-lambda-needed.csv"
    atomic_write(path, csv_bytes(needed_rows(rows)))
    with new_figure(WIDE, 3.0) as figure:
        axes = figure.subplots(1, 2, sharey=True)
        for axis, x, label in ((axes[0], "lam", "λ (tokens/s)"), (axes[1], "ratio", "λ / tokens prefilled per second")):
            for gpu, colour in zip(GPUS, (BLUE, ORANGE), strict=True):
                for sigma, line in zip(SIGMAS, ("o-", "^--"), strict=True):
                    own = [r for r in relative if (r["gpu"], r["sigma"]) == (gpu, sigma) and 0 < r["ratio"] < math.inf]
                    at = np.array([r[x] for r in own])
                    axis.plot(
                        at, [r["p99_over_fcfs"] for r in own], line, color=colour, label=f"{gpu}, sigma {sigma:g}"
                    )
                    ends = [[r[f"p99_over_fcfs_{end}"] for r in own] for end in ("lo", "hi")]
                    if None not in ends[0]:
                        axis.fill_between(at, *ends, color=colour, alpha=0.12)
            axis.axhline(BOUND, color=RED, linestyle=":", linewidth=1.2)
            axis.set_xscale("log")
            axis.set_xlabel(label)
        axes[0].set_ylabel("P99 latency over FCFS's")
        axes[0].set_ylim(0.8, 3.5)
        handles, labels = axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=4)
        n = len({row["seed"] for row in rows})
        figure.suptitle(f"λ on two GPUs and two spreads of lengths, Llama-3.1-8B, {n} seeds; dotted: bound {BOUND:g}")
        return [path, *save_figure(figure, folder, "left-out-lambda", relative)]
