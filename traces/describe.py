"""A trace in numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from traces.schema import IntArray, Trace

NS = 1_000_000_000


def describe(trace: Trace) -> dict[str, Any]:
    """Return a trace's figures, ready for JSON; ``None`` where a figure is not defined.

    ``duration_s`` is the time from the first to the last arrival and ``rate`` the reciprocal of the mean gap, in
    requests/s. ``burstiness`` holds the gaps' coefficient of variation ``cv`` (1 for Poisson arrivals) and
    ``shape``, ``1 / cv²``, the shape of a gamma distribution with that variation. ``ideal_prefix_hit_rate`` is the
    share of content ids that an unlimited prefix cache would have had, requests taken in the order of the file.
    """
    return {
        "name": trace.name,
        "requests": len(trace),
        **_arrivals(trace.arrival_ns),
        "prompt_tokens": _lengths(trace.prompt_tokens),
        "output_tokens": _lengths(trace.output_tokens),
        "sessions": _distinct(trace.session),
        "tenants": _distinct(trace.tenant),
        "ideal_prefix_hit_rate": ideal_prefix_hit_rate(trace),
        "warnings": list(trace.warnings),
    }


def _arrivals(arrival_ns: IntArray) -> dict[str, Any]:
    gaps = np.diff(arrival_ns) / NS
    span = float(arrival_ns[-1] - arrival_ns[0]) / NS if len(arrival_ns) else None
    rate = len(gaps) / span if span else None
    cv = float(np.std(gaps, ddof=1) * rate) if rate and len(gaps) > 1 else None
    return {
        "duration_s": span,
        "rate": rate,
        "burstiness": {"cv": cv, "shape": 1 / cv**2 if cv else None},
    }


def _lengths(tokens: IntArray) -> dict[str, float | int | None]:
    if not len(tokens):
        return {"mean": None, "p50": None, "p90": None, "p99": None, "max": None, "total": 0}
    p50, p90, p99 = np.percentile(tokens, (50, 90, 99)).tolist()
    return {
        "mean": float(tokens.mean()),
        "p50": p50,
        "p90": p90,
        "p99": p99,
        "max": int(tokens.max()),
        "total": int(tokens.sum()),
    }


def _distinct(labels: NDArray[Any] | None) -> int | None:
    return None if labels is None else len(set(labels.tolist()) - {None})


def ideal_prefix_hit_rate(trace: Trace) -> float | None:
    """Return leading content ids that an earlier request had ÷ all content ids; ``None`` without content.

    A request's ids are walked from the start for as long as each was seen in an earlier request of the file.
    """
    if trace.segments is None or not len(trace.segments.ids):
        return None
    segments = trace.segments if trace.row is None else trace.segments.select(np.argsort(trace.row, kind="stable"))
    counts = np.diff(segments.offsets)
    request = np.repeat(np.arange(len(counts)), counts)
    _, first, inverse = np.unique(segments.ids, return_index=True, return_inverse=True)
    unseen = request[first][inverse] == request
    # An id is leading while no unseen one stands before it in its request.
    missed = np.cumsum(unseen)
    before = np.concatenate([[0], missed])[segments.offsets[:-1]]
    return float(np.count_nonzero(missed == np.repeat(before, counts)) / len(unseen))
