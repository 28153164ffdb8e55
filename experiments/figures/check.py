"""Tables that were made against those that are committed, cell by cell."""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from experiments.documents import FOLDER
from experiments.figures.parts import FINDINGS, Part
from sim.store import atomic_write

RELATIVE, ABSOLUTE = 1e-6, 1e-9
"""By how much numbers that are not whole may differ: sums in another order, on another processor."""


@dataclass(frozen=True)
class Difference:
    """One cell that is not what was committed, or a table, a row or a column that only one side has."""

    file: str
    what: str
    """Row and column, with the texts of the row that tell which it is."""
    committed: str
    made: str

    def __str__(self) -> str:
        return f"{self.file}{', ' if self.what else ''}{self.what}: committed {self.committed}, made {self.made}"


def committed_folder(part: Part, docs: Path = FOLDER) -> Path:
    """Return where a part's tables are committed."""
    return docs / FINDINGS if part.name == FINDINGS else docs / "figures" / part.name


def made_tables(part: Part, folder: Path) -> dict[str, Path]:
    """Return the tables in a part's folder that are compared, by name."""
    return {path.name: path for path in sorted(folder.glob("*.csv")) if path.name not in part.uncompared}


def differences(part: Part, folder: Path, *, docs: Path = FOLDER, skipped: Sequence[str] = ()) -> list[Difference]:
    """Return how the tables in a part's folder differ from the committed ones.

    Args:
        part: which.
        folder: where it was made.
        docs: with ``figures/PART/*.csv`` and ``findings/*.csv``.
        skipped: names of steps that could not be made; tables whose names begin with one are not missed.

    Raises:
        OSError: if a table cannot be read.
    """
    committed = {path.name: path for path in sorted(committed_folder(part, docs).glob("*.csv"))}
    made = made_tables(part, folder)
    found: list[Difference] = []
    for name in sorted({*committed, *made}):
        label = f"{part.name}/{name}"
        if name not in made:
            if not any(name in (f"{step}.csv", f"{step}-runs.csv") for step in skipped):
                found.append(Difference(label, "", "a table", "nothing"))
        elif name not in committed:
            found.append(Difference(label, "", "nothing", "a table"))
        else:
            found += compared(label, read_rows(committed[name]), read_rows(made[name]))
    return found


def write_committed(part: Part, folder: Path, docs: Path = FOLDER) -> list[Path]:
    """Write the tables of a part where they are committed, and pictures that are too; return those that changed.

    Tables that are committed and were not made stay.

    Raises:
        OSError: if one cannot be read or written.
    """
    target = committed_folder(part, docs)
    target.mkdir(parents=True, exist_ok=True)
    written = []
    pictures = [path for path in sorted(folder.glob("*.png")) if (target / path.name).is_file()]
    for path in (*made_tables(part, folder).values(), *pictures):
        content, kept = path.read_bytes(), target / path.name
        if not kept.is_file() or kept.read_bytes() != content:
            atomic_write(kept, content)
            written.append(kept)
    return written


def read_rows(path: Path) -> list[list[str]]:
    """Return a table's lines, its header first.

    Raises:
        OSError: if it cannot be read.
    """
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.reader(file))


def compared(label: str, committed: list[list[str]], made: list[list[str]]) -> list[Difference]:
    """Return the differences of two tables, given as lines with the header first."""
    (header, *theirs), (ours_header, *ours) = committed or [[]], made or [[]]
    if header != ours_header:
        return [Difference(label, "columns", ", ".join(header), ", ".join(ours_header))]
    found = [] if len(theirs) == len(ours) else [Difference(label, "rows", str(len(theirs)), str(len(ours)))]
    for number, (a, b) in enumerate(zip(theirs, ours, strict=False), 1):
        about = ", ".join(text for text in a if text and not _is_number(text))
        for column, x, y in zip(header, a, b, strict=True):
            if not same(x, y):
                row = f"row {number}{f' ({about[:80]})' if about else ''}, {column}"
                found.append(Difference(label, row, x or "nothing", y or "nothing"))
    return found


def same(a: str, b: str) -> bool:
    """Return whether two cells are the same: texts and whole numbers exactly, other numbers nearly."""
    if a == b:
        return True
    if _is_whole(a) and _is_whole(b):
        return False
    if not (_is_number(a) and _is_number(b)):
        return False
    return math.isclose(float(a), float(b), rel_tol=RELATIVE, abs_tol=ABSOLUTE)


def _is_whole(text: str) -> bool:
    return text.lstrip("-").isdigit()


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
