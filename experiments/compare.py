"""Policies side by side: means with intervals over seeds, paired differences, and a ranking only where it is earned."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from typing import Any, NamedTuple

from experiments.cells import Cell
from experiments.config import ConfigError
from experiments.sweep import SweepResult
from experiments.tables import Rows, summary_rows
from policies.units import MS
from sim.objectives import Objectives
from sim.stats import paired, ranking, t_interval

METRICS = ("goodput", "throughput", "slo_attainment", "ttft_p99_ms", "tpot_p99_ms", "ttft_mean_ms")
"""What a comparison shows of each policy, by the names of :func:`sim.metrics.summarise`."""

OF_PREFILL_ONLY = ("jct_mean_ms", "jct_p50_ms", "jct_p99_ms")
"""What it has besides where no request has more than one output token."""

OF_MEMORY = ("hit_rate", "preemptions", "kv_blocks_max")
"""What it has besides where there is KV memory."""

DEFINITIONS = {
    "ttft": "first output token's time - arrival",
    "ttft_p99_ms": "P99 of TTFT over requests",
    "tpot_p99_ms": "P99 over requests of each request's own P99 gap between tokens; one output token has none",
    "slo_attainment": "share of arrived requests that meet every objective; rejected and unfinished ones meet none",
    "goodput": "requests that meet every objective / (first arrival to last finish), per second",
    "throughput": "finished requests / (first arrival to last finish), per second",
    "jct": "last token's time - arrival, of finished requests",
    "hit_rate": "tokens that the prefix cache served / prompt tokens, of requests that have started",
    "interval": "95 % t-interval of the per-seed values; differences are paired by seed",
}


class Estimate(NamedTuple):
    """A metric over seeds."""

    mean: float | None
    """``None`` where no seed has measured it."""
    ci95: tuple[float, float] | None
    """``None`` for fewer than two values."""
    per_seed: list[float | None]

    @classmethod
    def of(cls, per_seed: Sequence[float | None]) -> Estimate:
        """Return the mean and t-interval of per-seed values; those not measured are left out."""
        mean, lo, hi = t_interval(per_seed)
        return cls(mean, None if lo is None or hi is None else (lo, hi), list(per_seed))

    def document(self) -> dict[str, Any]:
        """Return the JSON form; ``ci95`` always has two places, null without an interval."""
        return {"mean": self.mean, "ci95": self.ci95 or (None, None), "per_seed": self.per_seed}

    @property
    def half_width(self) -> float | None:
        """Half the interval's width."""
        return None if self.ci95 is None else (self.ci95[1] - self.ci95[0]) / 2


@dataclass(frozen=True)
class Comparison:
    """Policies on the same seeds of one trace."""

    trace: str
    replicas: str
    """How many there are and their KV memory; empty for one without bounds."""
    objectives: str
    """In the form of ``--slo``; empty without objectives."""
    seeds: list[int]
    policies: dict[str, dict[str, Estimate]]
    """By policy as the user wrote it, then by metric."""
    groups: list[list[str]] | None
    """By goodput, the best first, those in a group not told apart; ``None`` without intervals."""
    warnings: list[str]
    failures: list[str]

    def document(self, sweep: SweepResult) -> dict[str, Any]:
        """Return the JSON form."""
        cell = sweep.experiment.cells[0]
        return {
            "policies": {p: {m: e.document() for m, e in values.items()} for p, values in self.policies.items()},
            "trace": self.trace,
            "requests": cell.requests,
            "objectives": self.objectives,
            "seeds": self.seeds,
            "ranking": self.groups,
            "paired": self._paired(),
            "warnings": self.warnings,
            "failures": self.failures,
            "definitions": DEFINITIONS,
            "specs": {c.label: c.resolved()["policy"] for c in sweep.experiment.cells},
            "memory": cell.memory and cell.memory.to_dict(),
            "cluster": cell.cluster.model_dump(),
            "cost_model": cell.cost.to_dict(),
            "policy_cost_model": cell.predictor and cell.predictor.to_dict(),
            "trace_hashes": sorted({c.digest for c in sweep.experiment.cells}),
            "package": cell.resolved()["package"],
        }

    def _paired(self) -> list[dict[str, Any]]:
        """Return every difference in goodput, on the same seeds."""
        rows = []
        for a, b in combinations(self.policies, 2):
            result = paired(self.policies[a]["goodput"].per_seed, self.policies[b]["goodput"].per_seed)
            mean, lo, hi = result.difference
            rows.append(
                {
                    "metric": "goodput",
                    "a": a,
                    "b": b,
                    "difference": mean,
                    "ci95": (lo, hi),
                    "significant": result.significant,
                    "variance_reduction": result.variance_reduction,
                }
            )
        return rows


def check_comparable(cells: Sequence[Cell]) -> None:
    """Refuse what is more than policies on seeds.

    Raises:
        ConfigError: if the cells have sweep axes.
    """
    if cells[0].point:
        axes = ", ".join(axis for axis, _ in cells[0].point)
        raise ConfigError(f"compare has policies and seeds only, but [sweep] has {axes}; use `prefillsim sweep`")


def compare(sweep: SweepResult) -> Comparison:
    """Aggregate a sweep over policies and seeds; see :func:`check_comparable`."""
    cells = sweep.experiment.cells
    rows = summary_rows(sweep.experiment, sweep.results)
    labels = list(dict.fromkeys(cell.label for cell in cells))
    seeds = list(dict.fromkeys(cell.seed for cell in cells))
    metrics = metrics_of(cells)
    policies = {label: estimates([row for row in rows if row["policy"] == label], metrics) for label in labels}
    measured = {label: e["goodput"].per_seed for label, e in policies.items() if e["goodput"].mean is not None}
    groups = ranking(measured) if len(seeds) > 1 and len(measured) > 1 else None
    warnings = [*sweep.experiment.notes, *_trace_warnings(cells), *_same(cells), *run_warnings(sweep)]
    return Comparison(
        cells[0].source.label,
        _replicas(cells),
        str(cells[0].objectives),
        seeds,
        policies,
        groups,
        warnings,
        sweep.failure_lines,
    )


def estimates(rows: Rows, metrics: Iterable[str]) -> dict[str, Estimate]:
    """Return the metrics over rows that differ in their seeds."""
    return {metric: Estimate.of([row.get(metric) for row in rows]) for metric in metrics}


def metrics_of(cells: Sequence[Cell]) -> list[str]:
    """Return what there is to say of the cells' policies."""
    metrics = list(METRICS)
    if all(cell.prefill_only for cell in cells):
        metrics += OF_PREFILL_ONLY
    if any(cell.memory is not None for cell in cells):
        metrics += OF_MEMORY
    return metrics


def run_warnings(sweep: SweepResult) -> list[str]:
    """Return one sentence per kind of warning: how many runs of which policies have it, and the first one's words."""
    kinds: dict[str, tuple[str, Counter[str]]] = {}
    for cell in sweep.experiment.cells:
        for warning in sweep.results[cell.key].warnings:
            kind = "".join(c for c in warning if not c.isdigit())
            kinds.setdefault(kind, (warning, Counter()))[1][cell.label] += 1
    total = len(sweep.experiment.cells)
    return [
        f"{counts.total()} of {total} runs ({', '.join(f'{label}: {n}' for label, n in counts.items())}): {first}"
        for first, counts in kinds.values()
    ]


def _replicas(cells: Sequence[Cell]) -> str:
    texts = list(dict.fromkeys(cell.replicas for cell in cells))
    # Where blocks follow from the longest prompt, they differ by seed.
    return texts[0] if len(texts) == 1 else f"seed {cells[0].seed}: {texts[0]}"


def _trace_warnings(cells: Iterable[Cell]) -> list[str]:
    """Return what readers repaired; all seeds of a file share it."""
    sources = {cell.source: cell.seed for cell in cells if cell.source.file is not None}
    return list(dict.fromkeys(w for source, seed in sources.items() for w in source.load(seed).warnings))


def _same(cells: Iterable[Cell]) -> list[str]:
    """Return a sentence for each pair of policies that are one under two names."""
    labels: dict[str, list[str]] = {}
    for cell in cells:
        names = labels.setdefault(str(cell.resolved()["policy"]), [])
        if cell.label not in names:
            names.append(cell.label)
    return [f"{' and '.join(names)} are the same policy" for names in labels.values() if len(names) > 1]


def objective_ms(objectives: str) -> dict[str, float]:
    """Return objectives in ms by name, from the form of ``--slo``."""
    return {k: v / MS for k, v in asdict(Objectives.parse(objectives)).items() if v is not None}
