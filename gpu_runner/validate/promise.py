"""Does deadline-filling keep its promise on a real engine: few late gaps, and prompts no later than by fixed chunks?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gpu_runner.validate.sections import Grid, Picture, Section, percent
from policies.units import MS
from sim.metrics import summarise
from sim.objectives import Objectives
from sim.records import Columns, Tables

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_LATE_GAPS = 0.02
LATE_REQUESTS = 0.02
"""The share of late requests that the margin asked for would leave."""


@dataclass(frozen=True)
class Kept:
    """How one policy did on the engine."""

    label: str
    fills: bool
    """Whether it fills deadlines; the others are what it is compared with."""
    late_gaps: float
    """Share of the gaps between tokens that exceed D."""
    late_requests: float
    """Share of the requests with several tokens whose own P99 gap exceeds D."""
    ttft_p99_ms: float
    needed_margin: float
    """The share of D by which steps would have to end earlier for at most 2 % of requests to be late; 0: none."""
    needed_quantile: float | None
    """Share of the steps whose overrun of their prediction such a margin covers; ``None`` without predictions."""
    steps: Columns

    @classmethod
    def of(cls, label: str, fills: bool, tables: Tables, deadline_ns: int) -> Kept:
        """Measure a run of requests that all have the same D."""
        summary = summarise(tables.requests, tables.steps, Objectives(tpot_p99=deadline_ns), tables.preemptions)
        p99 = tables.requests["tpot_p99_ns"]
        over = p99[~np.isnan(p99)] / deadline_ns - 1
        needed = max(float(np.quantile(over, 1 - LATE_REQUESTS)), 0.0) if len(over) else 0.0
        predicted, duration = tables.steps["predicted_ns"], tables.steps["duration_ns"]
        known = predicted > 0
        covered = None
        if known.any():
            covered = float(np.mean(duration[known] <= predicted[known] * (1 + needed)))
        return cls(
            label,
            fills,
            float(summary["late_gap_share"] or 0.0),
            float((over > 0).mean()) if len(over) else 0.0,
            float(summary["ttft_p99_ms"] or 0.0),
            needed,
            covered,
            tables.steps,
        )


def promise_section(deadline_ns: int, rate: float, kept: Sequence[Kept]) -> Section:
    """Return the section on SLOWeave's promise.

    Args:
        deadline_ns: D.
        rate: requests per second, the same for all.
        kept: runs of the same requests, one per policy.
    """
    fixed = [k for k in kept if not k.fills]
    misses: list[str] = []
    rows, marks = [], []
    for k in kept:
        told = None
        if k.fills:
            rivals = [f for f in fixed if f.late_gaps <= k.late_gaps]
            best = min(rivals, key=lambda f: f.ttft_p99_ms, default=None)
            told = True
            if k.late_gaps > MOST_LATE_GAPS:
                told = False
                misses.append(
                    f"{k.label}: {percent(k.late_gaps)} of the gaps are late, {percent(MOST_LATE_GAPS)} allowed"
                )
            if best is not None and k.ttft_p99_ms > best.ttft_p99_ms:
                told = False
                misses.append(
                    f"{k.label}: P99 TTFT is {k.ttft_p99_ms:.0f} ms, by {best.label} with no more late gaps "
                    f"{best.ttft_p99_ms:.0f} ms"
                )
        marks.append(told)
        margin = f"{percent(k.needed_margin)} (covers {percent(k.needed_quantile)} of steps)" if k.fills else ""
        rows.append((k.label, percent(k.late_gaps), percent(k.late_requests), f"{k.ttft_p99_ms:.0f} ms", margin))
    filling = next((k for k in kept if k.fills), None)
    return Section(
        "L3",
        f"SLOWeave's promise at {rate:.3g} requests/s, D {deadline_ns / MS:g} ms",
        not misses,
        "Deadline-filling keeps its promise on this engine." if not misses else "Deadline-filling misses its promise.",
        tables=[
            Grid(
                ("policy", "late gaps", "late requests", "P99 TTFT", "margin for 2 % late requests"),
                rows,
                marks,
                "A gap is late beyond D, a request if its own P99 gap is. The same requests, once with each policy.",
            )
        ],
        pictures=[] if filling is None else [_following(filling)],
        misses=misses,
        data={
            "deadline_ms": deadline_ns / MS,
            "rate": rate,
            "policies": [{f: getattr(k, f) for f in k.__dataclass_fields__ if f != "steps"} for k in kept],
        },
    )


def _following(kept: Kept) -> Picture:
    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        some = (kept.steps["prefill_tokens"] > 0) & (kept.steps["n_decode"] > 0)
        n, chunk = kept.steps["n_decode"][some], kept.steps["prefill_tokens"][some]
        axes.scatter(n, chunk, s=6, alpha=0.35, linewidths=0)
        levels = np.unique(n)
        axes.plot(levels, [np.max(chunk[n == level]) for level in levels], color="black", lw=1, label="largest")
        axes.set_xlabel("decoding requests in the step")
        axes.set_ylabel("prefill tokens in the step")
        axes.legend(frameon=False)

    return Picture(
        "chunks",
        f"Each dot is a step of {kept.label} that prefills beside decodes: the more requests decode, the less is left "
        "of D for prefill, and the smaller is the largest chunk.",
        draw,
    )
