"""Runs of systems on loads over seeds, and their metrics with paired intervals."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from experiments.prefillonly.systems import WORKLOADS, Deployment
from experiments.tables import Rows
from policies.units import NS
from sim.metrics import summarise
from sim.objectives import Objectives
from sim.records import FINISHED, REJECTED
from sim.stats import paired, percentiles, t_interval
from traces.schema import Trace
from traces.synthetic import generate

METRICS = (
    "finished",
    "rejected",
    "throughput",
    "hit_rate",
    "reloads",
    "mean_s",
    "p50_s",
    "p99_s",
    "longest_wait_s",
    "utilisation",
)
"""Of each run: finished and rejected requests, finished ones per second, what the prefix cache served as a share of
prompts, requests that found less than half of their prompt in it, latencies in seconds, busy time as a share."""

PERCENTS = tuple(range(101))

POST, CREDIT = WORKLOADS

GAP_S = 0.2
"""Mean gap between a user's requests where they come over time: 50 of them in some 10 s."""

MODES = {
    "users": "whole users at once",
    "requests": "requests shuffled",
    "spread": "a user's requests over time",
}
"""How requests come: a user's all together, each on its own, or a user's one after the other, :data:`GAP_S` apart."""


class Load(NamedTuple):
    """A workload with its parameters, see :func:`traces.synthetic.find_workload`, and its requests per second."""

    workload: str
    rate: float | None
    """``None`` where all are there at the start."""


@dataclass(frozen=True)
class Run:
    """One system on one load; ``at`` says which it is, in the rows that come of it."""

    at: tuple[tuple[str, Any], ...]
    deployment: Deployment
    load: Load
    seed: int
    curve: bool = False
    """Whether latency's percentiles from 0 to 100 are kept, as ``percentiles_s``."""


Point = tuple[Mapping[str, Any], Deployment, Load]
"""What it is, the system and the load."""


def arriving(mode: str, rate: float, workload: str = POST) -> Load:
    """Return a workload whose requests come as :data:`MODES` says."""
    if mode == "spread":
        return Load(_with(workload, f"arrivals=spread,active={GAP_S * rate:.6g}"), rate)
    return Load(_with(workload, f"arrivals={mode}"), rate)


def _with(workload: str, parameters: str) -> str:
    return f"{workload}{',' if ':' in workload else ':'}{parameters}"


def at_once(workload: str = POST) -> Load:
    """Return a workload that is all there at the start."""
    return Load(_with(workload, "arrivals=all-at-once"), None)


def runs_of(points: Iterable[Point], seeds: Sequence[int], curve: bool = False) -> list[Run]:
    """Return the runs of every point on every seed."""
    return [Run(tuple(at.items()), d, load, seed, curve) for at, d, load in points for seed in seeds]


def run_all(runs: Sequence[Run], jobs: int | None = None) -> Rows:
    """Simulate, on ``jobs`` processes, by default all cores, and return one row for each run, in their order."""
    from joblib import Parallel, delayed, parallel_config

    # Runs of one trace are neighbours, so that it is made once.
    order = sorted(range(len(runs)), key=lambda i: (repr(runs[i].load), runs[i].seed))
    if jobs == 1:
        made = [measure(runs[i]) for i in order]
    else:
        with parallel_config("loky", inner_max_num_threads=1):
            made = Parallel(n_jobs=jobs or -1, batch_size=4)(delayed(measure)(runs[i]) for i in order)
    rows: Rows = [{}] * len(runs)
    for i, row in zip(order, made, strict=True):
        rows[i] = row
    return rows


@lru_cache(maxsize=4)
def _trace(load: Load, seed: int) -> Trace:
    return generate(load.workload, seed, rate=load.rate)


def measure(run: Run) -> dict[str, Any]:
    """Simulate one run and return its row: ``at``, ``seed`` and :data:`METRICS`."""
    tables = run.deployment.run(_trace(run.load, run.seed))
    requests = tables.requests
    summary = summarise(requests, tables.steps, Objectives())
    outcome, cached = requests["outcome"], requests["cached_tokens"]
    done = outcome == FINISHED
    row = {
        **dict(run.at),
        "seed": run.seed,
        "finished": int(done.sum()),
        "rejected": int((outcome == REJECTED).sum()),
        "throughput": summary["throughput"],
        "hit_rate": summary["hit_rate"],
        "reloads": int(np.count_nonzero(done & (2 * cached < requests["prompt_tokens"]))),
        "mean_s": _seconds(summary["jct_mean_ms"]),
        "p50_s": _seconds(summary["jct_p50_ms"]),
        "p99_s": _seconds(summary["jct_p99_ms"]),
        "longest_wait_s": _seconds(summary["longest_wait_ms"]),
        "utilisation": summary["utilisation"],
    }
    if run.curve:
        row["percentiles_s"] = [v / NS for v in percentiles(requests["jct_ns"][done], PERCENTS)]
    return row


def saturation(deployment: Deployment, load: Load, seeds: Sequence[int], jobs: int | None = None) -> float:
    """Return the mean throughput over seeds, in requests per second, to three digits: the paper's x for ``at_once``."""
    rows = run_all(runs_of([({}, deployment, load)], seeds), jobs)
    return float(f"{sum(row['throughput'] for row in rows) / len(rows):.3g}")


def _seconds(ms: float | None) -> float | None:
    return None if ms is None else ms / 1000


def aggregate(rows: Rows, by: Sequence[str], metrics: Sequence[str] = METRICS) -> Rows:
    """Return one row per value of ``by``: the mean over seeds of each metric, and its 95 % interval as ``_lo, _hi``."""
    result = []
    for at, group in grouped(rows, by).items():
        row: dict[str, Any] = dict(zip(by, at, strict=True))
        for metric in metrics:
            row[metric], row[f"{metric}_lo"], row[f"{metric}_hi"] = t_interval([r[metric] for r in group])
        result.append({**row, "seeds": len(group)})
    return result


def grouped(rows: Rows, by: Sequence[str]) -> dict[tuple[Any, ...], Rows]:
    """Return rows by their values of ``by``, in order of appearance; in each group by seed."""
    groups: dict[tuple[Any, ...], Rows] = {}
    for row in rows:
        groups.setdefault(tuple(row[name] for name in by), []).append(row)
    return {at: sorted(group, key=lambda row: row["seed"]) for at, group in groups.items()}


def differences(
    rows: Rows, by: Sequence[str], over: str, base: Any | Callable[[Any], Any], metrics: Sequence[str]
) -> Rows:
    """Return, beside each value of ``over``, what a metric is there less at ``base``, paired by seed.

    Args:
        rows: from :func:`run_all`.
        by: what the two share.
        over: what they differ in.
        base: the value to compare with, or what gives it for each value.
        metrics: which to compare.

    Returns:
        One row per group, value and metric: ``difference, lo, hi, significant`` (95 %), and ``base``.
    """
    groups = grouped(rows, [*by, over])
    result = []
    for (*at, value), group in groups.items():
        other = base(value) if callable(base) else base
        against = groups.get((*at, other))
        if other == value or against is None:
            continue
        for metric in metrics:
            found = paired([r[metric] for r in group], [r[metric] for r in against])
            mean, lo, hi = found.difference
            result.append(
                {
                    **dict(zip(by, at, strict=True)),
                    over: value,
                    "base": other,
                    "metric": metric,
                    "difference": mean,
                    "lo": lo,
                    "hi": hi,
                    "significant": found.significant,
                }
            )
    return result
