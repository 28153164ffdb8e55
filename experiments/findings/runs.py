"""Runs a question's experiments and writes what they came to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from experiments.axes import Experiment, plan
from experiments.cells import Cell
from experiments.config import ConfigError
from experiments.draft import Draft
from experiments.findings.question import Question
from experiments.findings.table import Table, parsed, read_table
from experiments.plotting import new_figure, save_figure
from experiments.run import CellResult
from experiments.sweep import CELLS, Stopped, run_sweep
from experiments.tables import Rows, csv_bytes
from sim.store import atomic_write, read_run

RUNS = "runs"


def planned(question: Question) -> dict[str, Experiment]:
    """Return the experiments of a question by the stem of their file.

    Raises:
        ConfigError, TraceError: if one cannot run, for instance for want of a trace.
    """
    found = {}
    for path in question.files:
        draft = Draft()
        draft.put_file(path)
        draft.put("keep", "summary" if question.measure is None else "records", str(path))
        found[path.stem] = plan(draft)
    return found


def missing_traces(question: Question) -> list[str]:
    """Return the trace files that a question needs and that are not there."""
    needed: list[str] = []
    for path in question.files:
        draft = Draft()
        draft.put_file(path)
        axes = draft.take_axes()
        values, _ = axes.get("trace.file", ([], ""))
        swept = draft.sought("sweep.trace.file", values) if values else []
        needed += [str(name) for name in (draft.get("trace.file"), *swept) if name is not None]
    return [name for name in dict.fromkeys(needed) if not Path(name).is_file()]


def identity(question: Question, stem: str, cell: Cell) -> dict[str, Any]:
    """Return the columns that say which run a row is of."""
    several = {"experiment": stem} if len(question.files) > 1 else {}
    point = {axis: v if v is None or isinstance(v, int | float | str) else str(v) for axis, v in cell.point}
    return {**several, **point, "trace": cell.source.label, "policy": cell.label, "seed": cell.seed}


def row_of(question: Question, stem: str, cell: Cell, result: CellResult, folder: Path) -> dict[str, Any]:
    """Return the row of a run that has been kept in ``folder``.

    Raises:
        Stopped: if it has failed.
        KeyError: if its summary does not have a metric of the question.
    """
    if result.summary is None:
        raise Stopped(f"{question.name}: {cell.describe()}: {result.error}")
    row = identity(question, stem, cell) | {metric: result.summary[metric] for metric in question.metrics}
    return row if question.measure is None else row | question.measure(read_run(folder))


def run(
    question: Question, folder: Path, *, resume: bool = False, jobs: int | None = None, progress: bool = False
) -> list[Path]:
    """Run a question's experiments into ``folder/runs`` and write its tables and its picture.

    ``NAME-runs.csv`` has a row for each run; ``NAME.csv``, ``.png`` and ``.pdf`` what is drawn.

    Raises:
        ConfigError, TraceError: if an experiment cannot run.
        Stopped: if a run has failed.
        OSError: if something cannot be written.
    """
    rows: Rows = []
    for stem, experiment in planned(question).items():
        out = folder / RUNS / stem
        sweep = run_sweep(experiment, out=out, resume=resume, jobs=jobs, progress=progress)
        rows += [
            row_of(question, stem, cell, sweep.results[cell.key], out / CELLS / cell.key) for cell in experiment.cells
        ]
    columns = list(dict.fromkeys(name for row in rows for name in row))
    content = csv_bytes([{name: row.get(name) for name in columns} for row in rows])
    path = folder / f"{question.name}-runs.csv"
    atomic_write(path, content)
    return [path, *picture(question, parsed(content), folder)]


def picture(question: Question, table: Table, folder: Path) -> list[Path]:
    """Write ``NAME.csv``, ``NAME.png`` and ``NAME.pdf``.

    Raises:
        OSError: if they cannot be written.
    """
    rows = question.drawn(table)
    with new_figure(*question.size) as figure:
        question.draw(rows, figure)
        return save_figure(figure, folder, question.name, rows)


def stored(question: Question, folder: Path) -> Table:
    """Read the runs that :func:`run` has written.

    Raises:
        ConfigError: if they are not there.
    """
    path = folder / f"{question.name}-runs.csv"
    if not path.is_file():
        raise ConfigError(f"{path} is not there; `prefillsim figures findings {question.name}` makes it")
    return read_table(path)
