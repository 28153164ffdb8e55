"""The metrics against a slow reference, on random tables and on runs of the engine."""

from __future__ import annotations

import math

import numpy as np
import pytest

from sim.metrics import met, over_time, summarise
from sim.objectives import Objectives
from sim.records import Columns, Tables
from tests.seeded import cases, either, whole
from tests.sim.random_runs import GOALS, engine_run, memory_run, pipeline_run, tables
from tests.sim.slow_metrics import rows_of, slow_met, slow_summary
from tests.tables import RunTables
from traces import Trace

ROUNDED = ("mean", "throughput", "goodput", "jain", "lateness", "predicted")
"""Sums of floats, whose last bits depend on the order of addition; everything else must be equal to the last bit."""


def assert_equal(fast: dict[str, float | int | None], slow: dict[str, float | int | None]) -> None:
    assert list(fast) == list(dict.fromkeys([*fast, *slow]))
    for key, expected in slow.items():
        value = fast[key]
        if expected is not None and value is not None and any(word in key for word in ROUNDED):
            assert math.isclose(value, expected, rel_tol=1e-12, abs_tol=1e-15), key
        else:
            assert value == expected, key


@cases(150, tables, GOALS)
def test_summary_of_random_tables_equals_the_slow_reference(drawn: tuple[Columns, Columns], goals: Objectives) -> None:
    requests, steps = drawn
    assert_equal(summarise(requests, steps, goals), slow_summary(requests, steps, goals))
    assert met(requests, goals).tolist() == slow_met(requests, steps, goals)


@cases(100, engine_run)
def test_summary_of_engine_runs_equals_the_slow_reference(run: tuple[Trace, RunTables, Objectives]) -> None:
    _, result, goals = run
    assert_equal(summarise(result.requests, result.steps, goals), slow_summary(result.requests, result.steps, goals))


@cases(100, either(memory_run, pipeline_run))
def test_summary_with_preemptions_replicas_and_pipelines_equals_the_slow_reference(
    run: tuple[Trace, Tables, Objectives],
) -> None:
    _, result, goals = run
    requests, steps, preemptions = result.requests, result.steps, result.preemptions
    assert_equal(summarise(requests, steps, goals, preemptions), slow_summary(requests, steps, goals, preemptions))
    assert met(requests, goals).tolist() == slow_met(requests, steps, goals, preemptions)


@cases(120, either(engine_run, memory_run))
def test_the_engine_s_columns_per_request_are_those_of_its_tokens(run: tuple[Trace, Tables, Objectives]) -> None:
    _, result, _ = run
    for row in rows_of(result.requests, result.steps, result.preemptions):
        if not row.gaps:
            assert math.isnan(row.values["tpot_mean_ns"])
            assert math.isnan(row.values["tpot_p99_ns"])
            assert row.values["itl_max_ns"] == -1
        else:
            assert row.values["tpot_mean_ns"] == sum(row.gaps) / len(row.gaps)
            assert row.values["tpot_p99_ns"] == np.percentile(row.gaps, 99)
            assert row.values["itl_max_ns"] == max(row.gaps)
        if row.finished:
            assert row.token_ns[-1] == row.values["finished_ns"]


@cases(80, either(engine_run, memory_run, pipeline_run), whole(1, 9))
def test_over_time_averages_each_nanosecond(run: tuple[Trace, Tables, Objectives], bins: int) -> None:
    """Steps may overlap: those of several replicas, and batches in a pipeline, where each stage counts by its work."""
    _, result, _ = run
    requests, steps = result.requests, result.steps
    series = over_time(requests, steps, bins)
    if not len(steps["start_ns"]):
        assert all(len(column) == 0 for column in series.values())
        return
    begin = int(requests["arrival_ns"][0])
    end = int((steps["start_ns"] + steps["duration_ns"]).max())
    start, ns = steps["start_ns"], steps["duration_ns"]
    levels = {
        "queue": steps["waiting"],
        "batch": steps["n_decode"] + steps["n_prefill"],
        "utilisation": steps["busy_ns"] / np.maximum(ns, 1) / len(set(steps["replica"].tolist())),
    }
    assert series["start_ns"][0] == begin
    assert series["end_ns"][-1] == end
    assert (series["start_ns"][1:] == series["end_ns"][:-1]).all()
    for a, b, *means in zip(*(series[c].tolist() for c in ("start_ns", "end_ns", *levels)), strict=True):
        shared = np.clip(np.minimum(start + ns, b) - np.maximum(start, a), 0, None)
        for level, mean in zip(levels.values(), means, strict=True):
            assert mean == pytest.approx(float((level * shared).sum()) / max(b - a, 1), rel=1e-9, abs=1e-9)
    assert len(series["start_ns"]) == bins


def test_time_needs_a_bin() -> None:
    with pytest.raises(ValueError, match="at least 1 bin, not 0"):
        over_time({}, {}, 0)
