"""When requests got their tokens, counted in steps, and the times between two: without a pause each step gives one."""

from __future__ import annotations

import numpy as np

from sim.records import NULL, Columns
from traces.schema import IntArray


def last_token_steps(first: IntArray, generated: IntArray, pauses: Columns) -> IntArray:
    """Return the step of each request's latest token, given that of its first and how many it got."""
    away = np.bincount(pauses["request"], pauses["until"] - pauses["after"] - 1, len(first))
    steps: IntArray = first + generated - 1 + away.astype(np.int64)
    return steps


def pauses_of(preemptions: Columns) -> Columns:
    """Return the stretches between two tokens of a request in which it was preempted, in order of request and step.

    Columns ``request``, ``after`` and ``until``: it got no token in the steps between the last two, and one in each of
    those before and after. Several preemptions in one stretch make one row.
    """
    names = ("request", "after", "until")
    if not len(preemptions["request"]):
        return {name: preemptions[name] for name in names}
    between = (preemptions["after"] >= 0) & (preemptions["until"] >= 0)
    columns = [preemptions[name][between] for name in names]
    order = np.lexsort(columns[::-1])
    columns = [column[order] for column in columns]
    new = np.ones(len(order), dtype=bool)
    new[1:] = np.any([column[1:] != column[:-1] for column in columns], axis=0)
    return {name: column[new] for name, column in zip(names, columns, strict=True)}


def token_spans(first: IntArray, last: IntArray, pauses: Columns) -> Columns:
    """Return the steps in which requests got tokens as uninterrupted spans, in order of request and step.

    Args:
        first: step of each request's first token, -1 where there is none.
        last: step of its latest.
        pauses: see :func:`pauses_of`.

    Returns:
        Columns ``request``, ``first`` and ``last``; one row per request with a token, and one more per pause.
    """
    rows = np.flatnonzero(first >= 0)
    request = np.concatenate([rows, pauses["request"]])
    begin = np.concatenate([first[rows], pauses["until"]])
    order = np.lexsort((begin, request))
    request, begin = request[order], begin[order]
    end = np.concatenate([last[rows], pauses["after"]])
    end = end[np.lexsort((end, np.concatenate([rows, pauses["request"]])))]
    return {"request": request, "first": begin, "last": end}


GAP_BLOCK = 16_000
"""Token gaps sorted at a time: few enough to stay in a core's cache, and to bound memory in long runs."""


def token_gaps(ends: IntArray, first: IntArray, last: IntArray, pauses: Columns | None = None) -> Columns:
    """Return ``tpot_mean_ns``, ``tpot_p99_ns`` (floats, NaN without a gap) and ``itl_max_ns`` per request.

    ``first`` and ``last`` are the steps of each request's first and latest token, -1 where there is none; a
    request emits one token per step between them, except where it pauses.
    """
    gaps = _steady_gaps(ends, first, last)
    if pauses is None or not len(pauses["request"]):
        return gaps
    spans = token_spans(first, last, pauses)
    for request in np.unique(pauses["request"]).tolist():
        own = slice(*np.searchsorted(spans["request"], [request, request + 1]))
        steps = np.concatenate(
            [np.arange(a, b + 1) for a, b in zip(spans["first"][own], spans["last"][own], strict=True)]
        )
        between = np.diff(ends[steps])
        gaps["tpot_mean_ns"][request] = (ends[steps[-1]] - ends[steps[0]]) / len(between)
        gaps["tpot_p99_ns"][request] = np.percentile(between, 99)
        gaps["itl_max_ns"][request] = between.max()
    return gaps


def _steady_gaps(ends: IntArray, first: IntArray, last: IntArray) -> Columns:
    """Return what :func:`token_gaps` does of requests that get a token in every step."""
    n = len(first)
    mean, p99 = np.full(n, np.nan), np.full(n, np.nan)
    longest = np.full(n, NULL, dtype=np.int64)
    counts = np.where(first >= 0, last - first, 0)
    rows = np.flatnonzero(counts > 0)
    gaps = np.diff(ends)
    mean[rows] = (ends[last[rows]] - ends[first[rows]]) / counts[rows]
    buffers = np.empty((2, max(GAP_BLOCK, int(counts.max(initial=0)))), dtype=np.int64)
    # Equal lengths together make dense matrices, and rows of similar length waste little padding.
    rows = rows[np.argsort(counts[rows], kind="stable")]
    for block in _blocks(counts[rows]):
        at = rows[block]
        size = counts[at]
        width = int(size[-1])
        offset = np.arange(width, dtype=np.int64)
        cells = len(at) * width
        index, matrix = (buffer[:cells].reshape(len(at), width) for buffer in buffers)
        np.add(first[at, None], offset, out=index)
        gaps.take(index, out=matrix, mode="clip")
        # What lies beyond a request's last gap sorts to the left, so that its own stand at the right end.
        np.copyto(matrix, NULL, where=offset >= size[:, None])
        position = 0.99 * (size - 1)
        low = position.astype(np.int64)
        weight = position - low
        # Ranks from the top: only the few largest gaps of a row need sorting.
        rank = size - 1 - low
        few = int(rank.max()) + 1
        matrix.partition(width - few, axis=1)
        top = matrix[:, width - few :]
        top.sort(axis=1)
        line = np.arange(len(at))
        a = top[line, few - 1 - rank]
        b = top[line, few - 1 - np.maximum(rank - 1, 0)]
        # The same interpolation as numpy's, so that the two agree to the last bit.
        diff = b - a
        p99[at] = np.where(weight >= 0.5, b - diff * (1 - weight), a + diff * weight)
        longest[at] = top[:, -1]
    return {"tpot_mean_ns": mean, "tpot_p99_ns": p99, "itl_max_ns": longest}


FEW_GAPS = 2_000
"""So many cells take less time to sort than another block."""


def _blocks(sizes: IntArray) -> list[slice]:
    """Cut ascending sizes into runs that differ by at most a factor of two, of at most ``GAP_BLOCK`` cells each.

    Few are one run, whatever their sizes.
    """
    if len(sizes) and len(sizes) * int(sizes[-1]) <= FEW_GAPS:
        return [slice(0, len(sizes))]
    blocks, start = [], 0
    while start < len(sizes):
        stop = int(np.searchsorted(sizes, sizes[start] * 2, side="right"))
        stop = min(stop, start + max(1, GAP_BLOCK // int(sizes[stop - 1])))
        blocks.append(slice(start, stop))
        start = stop
    return blocks
