"""Equality of whole runs."""

from __future__ import annotations

import hashlib
from collections.abc import Collection

import numpy as np

from sim.records import Columns
from tests.tables import RunTables


def assert_same_columns(left: Columns, right: Columns, what: str, ignore: Collection[str] = ()) -> None:
    """Fail unless two tables have the same columns, types and values; NaN equals NaN."""
    assert list(left) == list(right)
    for name in left:
        if name in ignore:
            continue
        a, b = left[name], right[name]
        assert a.dtype == b.dtype, f"{what}.{name}"
        # Nearly all columns are equal, and numpy's comparison takes as long as a small run.
        if not a.dtype.hasobject and a.shape == b.shape and a.tobytes() == b.tobytes():
            continue
        np.testing.assert_array_equal(a, b, err_msg=f"{what}.{name}", strict=True)


def assert_same_run(left: RunTables, right: RunTables, ignore: Collection[str] = ()) -> None:
    """Fail unless two runs agree in every table; ``ignore`` names columns left out."""
    for table in ("steps", "chunks", "preemptions", "requests"):
        assert_same_columns(getattr(left, table), getattr(right, table), table, ignore)
    assert left.reasons == right.reasons


def digest(run: RunTables) -> str:
    """Return a hash of the bytes of all columns."""
    h = hashlib.sha256()
    for table in (run.requests, run.steps, run.chunks, run.preemptions):
        for name, values in table.items():
            h.update(f"{name} {values.dtype.str} {len(values)}".encode())
            h.update(np.ascontiguousarray(values).tobytes())
    h.update(repr(sorted(run.reasons.items())).encode())
    return h.hexdigest()
