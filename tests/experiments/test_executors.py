"""How cells are handed out: each once, those of a trace together, and the last in small pieces."""

import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments import executors
from experiments.config import ConfigError
from experiments.executors import executor_of, tasks_of
from experiments.sweep import run_sweep
from tests.experiments.sweeping import planned, tables

CELLS = planned({"seeds": 7, "policies": ["fcfs+full", "sloweave", "sarathi"]}, tpot=[25, 50]).cells


@given(st.integers(0, len(CELLS)), st.integers(1, 5))
def test_every_cell_is_in_one_task_and_a_task_has_one_trace(count: int, jobs: int) -> None:
    tasks = tasks_of(CELLS[:count], jobs)
    assert sorted(cell.key for task in tasks for cell in task) == sorted(cell.key for cell in CELLS[:count])
    assert all(len({(cell.source, cell.seed) for cell in task}) == 1 for task in tasks)
    assert len(tasks) >= min(jobs, count)


def test_the_last_tasks_are_small_where_there_is_somebody_to_wait_for() -> None:
    assert [len(task) for task in tasks_of(CELLS, 1)] == [6] * 7
    assert [len(task) for task in tasks_of(CELLS, 2)] == [6] * 3 + [2] * 12


@pytest.mark.parametrize(
    ("where", "jobs", "sentence"),
    [
        ("threads", None, "--cluster threads: it should be in-process, processes or tcp://HOST:PORT"),
        ("proceses", None, "did you mean processes"),
        ("in-process", 2, "--cluster in-process is one process, but --jobs is 2"),
        ("tcp://127.0.0.1:1", 2, "has workers of its own"),
    ],
)
def test_places_that_there_are_not(where: str, jobs: int | None, sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        executor_of(where, jobs, CELLS)
    assert sentence in str(caught.value)


def test_no_more_processes_are_asked_for_than_there_are_cells_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = run_sweep(planned(), out=tmp_path / "out", jobs=1)
    shutil.rmtree(whole.out / "cells" / whole.experiment.cells[0].key)
    asked = []

    def here(call: Callable[..., Any], tasks: Iterable[tuple[Any, ...]], jobs: int) -> Iterator[Any]:
        asked.append(jobs)
        return (call(*task) for task in tasks)

    monkeypatch.setattr(executors, "outcomes", here)
    run_sweep(planned({"seeds": 3}), out=tmp_path / "new", jobs=1000)
    run_sweep(planned(), out=whole.out, resume=True, jobs=4)
    run_sweep(planned(), out=whole.out, resume=True, jobs=4)
    assert asked == [6, 1]


def test_the_same_tables_in_process_and_in_processes(tmp_path: Any) -> None:
    here = run_sweep(planned(), out=tmp_path / "a", cluster="in-process")
    there = run_sweep(planned(), out=tmp_path / "b", cluster="processes", jobs=1)
    assert here.results == there.results
    assert tables(here.out) == tables(there.out)
