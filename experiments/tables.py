"""The tidy table of a sweep: one row per cell, as parquet and CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from experiments.axes import Experiment
from experiments.run import CellResult
from sim.store import atomic_write

SUMMARY_PARQUET, SUMMARY_CSV = "summary.parquet", "summary.csv"

Rows = list[dict[str, Any]]


def summary_rows(experiment: Experiment, results: Mapping[str, CellResult]) -> Rows:
    """Return one row per cell, in the order of the axes: what it is, the metrics, and the error of a failed one.

    A metric is ``None`` where nothing was measured.
    """
    metrics = list(dict.fromkeys(m for r in results.values() for m in r.summary or ()))
    rows = []
    for cell in experiment.cells:
        result = results.get(cell.key)
        summary = (result and result.summary) or {}
        rows.append(
            {
                **{axis: _plain(value) for axis, value in cell.point},
                "trace": cell.source.label,
                "policy": cell.label,
                "seed": cell.seed,
                "objectives": str(cell.objectives),
                **{metric: summary.get(metric) for metric in metrics},
                "error": result and result.error,
                "cell": cell.key,
            }
        )
    return rows


def write_summary_tables(folder: Path, experiment: Experiment, results: Mapping[str, CellResult]) -> None:
    """Write ``summary.parquet`` and ``summary.csv``; equal results make equal bytes.

    Raises:
        OSError: if they cannot be written.
    """
    rows = summary_rows(experiment, results)
    atomic_write(folder / SUMMARY_PARQUET, parquet_bytes(rows))
    atomic_write(folder / SUMMARY_CSV, csv_bytes(rows))


def parquet_bytes(rows: Rows) -> bytes:
    """Return rows, all with the same keys, as a parquet file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = {name: _typed([row[name] for row in rows]) for name in (rows[0] if rows else ())}
    buffer = io.BytesIO()
    pq.write_table(pa.table(columns), buffer, compression="zstd")
    return buffer.getvalue()


def csv_bytes(rows: Rows) -> bytes:
    """Return rows, all with the same keys, as CSV; missing values are empty, floats have all their digits."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    if rows:
        writer.writerow(rows[0])
        writer.writerows(row.values() for row in rows)
    return text.getvalue().encode(errors="replace")


def _plain(value: Any) -> Any:
    return value if value is None or isinstance(value, int | float | str) else str(value)


def _typed(values: list[Any]) -> Any:
    """Return values of one type as an array: whole numbers, numbers (whole ones of over 64 bits too), else text."""
    from sim.arrow import numbers, strings

    kinds = {type(v) for v in values if v is not None}
    if not kinds <= {int, float}:
        return strings([None if v is None else str(v) for v in values])
    known = [0 if v is None else v for v in values]
    whole = kinds == {int} and all(-(2**63) <= v < 2**63 for v in known)
    kind = np.int64 if whole else np.float64
    return numbers(np.array(known, dtype=kind), np.array([v is None for v in values], dtype=bool))
