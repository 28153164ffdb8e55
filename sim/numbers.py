"""Columns of numbers as lists for loops that read them one by one."""

from __future__ import annotations

import numpy as np

from traces.schema import IntArray


def as_list(column: IntArray) -> list[int]:
    """Return a column of numbers from 0 on as a list, equal ones as one object where that is cheap to arrange.

    Requests that wait are taken in an order that is not the one they came in, so that every object of theirs is one
    more to miss in the caches.
    """
    top = int(column.max(initial=0))
    if top >= len(column):
        return column.tolist()  # type: ignore[no-any-return]
    shared = np.arange(top + 1).astype(object)
    return shared[column].tolist()  # type: ignore[no-any-return]
