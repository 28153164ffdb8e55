"""What a report calls its figures, and what they mean."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from experiments.compare import Estimate
from experiments.output import number

DASH = "–"


class Metric(NamedTuple):
    """A figure of a summary as it is shown."""

    name: str
    unit: str
    scale: float = 1.0
    higher_is_better: bool | None = None


METRICS: dict[str, Metric] = {
    "goodput": Metric("goodput", "req/s", higher_is_better=True),
    "slo_attainment": Metric("SLO attainment", "%", 100.0, True),
    "ttft_p99_ms": Metric("P99 TTFT", "ms", higher_is_better=False),
    "tpot_p99_ms": Metric("P99 TPOT", "ms", higher_is_better=False),
    "ttft_mean_ms": Metric("mean TTFT", "ms", higher_is_better=False),
    "jct_p99_ms": Metric("P99 latency", "ms", higher_is_better=False),
    "throughput": Metric("throughput", "req/s", higher_is_better=True),
    "hit_rate": Metric("cache hits", "%", 100.0, True),
    "preemptions": Metric("preemptions", "", higher_is_better=False),
    "utilisation": Metric("utilisation", "%", 100.0),
    "queue_mean": Metric("mean queue", "req", higher_is_better=False),
}
"""Those that are compared, by their names in a summary."""

SHARES = ("slo_attainment", "hit_rate", "utilisation", "late_gap_share", "predicted_mape")

HEADLINES = ("goodput", "slo_attainment", "ttft_p99_ms", "tpot_p99_ms", "jct_p99_ms", "hit_rate")

DIFFERENCES = ("goodput", "slo_attainment", "ttft_p99_ms", "tpot_p99_ms")

TELLING = ("goodput", "slo_attainment", "throughput")
"""Metrics that are shown even where all are zero."""

DEFINITIONS: dict[str, str] = {
    "TTFT": "first output token − arrival.",
    "P99 TPOT": "P99 over requests of each request's own P99 gap between output tokens; one output token has none, "
    "and counts as meeting any TPOT objective.",
    "latency (JCT)": "last output token − arrival, of finished requests.",
    "SLO attainment": "share of arrived requests that meet every objective; rejected and unfinished ones met none.",
    "goodput": "requests that meet every objective ÷ (first arrival to last finish); without any, all that finish.",
    "throughput": "finished requests ÷ the same time.",
    "cache hits": "prompt tokens that the prefix cache served ÷ prompt tokens, of requests that have started.",
    "utilisation": "share of the time from first arrival to the end of the last step in which a step runs.",
    "queue": "requests that wait at the start of a step, for as long as it takes.",
    "SLO exception": "a step that overruns a deadline on purpose, so that a request that has waited too long gets on.",
    "percentiles": "numpy's linear ones; a dash, never zero, where nothing was measured.",
    "intervals": "95 % t-intervals of per-seed values; requests are never pooled as if they were independent.",
    "differences": "paired: each is taken between two runs on the same trace.",
}


def shown(metric: str, value: float | None) -> str:
    """Return a metric's value in its unit, which is not named."""
    if value is None:
        return DASH
    if value == int(value) and metric not in METRICS and abs(value) < 1e15:
        return f"{int(value):,}"
    return number(value * (100.0 if metric in SHARES else 1.0))


def with_interval(metric: str, estimate: Estimate) -> str:
    """Return a mean with half the width of its interval."""
    if estimate.mean is None:
        return DASH
    half = estimate.half_width
    return shown(metric, estimate.mean) + ("" if half is None else f" ± {shown(metric, half)}")


def headed(metric: str) -> str:
    """Return a metric's name with its unit."""
    known = METRICS.get(metric)
    if known is None:
        return f"{metric} (%)" if metric in SHARES else metric
    return f"{known.name} ({known.unit})" if known.unit else known.name


def compared(summaries: Sequence[Mapping[str, object]]) -> list[str]:
    """Return which metrics to compare of those that there are; a column of zeros says something of some only."""
    values = {metric: [v for summary in summaries if (v := summary.get(metric)) is not None] for metric in METRICS}
    return [metric for metric, found in values.items() if found and (metric in TELLING or any(found))]
