"""The pictures of a report that are drawn from the tables of runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from experiments.recorded import Recorded
from experiments.webreport.svg import Floats, Plot, Scale
from policies.units import MS, NS
from sim.metrics import met, over_time
from sim.objectives import Objectives

BINS = 120
"""Of time, across a picture."""

HIT_BINS = 40
"""Of time, for shares of requests."""

SECONDS_FROM = 20_000.0
"""Milliseconds from which on an axis is in seconds."""


@dataclass(frozen=True)
class Chart:
    """A plot with its heading and how to read it."""

    title: str
    caption: str
    plot: Plot


Series = Sequence[tuple[str, Sequence[Recorded]]]
"""Names and the runs of each, the first of which is drawn where only one can be."""


def cdf_charts(series: Series) -> list[Chart]:
    """Return the distributions of the three latencies, one line per run."""
    found = []
    for title, column, bound, text in (
        ("TTFT", "ttft_ns", "ttft", "First output token − arrival."),
        ("P99 TPOT of each request", "tpot_p99_ns", "tpot_p99", "P99 of a request's own gaps between tokens."),
        ("Latency", "jct_ns", "jct", "Last output token − arrival, of finished requests."),
    ):
        chart = _cdf(series, title, column, bound, text)
        if chart is not None:
            found.append(chart)
    return found


def _cdf(series: Series, title: str, column: str, bound: str, text: str) -> Chart | None:
    drawn = [(k, name, [times_ms(run, column) for run in runs]) for k, (name, runs) in enumerate(series)]
    every = [values for _, _, own in drawn for values in own if len(values)]
    if not every:
        return None
    objective = _shared(series, bound)
    shown = [*every, np.array([objective / MS])] if objective is not None else every
    divisor, unit = unit_of(shown)
    plot = Plot(
        Scale.of([v / divisor for v in shown]),
        Scale(0.0, 1.0),
        f"{title} ({unit})",
        "share of requests",
        f"Distribution of {title}",
    )
    for k, name, own in drawn:
        for values in own:
            if len(values):
                plot.line(*steps_of(np.sort(values) / divisor), k, step=True, thin=len(own) > 1)
        plot.name(name, k)
    if objective is not None:
        plot.rule(x=objective / MS / divisor, name="objective")
    return Chart(title, f"{text} A line is one run; left is faster.", plot)


def steps_of(ordered: Floats, most: int = 250) -> tuple[Floats, Floats]:
    """Return the distribution function of sorted values at ``most`` of them, the extremes among these."""
    n = len(ordered)
    rank = np.arange(n) if n <= most else np.unique(np.linspace(0, n - 1, most).round().astype(np.int64))
    return ordered[rank], (rank + 1) / n


def scatter_chart(series: Series) -> Chart | None:
    """Return TTFT against TPOT of every request, with the box of those that meet their objectives."""
    drawn: list[tuple[int, str, Floats, Floats]] = []
    for k, (name, runs) in enumerate(series):
        requests = runs[0].tables.requests
        both = (requests["ttft_ns"] >= 0) & ~np.isnan(requests["tpot_p99_ns"])
        drawn.append((k, name, requests["ttft_ns"][both] / MS, requests["tpot_p99_ns"][both] / MS))
    ttft = [xs for _, _, xs, _ in drawn if len(xs)]
    tpot = [ys for _, _, _, ys in drawn if len(ys)]
    if not ttft:
        return None
    x_bound, y_bound = (_shared(series, b) for b in ("ttft", "tpot_p99"))
    ttft += [np.array([x_bound / MS])] if x_bound is not None else []
    tpot += [np.array([y_bound / MS])] if y_bound is not None else []
    (dx, ux), (dy, uy) = unit_of(ttft), unit_of(tpot)
    plot = Plot(
        Scale.of([v / dx for v in ttft]),
        Scale.of([v / dy for v in tpot]),
        f"TTFT ({ux})",
        f"P99 TPOT ({uy})",
        "TTFT against P99 TPOT of each request",
    )
    boxed = x_bound is not None or y_bound is not None
    if boxed:
        plot.box(x_bound and x_bound / MS / dx, y_bound and y_bound / MS / dy, "meets its objectives")
    for k, name, xs, ys in drawn:
        plot.points(xs / dx, ys / dy, k)
        plot.name(name, k)
    caption = "A point is a request with at least two output tokens."
    return Chart("TTFT × TPOT", caption + (" In the box it meets its objectives." if boxed else ""), plot)


def time_charts(series: Series) -> list[Chart]:
    """Return queue, batch and KV blocks over time, of each series' first run."""
    found = []
    with_steps = [(k, name, runs[0]) for k, (name, runs) in enumerate(series) if len(runs[0].tables.steps["start_ns"])]
    means = [(k, name, over_time(run.tables.requests, run.tables.steps, BINS)) for k, name, run in with_steps]
    for title, column, text in (
        ("Queue", "queue", "Requests that wait, averaged over time."),
        ("Batch", "batch", "Decodes and prefills per step, averaged over time; 0 between steps."),
    ):
        lines = [(k, name, (m["start_ns"] + m["end_ns"]) / 2 / NS, m[column]) for k, name, m in means]
        if lines:
            found.append(_over_time(title, text, lines, "requests"))
    blocks = [(k, name, run.tables.steps) for k, name, run in with_steps if run.tables.steps["kv_blocks"].max() >= 0]
    if blocks:
        lines = [(k, name, *_one_replica(steps, "kv_blocks")) for k, name, steps in blocks]
        found.append(_over_time("KV blocks in use", "After each step; of the first replica.", lines, "blocks"))
    return found


def _one_replica(steps: Any, column: str) -> tuple[Floats, Floats]:
    own = steps["replica"] == steps["replica"].min()
    return steps["start_ns"][own] / NS, steps[column][own].astype(np.float64)


def _over_time(title: str, text: str, lines: Sequence[tuple[int, str, Floats, Floats]], unit: str) -> Chart:
    scale = Scale(0.0, 100.0) if unit == "%" else Scale.of([ys for _, _, _, ys in lines], zero=True, log=False)
    plot = Plot(
        Scale.of([xs for _, _, xs, _ in lines], log=False),
        scale,
        "time (s)",
        unit,
        f"{title} over time",
    )
    for k, name, xs, ys in lines:
        plot.line(xs, ys, k)
        plot.name(name, k)
    return Chart(title, text, plot)


def chunk_chart(series: Series) -> Chart | None:
    """Return how much was prefilled in a step beside how many decodes."""
    drawn = []
    for k, (name, runs) in enumerate(series):
        steps = runs[0].tables.steps
        has = steps["prefill_tokens"] > 0
        drawn.append((k, name, steps["n_decode"][has], steps["prefill_tokens"][has]))
    if not any(len(d[2]) for d in drawn):
        return None
    plot = Plot(
        Scale.of([d[2] for d in drawn], zero=True, log=False),
        Scale.of([d[3] for d in drawn], zero=True, log=False),
        "decodes in the step",
        "prefill tokens",
        "Prefill tokens of a step over its decodes",
    )
    for k, name, xs, ys in drawn:
        plot.points(xs, ys, k)
        plot.name(name, k)
    return Chart("Chunk size over decode batch", "A point is a step with prefill.", plot)


def hit_chart(series: Series) -> Chart | None:
    """Return the share of prompt tokens that the prefix cache served, by when requests started."""
    lines = []
    for k, (name, runs) in enumerate(series):
        requests = runs[0].tables.requests
        started = (requests["first_scheduled_ns"] >= 0) & (requests["cached_tokens"] >= 0)
        when = requests["first_scheduled_ns"][started]
        if not len(when) or not requests["cached_tokens"][started].any():
            continue
        middle, (cached, prompts) = _binned(
            when, [requests["cached_tokens"][started], requests["prompt_tokens"][started]], HIT_BINS
        )
        has = prompts > 0
        lines.append((k, name, middle[has] / NS, 100 * cached[has] / prompts[has]))
    if not lines:
        return None
    return _over_time("Prefix cache hits", "Prompt tokens served from the cache, by when requests started.", lines, "%")


def attainment_chart(series: Series) -> Chart | None:
    """Return the share of requests that met their objectives, by arrival."""
    lines = []
    for k, (name, runs) in enumerate(series):
        run = runs[0]
        requests = run.tables.requests
        if (
            run.objectives == Objectives()
            and (requests["slo_ttft_ns"] < 0).all()
            and (requests["slo_tpot_ns"] < 0).all()
        ):
            continue
        good = met(requests, run.objectives)
        if not len(good):
            continue
        middle, (hits, came) = _binned(requests["arrival_ns"], [good, np.ones(len(good))], HIT_BINS)
        has = came > 0
        lines.append((k, name, middle[has] / NS, 100 * hits[has] / came[has]))
    if not lines:
        return None
    return _over_time("SLO attainment", "Requests that met every objective, by when they arrived.", lines, "%")


def exception_chart(series: Series) -> Chart | None:
    """Return how many steps per bin of time overran a deadline on purpose."""
    lines = []
    for k, (name, runs) in enumerate(series):
        steps = runs[0].tables.steps
        overran = steps["exception"] > 0
        if overran.any():
            middle, (count,) = _binned(steps["start_ns"], [overran], HIT_BINS)
            lines.append((k, name, middle / NS, count))
    if not lines:
        return None
    return _over_time("SLO exceptions", "Steps that overran a deadline on purpose.", lines, "steps")


def _binned(when: Any, values: Sequence[Any], bins: int) -> tuple[Floats, list[Floats]]:
    """Return the middles of equal bins of time, and the sums of values in them."""
    low, high = float(when.min()), float(when.max())
    width = (high - low) / bins or 1.0
    at = np.minimum(((when - low) / width).astype(np.int64), bins - 1)
    middle = low + width * (np.arange(bins, dtype=np.float64) + 0.5)
    return middle, [np.bincount(at, v.astype(np.float64), bins).astype(np.float64) for v in values]


def times_ms(run: Recorded, column: str) -> Floats:
    """Return what of a column was measured, in milliseconds."""
    values = run.tables.requests[column]
    there = ~np.isnan(values) if values.dtype.kind == "f" else values >= 0
    result: Floats = values[there] / MS
    return result


def unit_of(values: Sequence[Floats]) -> tuple[float, str]:
    """Return by what to divide milliseconds on an axis, and the unit that makes."""
    return (1000.0, "s") if max(float(v.max(initial=0.0)) for v in values) >= SECONDS_FROM else (1.0, "ms")


def _shared(series: Series, bound: str) -> int | None:
    """Return the objective that all runs have in common, in nanoseconds."""
    bounds = {getattr(run.objectives, bound) for _, runs in series for run in runs}
    return bounds.pop() if len(bounds) == 1 else None
