"""What queueing theory says of a prefill-only workload: the least mean latency of any order, and that of arrival order.

Both take a request's work to be its whole prompt prefilled alone, in one step. That is what one replica does that
prefills one request at a time and finds nothing cached, as long as splitting a prompt makes it no cheaper; a policy
that puts several prompts into a step shares what a step costs beside its tokens, and may be better than the bound.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from costmodels.base import CostModel
from experiments.cells import Cell
from experiments.output import number
from experiments.run import CellResult
from policies.units import MS
from sim.stats import t_interval
from traces.schema import IntArray, Trace
from traces.synthetic import PrefillOnly, find_workload

DEFINITIONS = {
    "srpt_jct_mean_ms": "least mean JCT of any order, interruptions allowed: shortest remaining work first (SRPT)",
    "pollaczek_khinchine_jct_mean_ms": "mean JCT first come, first served of Poisson arrivals at the trace's own rate, "
    "in the long run: E[S] + rate E[S^2] / (2 (1 - rate E[S]))",
    "regret": "mean JCT / SRPT's - 1, of policies that prefill one request per step",
}


class Bounds(NamedTuple):
    """Mean latencies in ms."""

    srpt_ms: float
    pollaczek_khinchine_ms: float | None
    """``None`` where arrivals are not Poisson, or more work comes than can be done."""


def bounds_of(cell: Cell) -> Bounds | None:
    """Return the bounds of a cell's trace, ``None`` where they do not apply.

    They do for prefill-only traces on one replica of one stage without prefix hits that turns nobody away.
    """
    hits = cell.memory is not None and (cell.memory.prefix_cache or cell.memory.max_input is not None)
    limited = cell.limits.horizon_ns is not None or cell.limits.max_model_len is not None
    if not cell.prefill_only or not cell.requests or hits or limited or cell.policy.admission is not None:
        return None
    if cell.cluster.replicas > 1 or len(cell.cost.stages()) > 1:
        return None
    trace = cell.source.load(cell.seed)
    work = work_ns(trace, cell.cost)
    expected = pollaczek_khinchine_ns(trace, work) if _poisson(cell) else None
    return Bounds(srpt_ns(trace.arrival_ns, work) / MS, None if expected is None else expected / MS)


def regret(cell: Cell, result: CellResult, bounds: Bounds | None) -> float | None:
    """Return by what share a run's mean latency is above the bound.

    ``None`` where there is no bound, a step had several prefills, or somebody did not finish.
    """
    summary: Mapping[str, Any] = result.summary or {}
    mean = summary.get("jct_mean_ms")
    if bounds is None or mean is None or summary.get("batch_mean") != 1 or summary.get("finished") != cell.requests:
        return None
    return float(mean) / bounds.srpt_ms - 1


def compared(cells: Sequence[Cell], results: Mapping[str, CellResult]) -> dict[str, Any] | None:
    """Return the bounds by seed, and each policy's regret with its 95 % interval over seeds.

    Args:
        cells: policies on seeds of one trace.
        results: by cell key.

    Returns:
        JSON types; ``None`` where the bounds do not apply.
    """
    by_seed: dict[int, Bounds | None] = {}
    for cell in cells:
        if cell.seed not in by_seed:
            by_seed[cell.seed] = bounds_of(cell)
    known = [b for b in by_seed.values() if b is not None]
    if not known:
        return None
    regrets: dict[str, list[float | None]] = {}
    for cell in cells:
        result = results.get(cell.key)
        found = None if result is None else regret(cell, result, by_seed[cell.seed])
        regrets.setdefault(cell.label, []).append(found)
    intervals = {label: t_interval(values) for label, values in regrets.items()}
    return {
        "srpt_jct_mean_ms": [b and b.srpt_ms for b in by_seed.values()],
        "pollaczek_khinchine_jct_mean_ms": [b and b.pollaczek_khinchine_ms for b in by_seed.values()],
        "regret": {
            label: {"mean": mean, "ci95": (low, high), "per_seed": regrets[label]}
            for label, (mean, low, high) in intervals.items()
        },
        "definitions": DEFINITIONS,
    }


def bound_lines(document: Mapping[str, Any] | None) -> list[str]:
    """Return what :func:`compared` found in sentences, none where there is nothing."""
    if document is None:
        return []
    least, arrival = (t_interval(document[f"{name}_jct_mean_ms"])[0] for name in ("srpt", "pollaczek_khinchine"))
    text = f"No order of whole prompts has a mean JCT below {number(least)} ms (SRPT)"
    if arrival is not None:
        text += f"; first come, first served has {number(arrival)} ms in the long run (Pollaczek-Khinchine)"
    above = []
    for label, found in document["regret"].items():
        if found["mean"] is None:
            continue
        low, high = found["ci95"]
        half = "" if low is None else f" ±{number(50 * (high - low))}"
        above.append(f"{label} {number(100 * found['mean'])}{half} %")
    return [f"{text}.", *([f"Mean JCT above SRPT's: {', '.join(above)}."] if above else [])]


def work_ns(trace: Trace, cost: CostModel) -> IntArray:
    """Return what each prompt takes alone, in nanoseconds; shape (requests,)."""
    lengths, place = np.unique(trace.prompt_tokens, return_inverse=True)
    alone = [cost.step_ns(0, 0, 0, 1, n, n * (n + 1) // 2) for n in lengths.tolist()]
    work: IntArray = np.array(alone, dtype=np.int64)[place]
    return work


def srpt_ns(arrival_ns: IntArray, work: IntArray) -> float:
    """Return the mean sojourn under shortest remaining processing time, which interrupts.

    Args:
        arrival_ns: in ascending order.
        work: of each request, positive, in nanoseconds.
    """
    total, now = 0, 0
    present: list[tuple[int, int]] = []
    arrivals = arrival_ns.tolist()
    coming = 0
    while coming < len(arrivals) or present:
        if not present:
            now = max(now, arrivals[coming])
        while coming < len(arrivals) and arrivals[coming] <= now:
            heapq.heappush(present, (int(work[coming]), coming))
            coming += 1
        left, i = present[0]
        until = now + left
        if coming < len(arrivals) and arrivals[coming] < until:
            until = arrivals[coming]
            heapq.heapreplace(present, (left - (until - now), i))
        else:
            heapq.heappop(present)
            total += until - arrivals[i]
        now = until
    return total / len(arrivals)


def pollaczek_khinchine_ns(trace: Trace, work: IntArray) -> float | None:
    """Return the mean sojourn first come, first served at the trace's rate, ``None`` for a load of 1 or more."""
    span = int(trace.arrival_ns[-1] - trace.arrival_ns[0])
    if span <= 0:
        return None
    rate = (len(trace) - 1) / span
    sizes = work.astype(np.float64)
    load = rate * sizes.mean()
    if load >= 1:
        return None
    return float(sizes.mean() + rate * (sizes**2).mean() / (2 * (1 - load)))


def _poisson(cell: Cell) -> bool:
    source = cell.source
    if source.workload is None:
        return source.rate is not None
    workload = find_workload(source.workload)
    if workload.burstiness is not None:
        return False
    # Requests of one user that come together, or one after the other, are no Poisson process.
    together = isinstance(workload, PrefillOnly) and workload.requests_per_user > 1
    return workload.arrivals in ("poisson", "requests") or (workload.arrivals == "users" and not together)
