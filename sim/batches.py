"""Which requests each step ran, in vLLM's batch order."""

from __future__ import annotations

import numpy as np

from sim.gaps import last_token_steps, pauses_of, token_spans
from sim.records import Columns, Tables
from sim.replicas import first_token_steps
from traces.schema import IntArray


def batch_table(tables: Tables) -> Columns:
    """Expand a run into one row per request and step.

    Columns ``step``, ``position`` (in the batch), ``request`` (index) and ``tokens``: the size of its prefill chunk,
    or 1 for a decode. The order within a step is vLLM's list of running requests: by the step in which a request
    was scheduled first, or first again after a preemption, then by the order within that step, so those admitted in the
    step itself stand last.
    """
    requests, chunks = tables.requests, tables.chunks
    pauses = pauses_of(tables.preemptions)
    first = first_token_steps(requests, tables.steps)
    spans = token_spans(first, last_token_steps(first, requests["generated_tokens"], pauses), pauses)
    # A span's first token comes from its last prefill chunk, all others from decodes.
    count = spans["last"] - spans["first"]
    within = np.arange(int(count.sum())) - np.repeat(np.cumsum(count) - count, count)

    step = np.concatenate([chunks["step"], np.repeat(spans["first"] + 1, count) + within])
    request = np.concatenate([chunks["request"], np.repeat(spans["request"], count)])
    tokens = np.concatenate([chunks["tokens"], np.ones(len(within), dtype=np.int64)])
    order = np.lexsort((_admitted(tables, request, step), step))
    step = step[order]
    position = np.arange(len(step)) - np.searchsorted(step, step)
    return {"step": step, "position": position, "request": request[order], "tokens": tokens[order]}


def _admitted(tables: Tables, request: IntArray, step: IntArray) -> IntArray:
    """Return the row of the chunk with which each request was last admitted, as seen from each step."""
    chunks, preemptions = tables.chunks, tables.preemptions
    n_steps = len(tables.steps["start_ns"]) + 1
    # A life begins with a request's first chunk and with the first after each preemption.
    order = np.sort(preemptions["request"] * n_steps + preemptions["step"])
    life_of_chunk = np.searchsorted(order, chunks["request"] * n_steps + chunks["step"])
    life = life_of_chunk * len(tables.requests["arrival_ns"]) + chunks["request"]
    lives, first_chunk = np.unique(life, return_index=True)
    wanted = np.searchsorted(order, request * n_steps + step) * len(tables.requests["arrival_ns"]) + request
    found: IntArray = first_chunk[np.searchsorted(lives, wanted)]
    return found
