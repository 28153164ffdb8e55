"""The requests of a run that arrived in a window of time: what is left of it without its warm-up and its end."""

from __future__ import annotations

import numpy as np

from sim.records import NULL, Columns


def arrived_between(
    requests: Columns, preemptions: Columns, begin_ns: int, end_ns: int | None
) -> tuple[Columns, Columns]:
    """Return the rows of requests that arrived at or after ``begin_ns`` and before ``end_ns``, and their preemptions.

    They are measured until they finish, beside whatever ran with them: the steps stay whole.

    Args:
        requests: of a run, see :class:`sim.records.Tables`.
        preemptions: of the same run.
        begin_ns: on the run's clock.
        end_ns: ``None``: no end.
    """
    arrival = requests["arrival_ns"]
    inside = arrival >= begin_ns
    if end_ns is not None:
        inside &= arrival < end_ns
    place = np.where(inside, np.cumsum(inside) - 1, NULL)
    kept = place[preemptions["request"]] >= 0
    chosen = {name: values[kept] for name, values in preemptions.items()}
    chosen["request"] = place[chosen["request"]]
    return {name: values[inside] for name, values in requests.items()}, chosen
