"""The tidy table of a sweep keeps every value, in Parquet and in CSV."""

from __future__ import annotations

import csv
import io
import random

import pandas as pd

from experiments.tables import csv_bytes, parquet_bytes
from tests.seeded import cases, pick, whole

EDGES = (0, 1, -1, 2**53 + 1, 2**63 - 1, -(2**63), 2**63, 10**22, -(10**22))


def values(rng: random.Random) -> list[int | float | str | None]:
    """A column, of one kind or mixed."""
    makers = (pick(*EDGES), whole(-9, 9), pick(0.1, 2.5, 1e300), pick("a", "größer"), pick(None))
    chosen = rng.sample(makers, rng.randint(1, 3))
    return [rng.choice(chosen)(rng) for _ in range(rng.randint(1, 6))]


@cases(200, values)
def test_every_value_comes_back(column: list[int | float | str | None]) -> None:
    """Whole numbers exactly, unless one of them is beyond 64 bits or others are fractions; beside text all are text."""
    rows = [{"axis": v} for v in column]
    back = pd.read_parquet(io.BytesIO(parquet_bytes(rows)))["axis"]
    assert [v is None for v in column] == back.isna().tolist()
    known = [v for v in column if v is not None]
    found = back.dropna().tolist()
    if any(isinstance(v, str) for v in known):
        assert found == [str(v) for v in known]
    elif all(isinstance(v, int) and -(2**63) <= v < 2**63 for v in known) and None not in column:
        assert found == known
    else:
        assert found == [float(v) for v in known]
    text = [row["axis"] for row in csv.DictReader(io.StringIO(csv_bytes(rows).decode()))]
    assert text == ["" if v is None else str(v) for v in column]
