"""The verdicts on disk: who was killed by which test."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from tests.mutation.catalogue import MUTANTS
from tests.mutation.mutant import ROOT, Mutant

RESULTS = ROOT / "docs" / "mutants.json"

Rows = dict[Mutant, dict[str, str]]


def read(path: Path) -> Rows:
    """Return the verdicts of mutants that are still in the list, by mutant."""
    listed = {(m.file, m.old, m.new): m for m in MUTANTS}
    rows = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    return {m: row for row in rows if (m := listed.get((row["file"], row["old"], row["new"]))) is not None}


def write(path: Path, rows: Rows) -> None:
    """Write verdicts, in the order of the list."""
    ordered = [
        {"file": m.file, "old": m.old, "new": m.new, "outcome": rows[m]["outcome"], "by": rows[m]["by"]}
        for m in MUTANTS
        if m in rows
    ]
    part = path.with_name(f".{path.name}.part")
    part.write_text(json.dumps(ordered, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    part.replace(path)


def in_turn(mutants: Iterable[Mutant]) -> list[Mutant]:
    """Return the design's own mutants first, then the others file by file in turn."""
    mutants = list(mutants)
    place: dict[Mutant, int] = {}
    seen: dict[str, int] = {}
    for mutant in mutants:
        place[mutant] = seen[mutant.file] = seen.get(mutant.file, -1) + 1
    return sorted(mutants, key=lambda m: (not m.group, place[m]))
