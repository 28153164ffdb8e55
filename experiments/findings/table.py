"""The runs of a question as rows: chosen, averaged, compared by seed, kept as CSV and put into words."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.output import number
from experiments.tables import Rows
from sim.stats import Interval, paired, t_interval

PAIRED_BY = ("trace", "seed")


@dataclass(frozen=True)
class Table:
    """Rows of runs: what each is (``trace``, ``policy``, ``seed``, the axes), and its metrics."""

    rows: Rows

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def where(self, **values: Any) -> Table:
        """Return the rows whose columns have these values.

        Raises:
            LookupError: if there is none, so that no sentence is about nothing.
        """
        found = self.rows
        for name, value in values.items():
            found = [row for row in found if row[name] == value]
        if not found:
            raise LookupError(f"no run has {', '.join(f'{n}={v!r}' for n, v in values.items())}")
        return Table(found)

    def values(self, column: str) -> list[Any]:
        """Return the different values of a column in the order in which they come."""
        return list(dict.fromkeys(row[column] for row in self.rows))

    def estimate(self, metric: str) -> Interval:
        """Return a metric's mean over these rows, one per seed, and its 95 % t-interval."""
        self._one_per_seed()
        return t_interval([row[metric] for row in self.rows])

    def minus(self, other: Table, metric: str) -> Interval:
        """Return the mean difference in a metric on the traces and seeds of both, and its 95 % interval."""
        self._one_per_seed()
        other._one_per_seed()
        theirs = {_pair(row): row[metric] for row in other.rows}
        both = [(row[metric], theirs[_pair(row)]) for row in self.rows if _pair(row) in theirs]
        return paired([a for a, _ in both], [b for _, b in both]).difference

    def over(self, other: Table, metric: str) -> float:
        """Return the ratio of the means of a metric."""
        ours, theirs = self.estimate(metric).mean, other.estimate(metric).mean
        if ours is None or not theirs:
            raise LookupError(f"{metric} has no ratio here")
        return ours / theirs

    def means(self, by: Sequence[str], metrics: Sequence[str]) -> Rows:
        """Return, for each combination of the columns ``by``, the metrics' means as ``M``, ``M_lo`` and ``M_hi``."""
        groups: dict[tuple[Any, ...], Rows] = {}
        for row in self.rows:
            groups.setdefault(tuple(row[name] for name in by), []).append(row)
        found = []
        for key, rows in groups.items():
            line: dict[str, Any] = dict(zip(by, key, strict=True)) | {"seeds": len(rows)}
            for metric in metrics:
                mean, lo, hi = Table(rows).estimate(metric)
                line |= {metric: mean, f"{metric}_lo": lo, f"{metric}_hi": hi}
            found.append(line)
        return found

    def _one_per_seed(self) -> None:
        pairs = [_pair(row) for row in self.rows]
        if len(set(pairs)) < len(pairs):
            raise LookupError("there are several runs of one seed; choose among them first")


def _pair(row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in PAIRED_BY)


def read_table(path: Path) -> Table:
    """Read what :func:`experiments.tables.csv_bytes` has written: numbers, text, and nothing for ``None``.

    Raises:
        OSError: if it cannot be read.
    """
    return parsed(path.read_bytes())


def parsed(content: bytes) -> Table:
    """Return the rows of a CSV file; see :func:`read_table`."""
    reader = csv.DictReader(io.StringIO(content.decode()))
    return Table([{name: _value(text) for name, text in row.items()} for row in reader])


def _value(text: str) -> Any:
    if text in ("", "True", "False"):
        return {"": None, "True": True, "False": False}[text]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def words(interval: Interval, *, signed: bool = False, times: float = 1.0) -> str:
    """Return ``59.1 (57.3 to 60.9)``, or ``+1.3 (0.2 to 2.4)``; ``times`` 100 for a share in percent."""
    mean, lo, hi = interval
    if mean is None:
        return "nothing"
    sign = "+" if signed and mean > 0 else ""
    text = f"{sign}{number(times * mean)}"
    if lo is None or hi is None:
        return text
    return f"{text} ({number(times * lo)} to {number(times * hi)})"
