"""Which requests each step ran, in vLLM's batch order."""

from __future__ import annotations

import numpy as np

from sim.records import Columns, Tables


def batch_table(tables: Tables) -> Columns:
    """Expand a run into one row per request and step.

    Columns ``step``, ``position`` (in the batch), ``request`` (index) and ``tokens``: the size of its prefill chunk,
    or 1 for a decode. The order within a step is vLLM's list of running requests: by first scheduled step, then by the
    order within that step, so those admitted in the step itself stand last.
    """
    requests, steps, chunks = tables.requests, tables.steps, tables.chunks
    started, first_chunk = np.unique(chunks["request"], return_index=True)
    admitted = np.full(len(requests["arrival_ns"]), len(chunks["request"]))
    admitted[started] = first_chunk

    decoding = np.flatnonzero(requests["generated_tokens"] > 1)
    count = requests["generated_tokens"][decoding] - 1
    ends = steps["start_ns"] + steps["duration_ns"]
    first_decode = np.searchsorted(ends, requests["first_token_ns"][decoding]) + 1
    within = np.arange(int(count.sum())) - np.repeat(np.cumsum(count) - count, count)

    step = np.concatenate([chunks["step"], np.repeat(first_decode, count) + within])
    request = np.concatenate([chunks["request"], np.repeat(decoding, count)])
    tokens = np.concatenate([chunks["tokens"], np.ones(len(within), dtype=np.int64)])
    order = np.lexsort((admitted[request], step))
    step = step[order]
    position = np.arange(len(step)) - np.searchsorted(step, step)
    return {"step": step, "position": position, "request": request[order], "tokens": tokens[order]}
