"""The metrics written out request by request and token by token; slow on purpose.

It shares the column names with ``sim.metrics`` and nothing else: percentiles are ``np.percentile`` of plain lists,
comparisons with objectives are fractions.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from sim.objectives import Objectives
from sim.records import NO_PREEMPTIONS, NULL, OUTCOMES, Columns

MS = 1_000_000


@dataclass
class Row:
    """One request with the times of its tokens."""

    values: dict[str, Any]
    token_ns: list[int]

    @property
    def finished(self) -> bool:
        return OUTCOMES[self.values["outcome"]] == "finished"

    @property
    def gaps(self) -> list[int]:
        return [b - a for a, b in zip(self.token_ns, self.token_ns[1:], strict=False)]

    def own(self, name: str, default: int | None) -> int | None:
        return default if self.values[name] == NULL else self.values[name]

    @property
    def exact_p99(self) -> Fraction:
        """The P99 gap by numpy's linear method, without rounding."""
        ordered = sorted(self.gaps)
        position = Fraction(99, 100) * (len(ordered) - 1)
        low = int(position)
        upper = ordered[min(low + 1, len(ordered) - 1)]
        return ordered[low] + (position - low) * (upper - ordered[low])

    def overshoots(self, goals: Objectives) -> list[Fraction]:
        """By how many ns the request exceeds each objective that applies to it."""
        pairs: list[tuple[int | None, Fraction | int]] = [
            (self.own("slo_ttft_ns", goals.ttft), self.values["first_token_ns"] - self.values["arrival_ns"]),
            (goals.jct, self.values["finished_ns"] - self.values["arrival_ns"]),
        ]
        if self.gaps:
            pairs += [
                (self.own("slo_tpot_ns", goals.tpot_p99), self.exact_p99),
                (goals.tpot, Fraction(sum(self.gaps), len(self.gaps))),
                (goals.itl_max, max(self.gaps)),
            ]
        return [Fraction(value) - bound for bound, value in pairs if bound is not None]


def rows_of(requests: Columns, steps: Columns, preemptions: Columns = NO_PREEMPTIONS) -> list[Row]:
    """Return the requests with their token times.

    A token comes in each step of the request's replica from the first token's on, but not while it is preempted.
    """
    ends = [s + d for s, d in zip(steps["start_ns"].tolist(), steps["duration_ns"].tolist(), strict=True)]
    where = list(zip(steps["replica"].tolist(), ends, strict=True))
    resumes = {
        (i, after): until
        for i, after, until in zip(*(preemptions[c].tolist() for c in ("request", "after", "until")), strict=True)
    }
    rows = []
    for i in range(len(requests["arrival_ns"])):
        values = {name: column[i].item() for name, column in requests.items()}
        at: list[int] = []
        if values["generated_tokens"]:
            at = [where.index((values["replica"], values["first_token_ns"]))]
        while len(at) < values["generated_tokens"]:
            at.append(resumes.get((i, at[-1]), at[-1] + 1))
        assert all(where[k][0] == values["replica"] for k in at)
        rows.append(Row(values, [ends[k] for k in at]))
    return rows


def slow_met(requests: Columns, steps: Columns, goals: Objectives, preemptions: Columns = NO_PREEMPTIONS) -> list[bool]:
    rows = rows_of(requests, steps, preemptions)
    return [row.finished and all(o <= 0 for o in row.overshoots(goals)) for row in rows]


def mean(values: list[Any]) -> float | None:
    return statistics.fmean(values) if values else None


def percentile(values: list[Any], q: float) -> float | None:
    return float(np.percentile(values, q)) if values else None


def ms(value: float | None) -> float | None:
    return None if value is None else value / MS


def slow_summary(
    requests: Columns, steps: Columns, goals: Objectives, preemptions: Columns = NO_PREEMPTIONS
) -> dict[str, float | int | None]:
    """Return what ``summarise`` should."""
    rows = rows_of(requests, steps, preemptions)
    done = [row for row in rows if row.finished]
    good = sum(slow_met(requests, steps, goals, preemptions))
    step = [dict(zip(steps, values, strict=True)) for values in zip(*(c.tolist() for c in steps.values()), strict=True)]
    arrival = min((r.values["arrival_ns"] for r in rows), default=0)
    seconds = None
    if done:
        seconds = (max(r.values["finished_ns"] for r in done) - arrival) / 1e9

    def rate(count: int) -> float | None:
        return None if seconds is None else count / seconds

    ttft = [r.values["first_token_ns"] - r.values["arrival_ns"] for r in rows if r.token_ns]
    decoding = [r for r in rows if r.gaps]
    tpot = [sum(r.gaps) / len(r.gaps) for r in decoding]
    tpot_p99 = [percentile(r.gaps, 99) for r in decoding]
    pooled = [gap for r in decoding for gap in r.gaps]
    jct = [r.values["finished_ns"] - r.values["arrival_ns"] for r in done]
    some_goal = any(r.values["slo_ttft_ns"] != NULL or r.values["slo_tpot_ns"] != NULL for r in rows)
    has_goals = some_goal or goals != Objectives()
    late = [float(max([Fraction(0), *r.overshoots(goals)])) for r in done] if has_goals else []
    slowdown = [
        (r.values["finished_ns"] - r.values["arrival_ns"]) / (r.values["finished_ns"] - r.values["first_scheduled_ns"])
        for r in done
    ]
    waits = [
        r.values["first_scheduled_ns"] - r.values["arrival_ns"] for r in rows if r.values["first_scheduled_ns"] != NULL
    ]
    end = max((s["start_ns"] + s["duration_ns"] for s in step), default=None)
    replicas = len({s["replica"] for s in step})
    for r in rows:
        still = OUTCOMES[r.values["outcome"]] == "unfinished" and r.values["first_scheduled_ns"] == NULL
        if still and end is not None and r.values["arrival_ns"] <= end:
            waits.append(end - r.values["arrival_ns"])
    span = None if end is None else end - arrival
    judged = [
        (gap, d) for r in decoding if (d := r.own("slo_tpot_ns", goals.deadline_ns)) is not None for gap in r.gaps
    ]
    started = [r for r in rows if r.values["cached_tokens"] != NULL]
    cached = [r.values["cached_tokens"] for r in started]
    errors = [(s["predicted_ns"] - s["duration_ns"], s["duration_ns"]) for s in step if s["predicted_ns"] != NULL]
    names = [OUTCOMES[r.values["outcome"]] for r in rows]
    return {
        "arrived": len(rows),
        **{name: names.count(name) for name in OUTCOMES},
        "duration_s": seconds,
        "goodput": rate(good),
        "throughput": rate(len(done)),
        "output_throughput": rate(sum(len(r.token_ns) for r in done)),
        "prefill_throughput": rate(sum(r.values["prompt_tokens"] - r.values["cached_tokens"] for r in done)),
        "slo_attainment": good / len(rows) if rows else None,
        "ttft_mean_ms": ms(mean(ttft)),
        **{f"ttft_p{q}_ms": ms(percentile(ttft, q)) for q in (50, 90, 99)},
        "tpot_mean_ms": ms(mean(tpot)),
        "tpot_p50_ms": ms(percentile(tpot, 50)),
        "tpot_p99_ms": ms(percentile(tpot_p99, 99)),
        "itl_p99_ms": ms(percentile(pooled, 99)),
        "itl_max_ms": ms(max(pooled, default=None)),
        "jct_mean_ms": ms(mean(jct)),
        **{f"jct_p{q}_ms": ms(percentile(jct, q)) for q in (50, 99)},
        "lateness_mean_ms": ms(mean(late)),
        "lateness_p99_ms": ms(percentile(late, 99)),
        "slowdown_mean": mean(slowdown),
        "slowdown_p99": percentile(slowdown, 99),
        "longest_wait_ms": ms(max(waits, default=None)),
        "jain_fairness": sum(slowdown) ** 2 / len(slowdown) / sum(x * x for x in slowdown) if slowdown else None,
        "utilisation": sum(s["busy_ns"] for s in step) / (span * replicas) if step else None,
        "queue_mean": sum(s["waiting"] * s["duration_ns"] for s in step) / span if step else None,
        "queue_max": max((s["waiting"] for s in step), default=None),
        "batch_mean": mean([s["n_decode"] + s["n_prefill"] for s in step]),
        "steps": len(step),
        "hit_rate": sum(cached) / sum(r.values["prompt_tokens"] for r in started) if started else None,
        "preemptions": sum(r.values["preemptions"] for r in rows),
        "kv_blocks_max": max((s["kv_blocks"] for s in step if s["kv_blocks"] != NULL), default=None),
        "slo_exceptions": sum(r.values["slo_exceptions"] for r in rows),
        "aged_chunks": sum(r.values["aged_chunks"] for r in rows),
        "late_gap_share": mean([float(gap > d) for gap, d in judged]),
        "predicted_bias_ms": ms(mean([e for e, _ in errors])),
        "predicted_mape": mean([abs(e) / d for e, d in errors]),
    }
