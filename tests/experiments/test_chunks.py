"""Chunks of stored runs: those that were logged, from the batches, and from the other tables or not at all."""

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.chunks import _paused, chunks_of
from sim.records import Columns
from sim.store import StoredRun, read_run
from tests.experiments.runs import SCARCE, stored

POLICIES = (
    *("fcfs+full", "fcfs+fixed:chunk=64", "vllm-default", "sarathi:budget=128", "sloweave", "prefillonly"),
    "fcfs+token-budget:budget=512,threshold=100",
)


def rows(chunks: Columns) -> list[tuple[int, ...]]:
    return sorted(zip(*(chunks[c].tolist() for c in ("step", "request", "tokens")), strict=True))


@settings(deadline=None, max_examples=30)
@given(
    policy=st.sampled_from(POLICIES),
    seed=st.integers(0, 99),
    blocks=st.sampled_from([None, 300, 400, 4000]),
    horizon=st.sampled_from([None, 0.5]),
)
def test_chunks_are_those_of_the_run(policy: str, seed: int, blocks: int | None, horizon: float | None) -> None:
    values = {"policies": [policy], "seeds": [seed], "engine.horizon": horizon}
    if blocks is not None:
        values["memory.blocks"] = blocks
    values = {k: v for k, v in values.items() if v is not None}
    with TemporaryDirectory() as folder:
        tables = stored(Path(folder) / "run", batches=True, **values)
        run = read_run(Path(folder) / "run")
    known = chunks_of(run)
    assert known is not None
    assert rows(known) == rows(tables.chunks)
    deduced = chunks_of(replace(run, batches=None))
    assert deduced is None or rows(deduced) == rows(tables.chunks)


@pytest.mark.parametrize("policy", POLICIES[:-1])
def test_chunks_follow_from_the_tables_where_nobody_was_preempted(policy: str, tmp_path: Path) -> None:
    tables = stored(tmp_path / "run", **{"policies": [policy], "trace.limit": 200})
    found = chunks_of(read_run(tmp_path / "run"))
    assert found is not None
    assert rows(found) == rows(tables.chunks)


def test_nothing_is_made_up_after_a_preemption(tmp_path: Path) -> None:
    tables = stored(tmp_path / "run", **SCARCE)
    assert len(tables.preemptions["step"])
    assert chunks_of(read_run(tmp_path / "run")) is None


def test_what_the_tables_contradict_is_not_known(tmp_path: Path) -> None:
    stored(tmp_path / "run")
    run = read_run(tmp_path / "run")
    assert chunks_of(run) is not None
    run.requests["chunks"] = run.requests["chunks"] + 1
    assert chunks_of(run) is None


def test_replicas_have_steps_of_their_own(tmp_path: Path) -> None:
    tables = stored(tmp_path / "run", **{"cluster.replicas": 3, "cluster.router": "round-robin", "trace.limit": 90})
    found = chunks_of(read_run(tmp_path / "run"))
    assert found is not None
    assert rows(found) == rows(tables.chunks)
    assert len(np.unique(tables.steps["replica"])) == 3


STEPS = 6
PAIRS = st.tuples(st.integers(0, 2), st.integers(0, STEPS - 1))


@settings(deadline=None)
@given(
    pauses=st.lists(st.tuples(st.integers(0, 2), st.integers(-1, STEPS - 1), st.integers(-1, STEPS - 1)), max_size=8),
    asked=st.lists(PAIRS, max_size=12),
)
def test_a_pause_is_after_one_token_and_until_the_next(
    pauses: list[tuple[int, int, int]], asked: list[tuple[int, int]]
) -> None:
    request, after, until = np.array(pauses, dtype=np.int64).reshape(-1, 3).T
    preemptions = {"step": after, "request": request, "after": after, "until": until}
    run = StoredRun({}, {"start_ns": np.zeros(STEPS)}, preemptions, None, {})
    who, when = np.array(asked, dtype=np.int64).reshape(-1, 2).T
    told = [any(r == p and 0 <= a < s <= u for p, a, u in pauses) for r, s in asked]
    assert _paused(run, who, when).tolist() == told
