"""The tables of a run replica by replica."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from sim.records import NULL, Columns
from traces.schema import IntArray


def by_replica(requests: Columns, steps: Columns, preemptions: Columns) -> Iterator[tuple[Columns, Columns, Columns]]:
    """Yield requests, steps and preemptions of each replica, ready to be looked at as a run of one engine.

    Within each the steps are in order of time, and steps and requests are counted from 0.
    """
    if not steps["replica"].any() and not requests["replica"].any():
        yield requests, steps, preemptions
        return
    owner = requests["replica"][preemptions["request"]]
    number = np.arange(len(requests["replica"]))
    for replica in np.unique(steps["replica"]).tolist():
        mine = requests["replica"] == replica
        own = steps["replica"] == replica
        first = int(np.argmax(own))
        place = np.cumsum(mine) - 1
        rows = {name: values[owner == replica] for name, values in preemptions.items()}
        for name in ("step", "after", "until"):
            rows[name] = np.where(rows[name] == NULL, NULL, rows[name] - first)
        rows["request"] = place[rows["request"]]
        yield (
            {name: values[number[mine]] for name, values in requests.items()},
            {name: values[own] for name, values in steps.items()},
            rows,
        )


def first_token_steps(requests: Columns, steps: Columns) -> IntArray:
    """Return the step of each request's first token, -1 where there is none; each replica has steps of its own."""
    ends = steps["start_ns"] + steps["duration_ns"]
    found = np.full(len(requests["replica"]), NULL, dtype=np.int64)
    for replica in np.unique(steps["replica"]).tolist():
        own = np.flatnonzero(steps["replica"] == replica)
        mine = np.flatnonzero((requests["replica"] == replica) & (requests["generated_tokens"] > 0))
        found[mine] = own[np.searchsorted(ends[own], requests["first_token_ns"][mine])]
    return found
