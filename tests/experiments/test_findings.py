"""Findings: words and pictures come from the runs that are kept, and the runs are those of the files."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments.findings.catalogue import questions
from experiments.findings.question import Question
from experiments.findings.runs import identity, missing_traces, planned, row_of, stored
from experiments.findings.table import Table, parsed, words
from experiments.run import CellResult, run_cell
from experiments.tables import csv_bytes
from sim.stats import Interval

KEPT = Path(__file__).parents[2] / "docs" / "findings"
SAMPLED = 2
"""Runs of each question that are made again here; `prefillsim figures all --check` makes all."""

ALL = pytest.mark.parametrize("question", questions(), ids=lambda question: question.name)


@ALL
def test_the_drawn_numbers_are_those_of_the_runs(question: Question) -> None:
    table = stored(question, KEPT)
    assert (KEPT / f"{question.name}.csv").read_bytes() == csv_bytes(question.drawn(table))
    assert csv_bytes(table.rows) == (KEPT / f"{question.name}-runs.csv").read_bytes()


@ALL
def test_the_runs_are_those_of_the_files(question: Question, tmp_path: Path) -> None:
    if missing := missing_traces(question):
        pytest.skip(f"{missing[0]} is not here")
    cells = [(stem, cell) for stem, experiment in planned(question).items() for cell in experiment.cells]
    rows = stored(question, KEPT).rows
    made = [identity(question, stem, cell) for stem, cell in cells]
    names = list(dict.fromkeys(name for row in made for name in row))
    expected = parsed(csv_bytes([{name: row.get(name) for name in names} for row in made])).rows
    assert [{name: row[name] for name in names} for row in rows] == expected
    quickest = sorted(range(len(cells)), key=lambda at: cells[at][1].requests)[:: max(len(cells) // SAMPLED, 1)]
    for at in quickest[:SAMPLED]:
        stem, cell = cells[at]
        result: CellResult = run_cell(cell, tmp_path / cell.key, {})
        again = row_of(question, stem, cell, result, tmp_path / cell.key)
        for name, value in again.items():
            assert rows[at][name] == (pytest.approx(value, rel=1e-9) if isinstance(value, float) else value), name


def test_a_table_refuses_to_mix_runs_of_one_seed() -> None:
    table = Table([{"trace": "t", "seed": 0, "policy": p, "goodput": g} for p, g in (("a", 1.0), ("b", 2.0))])
    with pytest.raises(LookupError, match="several runs of one seed"):
        table.estimate("goodput")
    with pytest.raises(LookupError, match="no run has policy='c'"):
        table.where(policy="c")


def test_differences_are_paired_by_trace_and_seed() -> None:
    rows = [
        {"trace": "t", "seed": s, "policy": p, "x": v}
        for p, vs in (("a", (5, 9)), ("b", (1, 4)))
        for s, v in enumerate(vs)
    ]
    table = Table(rows)
    backwards = Table(rows[::-1])
    assert table.where(policy="a").minus(backwards.where(policy="b"), "x").mean == 4.5


def test_words() -> None:
    assert words(Interval(1.25, 1.0, 1.5), signed=True) == "+1.25 (1.00 to 1.50)"
    assert words(Interval(0.5, None, None), times=100) == "50.0"
    assert words(Interval(None, None, None)) == "nothing"
