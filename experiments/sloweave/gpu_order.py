"""Table 2's rows, ours beside the paper's, and whether its order holds: SLOWeave, a tuned fixed chunk, the default."""

from __future__ import annotations

from experiments.sloweave.gpu_blocks import OBJECTIVES, Block, paper_rows
from experiments.sloweave.gpu_runs import DEFAULT, FIXED, OURS, PRINTED_CHUNK, SHARED, GpuRuns
from experiments.tables import Rows
from sim.stats import Interval, paired

METRICS = ("ttft_p99_ms", "tpot_p99_ms", "throughput", "slo_percent", "goodput", "joules_per_valid")

CLAIMS = (
    (OURS, FIXED, True),
    (FIXED, DEFAULT, True),
    (OURS, SHARED, False),
)
"""What is better than what, and whether the paper says so."""

ALL_MET = 98.0
"""Per cent."""

HOLDS, TIED, REVERSED = "holds", "not told apart", "reversed"


def labels(runs: GpuRuns, block: Block, target: str) -> dict[str, str]:
    """Return the names of a block's rows by role."""
    roles, experiment = runs.roles[block.name, target], runs.experiment
    return {
        DEFAULT: "runtime default",
        FIXED: f"{experiment.fixed[roles[FIXED]]}, tuned",
        PRINTED_CHUNK: f"fixed-{block.printed_chunk}, the paper's",
        SHARED: f"{experiment.shared[roles[SHARED]]}, tuned",
        OURS: "SLOWeave",
    }


def table2_rows(runs: GpuRuns) -> Rows:
    """Return one row per target, block and policy: ours with 95 % intervals, and the paper's.

    Times of the scaled runs are as simulated; divided by ``scale`` they are in the paper's time.
    """
    paper, rows = paper_rows(), []
    for target in OBJECTIVES:
        for block in runs.experiment.blocks:
            roles, goals, names = runs.roles[block.name, target], block.objectives(target), labels(runs, block, target)
            for role, policy in roles.items():
                if role == PRINTED_CHUNK and policy == roles[FIXED]:
                    continue
                printed = paper.get((block.name, role), {})
                row: dict[str, object] = {
                    "target": target,
                    "block": block.name,
                    "role": role,
                    "policy": policy,
                    "label": names[role],
                    "scale": block.scale,
                    "ttft_objective_ms": (goals.ttft or 0) / 1e6,
                    "tpot_objective_ms": (goals.tpot_p99 or 0) / 1e6,
                    **runs.estimates(block, target, role),
                }
                rows.append(row | {f"{m}_paper": printed.get(m) for m in METRICS})
    return rows


def order_rows(runs: GpuRuns) -> Rows:
    """Return whether each claim of order holds, per target, block and measure: paired differences on equal seeds.

    Energy is compared as valid requests per kJ, which a policy without any has too.
    """
    rows = []
    for target in OBJECTIVES:
        for block in runs.experiment.blocks:
            names = labels(runs, block, target)
            for better, worse, printed in CLAIMS:
                for metric in ("goodput", "valid_per_kj"):
                    a, b = (runs.per_seed(block, target, r, metric) for r in (better, worse))
                    difference = paired(a, b).difference
                    verdict = _verdict(difference)
                    rows.append(
                        {
                            "target": target,
                            "block": block.name,
                            "metric": metric,
                            "better": names[better],
                            "worse": names[worse],
                            "in_paper": printed,
                            "better_mean": sum(a) / len(a),
                            "worse_mean": sum(b) / len(b),
                            "difference": difference.mean,
                            "lo": difference.lo,
                            "hi": difference.hi,
                            "verdict": verdict,
                            "why": "" if verdict == HOLDS else _why(runs, block, target, better, worse),
                        }
                    )
    return rows


def _verdict(difference: Interval) -> str:
    if not difference.excludes_zero:
        return TIED
    return HOLDS if (difference.mean or 0) > 0 else REVERSED


def _why(runs: GpuRuns, block: Block, target: str, better: str, worse: str) -> str:
    """Return what the runs show of the reason that a claim does not hold."""

    def mean(role: str, metric: str) -> float:
        values = runs.per_seed(block, target, role, metric)
        return sum(values) / len(values)

    met = [mean(role, "slo_percent") for role in (better, worse)]
    if min(met) > ALL_MET and worse != SHARED:
        return f"both keep at least {min(met):.1f} % of the requests in time, which leaves nothing to gain"
    per_step = [mean(role, "prefill_per_step") for role in (better, worse)]
    if worse == SHARED and per_step[0] < per_step[1]:
        return (
            f"a step of SLOWeave prefills one prompt and ends with it, {per_step[0]:,.0f} tokens on average; several "
            f"fill the budget, {per_step[1]:,.0f}"
        )
    spread = max(max(v) - min(v) for v in (runs.per_seed(block, target, r, "slo_percent") for r in (better, worse)))
    return (
        f"attainment is {met[0]:.1f} and {met[1]:.1f} %, and differs by up to {spread:.0f} points between seeds: too "
        f"much for {runs.seeds} of them to tell"
    )
