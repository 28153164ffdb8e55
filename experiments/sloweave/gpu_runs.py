"""The runs behind SLOWeave's GPU table: chunks and budgets are tuned first, then every row runs on the same seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from experiments.costmodels_shown import beyond_range
from experiments.sloweave.gpu_blocks import OBJECTIVES, SLOWEAVE_POLICY, Block, GpuExperiment
from experiments.tables import Rows
from policies.spec import parse_policy
from sim.engine import simulate
from sim.metrics import summarise
from sim.records import Tables
from sim.stats import bootstrap_interval, pooled_ratio, t_interval

TUNING = 1000
"""First of the seeds that choose chunks and budgets."""

DEFAULT, FIXED, PRINTED_CHUNK, SHARED, OURS = "default", "fixed", "printed", "shared", "sloweave"

KEPT = ("ttft_p99_ms", "tpot_p99_ms", "throughput", "goodput", "energy_j", "preemptions", "utilisation")

Roles = Mapping[str, str]
"""Policy by role."""


@dataclass(frozen=True)
class GpuRuns:
    """Rows per block, target, policy and seed, and which policy has which role in a block under a target."""

    experiment: GpuExperiment
    rows: Rows
    tuning: Rows
    roles: Mapping[tuple[str, str], Roles]
    _by: dict[tuple[str, str, str], Rows] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        by: dict[tuple[str, str, str], Rows] = {}
        for row in self.rows:
            by.setdefault((row["block"], row["target"], row["policy"]), []).append(row)
        object.__setattr__(self, "_by", by)

    @property
    def seeds(self) -> int:
        """How many seeds there are."""
        return len({row["seed"] for row in self.rows})

    def per_seed(self, block: Block, target: str, role: str, metric: str) -> list[float]:
        """Return a metric's values in the order of the seeds."""
        return [row[metric] for row in self._by[block.name, target, self.roles[block.name, target][role]]]

    def estimates(self, block: Block, target: str, role: str) -> dict[str, float | None]:
        """Return the mean and the 95 % interval of each column of Table 2.

        Joules per valid request are those of all seeds together: a seed without a valid request spent its energy too.
        They have an interval where every seed has valid requests.
        """
        found: dict[str, float | None] = {}
        for metric in ("ttft_p99_ms", "tpot_p99_ms", "throughput", "slo_percent", "goodput"):
            interval = t_interval(self.per_seed(block, target, role, metric))
            found |= {metric: interval.mean, f"{metric}_lo": interval.lo, f"{metric}_hi": interval.hi}
        joules, valid = (self.per_seed(block, target, role, m) for m in ("energy_j", "valid"))
        per_valid = bootstrap_interval(np.column_stack([joules, valid]), pooled_ratio) if min(valid) else None
        return found | {
            "joules_per_valid": sum(joules) / sum(valid) if sum(valid) else None,
            "joules_per_valid_lo": per_valid and per_valid.lo,
            "joules_per_valid_hi": per_valid and per_valid.hi,
        }


def run_gpu(experiment: GpuExperiment, seeds: Sequence[int], jobs: int | None = None) -> GpuRuns:
    """Tune, then run everything.

    Args:
        experiment: blocks and policies.
        seeds: of the workloads; tuning has seeds of its own.
        jobs: processes; by default all cores.
    """
    from joblib import Parallel, delayed

    blocks = experiment.blocks
    for block in blocks:
        assert block.scale > 0  # measured once, here, and not by every process
    tuned = list(experiment.tuned())
    work = [(b, s, tuned) for b in blocks for s in range(TUNING, TUNING + experiment.tuning_seeds)]
    with Parallel(n_jobs=jobs or -1) as parallel:
        tuning = [row for part in parallel(delayed(run_seed)(*w) for w in work) for row in part]
        roles = {(b.name, t): choose(experiment, b, t, tuning) for b in blocks for t in OBJECTIVES}
        chosen = {b: list(dict.fromkeys(p for t in OBJECTIVES for p in roles[b.name, t].values())) for b in blocks}
        work = [(b, s, chosen[b]) for b in blocks for s in seeds]
        rows = [row for part in parallel(delayed(run_seed)(*w) for w in work) for row in part]
    return GpuRuns(experiment, rows, tuning, roles)


def choose(experiment: GpuExperiment, block: Block, target: str, tuning: Rows) -> Roles:
    """Return which policy each row of the table has: of chunks and of budgets those with the largest mean goodput."""
    total: dict[str, float] = {}
    for row in tuning:
        if (row["block"], row["target"]) == (block.name, target):
            total[row["policy"]] = total.get(row["policy"], 0.0) + row["goodput"]
    return {
        DEFAULT: block.default,
        FIXED: max(experiment.fixed, key=lambda policy: total[policy]),
        PRINTED_CHUNK: f"fcfs+fixed:chunk={block.printed_chunk}",
        SHARED: max(experiment.shared, key=lambda policy: total[policy]),
        OURS: SLOWEAVE_POLICY,
    }


def run_seed(block: Block, seed: int, policies: Sequence[str]) -> Rows:
    """Run policies on one seed, and measure them against each target; those that know of none run once for all.

    ``beyond`` says where the cost model was used for larger steps than it was fitted to.
    """
    with beyond_range() as said:
        rows = [row for policy in policies for row in _run(block, seed, policy)]
    return [row | {"beyond": "; ".join(said)} for row in rows]


def _run(block: Block, seed: int, policy: str) -> Rows:
    trace, cost = block.trace(seed), block.cost
    tables: Tables | None = None
    rows: Rows = []
    for target in OBJECTIVES:
        goals = block.objectives(target)
        if tables is None or policy == SLOWEAVE_POLICY:
            tables = simulate(trace, parse_policy(policy), cost, objectives=goals, cache=block.memory.build(trace))
        summary = summarise(tables.requests, tables.steps, goals, tables.preemptions, energy=block.energy)
        valid = round(float(summary["slo_attainment"] or 0.0) * len(trace))
        rows.append(
            {
                "block": block.name,
                "target": target,
                "policy": policy,
                "seed": seed,
                **{metric: summary[metric] for metric in KEPT},
                "slo_percent": 100 * valid / len(trace),
                "valid": valid,
                "valid_per_kj": 1e3 * valid / float(summary["energy_j"] or 1.0),
                "prefill_per_step": float(tables.steps["prefill_tokens"].sum() / (tables.steps["n_prefill"] > 0).sum()),
                "decodes_max": int(tables.steps["n_decode"].max()),
                "context_max": int(tables.steps["decode_context"].max()),
            }
        )
    return rows
