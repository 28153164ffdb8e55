"""Which request prefilled how many tokens in which step of a stored run."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sim.gaps import pauses_of
from sim.records import Columns
from sim.store import StoredRun
from traces.schema import IntArray


def chunks_of(run: StoredRun) -> Columns | None:
    """Return the prefill chunks: columns ``step``, ``request`` (index) and ``tokens``, in order of time per replica.

    They are read from the batches where those were stored, and otherwise follow from requests and steps as long as
    at most one of a step's prefills is neither at its end nor alone. ``None`` where they do not, as after a
    preemption or when several prompts were cut in one step.
    """
    return _deduced(run.requests, run.steps) if run.batches is None else _of_batches(run)


def _of_batches(run: StoredRun) -> Columns:
    assert run.batches is not None
    requests, steps = run.requests, run.steps
    ends = steps["start_ns"] + steps["duration_ns"]
    index = {name: i for i, name in enumerate(requests["id"].tolist())}
    known = np.array([index.get(name, -1) for name in run.batches["request"].tolist()], dtype=np.int64)
    step, request, tokens = (v[known >= 0] for v in (run.batches["step"], known, run.batches["tokens"]))
    first = requests["first_token_ns"][request]
    prefilling = (first < 0) | (ends[step] <= first)
    prefilling |= _paused(run, request, step)
    # Who was preempted and has no token since is still prefilling again, from then on.
    lost = run.preemptions["until"] < 0
    since = np.full(len(requests["id"]), len(ends), dtype=np.int64)
    np.minimum.at(since, run.preemptions["request"][lost], run.preemptions["step"][lost])
    prefilling |= step >= since[request]
    return {"step": step[prefilling], "request": request[prefilling], "tokens": tokens[prefilling]}


def _paused(run: StoredRun, request: IntArray, step: IntArray) -> NDArray[np.bool_]:
    """Return which of the requests in the steps are within a pause, after its ``after`` and until its ``until``."""
    pauses, width = pauses_of(run.preemptions), len(run.steps["start_ns"]) + 1
    if not len(pauses["request"]):
        return np.zeros(len(step), dtype=np.bool_)
    # Numbers that rise by request and then by step.
    begins = pauses["request"] * width + pauses["after"]
    ends = np.maximum.accumulate(pauses["request"] * width + pauses["until"])
    at = request * width + step
    before = np.searchsorted(begins, at, side="left") - 1
    paused: NDArray[np.bool_] = (before >= 0) & (ends[np.maximum(before, 0)] >= at)
    return paused


def _deduced(requests: Columns, steps: Columns) -> Columns | None:
    if requests["preemptions"].any() or not len(steps["start_ns"]):
        return None
    found: list[tuple[int, int, int]] = []
    for replica in np.unique(steps["replica"]).tolist():
        if not _deduce_replica(requests, steps, replica, found):
            return None
    table = np.array(found, dtype=np.int64).reshape(-1, 3)
    counted = np.bincount(table[:, 1], minlength=len(requests["chunks"]))
    if (counted != requests["chunks"]).any():
        return None
    return {name: table[:, j] for j, name in enumerate(("step", "request", "tokens"))}


def _deduce_replica(requests: Columns, steps: Columns, replica: int, found: list[tuple[int, int, int]]) -> bool:
    own = np.flatnonzero(steps["replica"] == replica)
    start, ends = steps["start_ns"][own], (steps["start_ns"] + steps["duration_ns"])[own]
    mine = np.flatnonzero((requests["replica"] == replica) & (requests["first_scheduled_ns"] >= 0))
    begin = np.searchsorted(start, requests["first_scheduled_ns"][mine])
    first = requests["first_token_ns"][mine]
    last = np.where(first >= 0, np.searchsorted(ends, first), len(own))
    todo = (requests["prompt_tokens"] - requests["cached_tokens"])[mine]
    order = np.argsort(begin, kind="stable")
    coming = list(
        zip(begin[order].tolist(), last[order].tolist(), todo[order].tolist(), mine[order].tolist(), strict=True)
    )
    coming.reverse()
    under_way: dict[int, tuple[int, int]] = {}
    n_prefill, tokens = steps["n_prefill"][own].tolist(), steps["prefill_tokens"][own].tolist()
    for p in np.flatnonzero(steps["n_prefill"][own] > 0).tolist():
        while coming and coming[-1][0] <= p:
            _, end, left, request = coming.pop()
            under_way[request] = (end, left)
        if len(under_way) != n_prefill[p]:
            return False
        ending = {r: left for r, (end, left) in under_way.items() if end == p}
        going_on = [r for r in under_way if r not in ending]
        rest = tokens[p] - sum(ending.values())
        step = int(own[p])
        if len(going_on) > 1 or (rest != 0 and not going_on):
            return False
        for r in list(under_way):
            end, left = under_way[r]
            if r in ending:
                found.append((step, r, left))
                del under_way[r]
            elif 0 < rest < left:
                found.append((step, r, rest))
                under_way[r] = (end, left - rest)
            else:
                return False
    return all(end >= len(own) for end, _ in under_way.values())
