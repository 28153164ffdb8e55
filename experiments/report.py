"""Results for people to read: tables, definitions, and only as much of a ranking as the intervals support."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from experiments.compare import Comparison, Estimate, estimates, metrics_of
from experiments.output import number, say, table, width, wrapped
from experiments.sweep import SweepResult
from experiments.tables import Rows, summary_rows

DEFINITIONS = {
    "ttft": "TTFT: first output token - arrival.",
    "tpot": "P99 TPOT: P99 over requests of each request's own P99 gap between tokens.",
    "jct": "JCT: last output token - arrival.",
    "hit": "Hits: share of prompt tokens that the prefix cache served.",
    "slo": "SLO: share of arrived requests that meet every objective.",
    "goodput": "Goodput: those requests per second, first arrival to last finish.",
}
"""By what the names of metrics begin with."""

COLUMNS = {
    "goodput": "goodput\nreq/s",
    "slo_attainment": "SLO\n%",
    "ttft_p99_ms": "P99 TTFT\nms",
    "tpot_p99_ms": "P99 TPOT\nms",
    "ttft_mean_ms": "mean TTFT\nms",
    "throughput": "throughput\nreq/s",
    "hit_rate": "hits\n%",
    "jct_p50_ms": "P50 JCT\nms",
    "jct_p99_ms": "P99 JCT\nms",
    "jct_mean_ms": "mean JCT\nms",
}
"""Headings by metric."""

PERCENT = ("slo_attainment", "hit_rate")

WIDE = 100
"""Narrower terminals are not shown the last two columns."""

SHOWN_ROWS = 40
"""Rows of a sweep that are printed; the tables have all."""


def show_comparison(comparison: Comparison) -> None:
    """Print means ± half-widths, what holds, the definitions and the ranking."""
    metrics = _columns(next(iter(comparison.policies.values())))
    rows = [
        [wrapped(label), *(_with_interval(metric, measured[metric]) for metric in metrics)]
        for label, measured in comparison.policies.items()
    ]
    n = len(comparison.seeds)
    say(f"{comparison.trace}, {counted(n, 'seed')}, {objectives_line(comparison.objectives)}")
    say(*filter(None, [comparison.replicas]))
    table(["policy", *(COLUMNS[m] for m in metrics)], rows)
    say(
        *([f"±: half-width of the 95 % t-interval over {n} seeds."] if n > 1 else []),
        _definitions(metrics),
        _ranking(comparison),
    )


def _columns(measured: Collection[str]) -> list[str]:
    """Return the metrics to show of those that there are, as far as there is room."""
    times = ["ttft_p99_ms", "tpot_p99_ms", "ttft_mean_ms"]
    if "jct_p99_ms" in measured:
        times = ["jct_p50_ms", "jct_p99_ms", "jct_mean_ms"]
    hits = ["hit_rate"] if "hit_rate" in measured else []
    return ["goodput", "slo_attainment", *times[:2], *hits, *([times[2], "throughput"] if width() >= WIDE else [])]


def _definitions(metrics: Collection[str]) -> str:
    return " ".join(text for name, text in DEFINITIONS.items() if any(m.startswith(name) for m in metrics))


def objectives_line(objectives: str) -> str:
    """Return which objectives hold."""
    return f"objectives in ms: {objectives}" if objectives else "no objectives: every finished request counts"


def _ranking(comparison: Comparison) -> str:
    if comparison.groups is None:
        return "No ranking by goodput: it takes two seeds, and two policies under which requests finish."
    places = [group[0] if len(group) == 1 else f"tied: {', '.join(group)}" for group in comparison.groups]
    if len(places) == 1:
        return (
            f"By goodput the policies are tied: no paired 95 % interval tells {', '.join(comparison.groups[0])} apart."
        )
    ranked = "; ".join(f"{i}. {place}" for i, place in enumerate(places, 1))
    return f"Ranking by goodput, where paired 95 % intervals (Holm) exclude zero: {ranked}."


def _with_interval(metric: str, estimate: Estimate) -> str:
    scale = 100.0 if metric in PERCENT else 1.0
    if estimate.mean is None:
        return number(None)
    half = estimate.half_width
    mean = number(scale * estimate.mean)
    return mean if half is None else f"{mean} ±{number(scale * half)}"


def counted(n: int, what: str) -> str:
    """Return a number with what it counts, in the singular or plural."""
    return f"{n} {what}" if n == 1 else f"{n} {what}s"


def show_summary(title: str, replicas: str, summary: Mapping[str, Any]) -> None:
    """Print every figure of one run."""
    say(title, *filter(None, [replicas]))
    table(["metric", "value"], [[key, _value(value)] for key, value in summary.items()])
    say(_definitions(summary))


def _value(value: Any) -> str:
    return str(value) if isinstance(value, int) else number(value)


def aggregated(sweep: SweepResult) -> Rows:
    """Return one row per point and policy: the axes, the policy, and the mean and interval of each metric."""
    groups: dict[tuple[Any, ...], Rows] = {}
    axes = list(sweep.experiment.axes)
    metrics = metrics_of(sweep.experiment.cells)
    for row in summary_rows(sweep.experiment, sweep.results):
        groups.setdefault((*(row[a] for a in axes), row["trace"], row["policy"]), []).append(row)
    return [
        {
            **{name: rows[0][name] for name in (*axes, "trace", "policy", "objectives")},
            **{metric: estimate._asdict() for metric, estimate in estimates(rows, metrics).items()},
        }
        for rows in groups.values()
    ]


def show_sweep(sweep: SweepResult) -> None:
    """Print means ± half-widths over seeds, one line per point and policy."""
    rows = aggregated(sweep)
    names, metrics = ["policy", *sweep.experiment.axes], _columns(metrics_of(sweep.experiment.cells))
    lines = [
        [
            *("" if row[name] is None else wrapped(str(row[name])) for name in names),
            *(_with_interval(metric, Estimate(**row[metric])) for metric in metrics),
        ]
        for row in rows[:SHOWN_ROWS]
    ]
    table([*names, *(COLUMNS[m] for m in metrics)], lines, left=len(names))
    if len(rows) > SHOWN_ROWS:
        say(f"... and {len(rows) - SHOWN_ROWS} more in {sweep.out / 'summary.csv'}")
    say(_definitions(metrics))
