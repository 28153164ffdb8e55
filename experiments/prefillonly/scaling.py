"""How λ should scale with the GPU's speed and with the spread of lengths: runs on two GPUs and two spreads.

Where λ has to keep P99 latency within a multiple of first come, first served's, the λ of least mean is the smallest
that does, since the mean grows with λ when nothing is shared. It is read off the mean P99 over seeds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from experiments.plotting import BLUE, ORANGE, RED, WIDE, new_figure, save_figure
from experiments.prefillonly.bench import Load, Point, aggregate, at_once, grouped, run_all, runs_of, saturation
from experiments.prefillonly.systems import Setup, deploy
from experiments.prefillonly.variations import LLM
from experiments.tables import Rows, csv_bytes
from experiments.tuning import speed_of
from sim.stats import FloatArray, bootstrap_interval
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

RESAMPLES = 999


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


def needed(over_fcfs: Sequence[float] | FloatArray, bound: float = BOUND) -> float:
    """Return the λ over speed from which on P99 keeps the bound.

    It is read between two λ of :data:`RATIOS`, as if P99 were linear over log λ; the least positive one of these stands
    for all below it, and for none that is needed.

    Args:
        over_fcfs: P99 over first come, first served's, for each of :data:`RATIOS`.
        bound: what it must not exceed.
    """
    over = np.flatnonzero(np.asarray(over_fcfs) > bound)
    k = int(over[-1]) if len(over) else 0
    low, high = RATIOS[k], RATIOS[k + 1]
    if low == 0 or math.isinf(high):
        return high if low == 0 else low
    share = (over_fcfs[k] - bound) / (over_fcfs[k] - over_fcfs[k + 1])
    return float(low * (high / low) ** share)


def needed_rows(rows: Rows, bound: float = BOUND) -> Rows:
    """Return, by GPU and spread, the λ over speed that the mean P99 needs, with the BCa interval over seeds.

    ``vs_first_gpu`` and ``vs_first_spread`` are ratios to the first GPU's and the first spread's, on the same seeds.
    """
    curves = {
        at: np.array([_over_fcfs(own) for own in grouped(group, ["seed"]).values()])
        for at, group in grouped(rows, ["gpu", "sigma"]).items()
    }
    speeds = {row["gpu"]: row["tokens_per_s"] for row in rows}
    table = []
    for (gpu, sigma), curve in curves.items():
        row: dict[str, Any] = {"gpu": gpu, "sigma": sigma, "tokens_per_s": speeds[gpu], "bound": bound}
        own = bootstrap_interval(curve, _reading(bound), resamples=RESAMPLES)
        row |= _named("needed_over_speed", own)
        row |= _named("needed_lam", tuple(v and v * speeds[gpu] for v in own))
        for name, other in (("gpu", (GPUS[0], sigma)), ("spread", (gpu, SIGMAS[0]))):
            both = np.hstack([curve, curves[other]])
            found = bootstrap_interval(both, _reading(bound), resamples=RESAMPLES)
            row |= _named(f"vs_first_{name}", found)
        table.append({**row, "seeds": len(curve)})
    return table


def _over_fcfs(rows: Rows) -> list[float]:
    ordered = sorted(rows, key=lambda row: row["ratio"])
    return [row["p99_s"] / ordered[-1]["p99_s"] for row in ordered]


def _reading(bound: float) -> Callable[..., FloatArray]:
    """Return a statistic of one curve, or the ratio of two that lie side by side."""

    def read(*columns: FloatArray, axis: int) -> FloatArray:
        means = np.stack([column.mean(axis=axis) for column in columns], axis=-1)
        curves = np.split(means, len(columns) // len(RATIOS), axis=-1)
        first, *second = [np.apply_along_axis(needed, -1, curve, bound) for curve in curves]
        return np.asarray(first / second[0] if second else first, dtype=np.float64)

    return read


def _named(name: str, interval: tuple[float | None, ...]) -> dict[str, float | None]:
    return dict(zip((name, f"{name}_lo", f"{name}_hi"), interval, strict=True))


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
        axes[0].set_ylim(bottom=0.8)
        handles, labels = axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=4)
        n = len({row["seed"] for row in rows})
        figure.suptitle(f"λ on two GPUs and two spreads of lengths, Llama-3.1-8B, {n} seeds; dotted: bound {BOUND:g}")
        return [path, *save_figure(figure, folder, "left-out-lambda", relative)]
