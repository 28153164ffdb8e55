"""Where two runs part: as the comparison of engine and simulator finds it, which goes step by step."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.diff.first import diff
from experiments.recorded import read_recorded
from gpu_runner.identity import agreement, batches_of
from sim.records import Tables
from tests.experiments.conftest import Cli
from tests.experiments.runs import SCARCE, stored

POLICIES = (
    "sloweave",
    "vllm-default",
    "sarathi:budget=128",
    "sarathi:budget=64",
    "fcfs+full",
    "fcfs+fixed:chunk=64",
    "fcfs+fixed:chunk=4096",
    "srjf-static+full",
    "fcfs+deadline-slots:slots=3",
)


@settings(max_examples=20, deadline=None)
@given(
    st.tuples(st.sampled_from(POLICIES), st.sampled_from(POLICIES)),
    st.sampled_from([5.0, 60.0]),
    st.sampled_from([None, 300]),
    st.integers(0, 3),
    st.tuples(st.booleans(), st.booleans()),
)
def test_runs_part_where_a_walk_through_all_steps_says(
    policies: tuple[str, str], rate: float, blocks: int | None, seed: int, batches: tuple[bool, bool]
) -> None:
    with TemporaryDirectory() as folder:
        tables: list[Tables] = []
        for name, policy, stores in zip("ab", policies, batches, strict=True):
            values: dict[str, Any] = {"policies": [policy], "trace.rate": rate, "seeds": [seed], "trace.limit": 40}
            if blocks is not None:
                values["memory.blocks"] = blocks
            tables.append(stored(Path(folder) / name, batches=stores, **values))
        found = diff(read_recorded(Path(folder) / "a"), read_recorded(Path(folder) / "b"))
    one, other = (batches_of(t) for t in tables)
    decisions, timed = agreement(one, other, times=False).first, agreement(one, other).first
    assert (found.decisions and found.decisions.step) == (decisions and decisions.step)
    assert found.equal == (timed is None)
    if timed is not None:
        firsts = [p.step for p in (found.decisions, found.times) if p is not None]
        assert min(firsts) == timed.step
    if decisions is not None and decisions.engine is not None and decisions.simulator is not None:
        document = found.document()["decisions"]
        ids = [str(v) for v in found.a.requests["id"].tolist()]
        for side, batch in (("a", decisions.engine), ("b", decisions.simulator)):
            assert [(e["request"], e["tokens"]) for e in document[side]["batch"]] == [
                (ids[r], tokens) for r, tokens in batch.requests
            ]
            assert document[side]["start_ms"] * 1e6 == pytest.approx(batch.start)
            assert sorted(document[side]["preempted"]) == sorted(ids[r] for r in batch.preempted)
        only = document["only"]
        assert only["batch_a"] or only["batch_b"] or document["what"] != "the batches have other requests"


def test_a_run_is_itself(cli: Cli, tmp_path: Path) -> None:
    stored(tmp_path / "a")
    stored(tmp_path / "b", batches=True)
    result = cli("diff", "a", "b")
    assert result.code == 0, result.err
    assert "No difference" in result.out
    document = cli("diff", "a", "b", "--json").json
    assert document["equal"]
    assert document["decisions"] is None
    assert document["times"] is None
    assert document["totals"]["ttft"]["same"] == 60


def test_two_policies(cli: Cli, tmp_path: Path) -> None:
    stored(tmp_path / "a", **{"trace.rate": 60.0})
    stored(tmp_path / "b", **{"trace.rate": 60.0, "policies": ["fcfs+full"]})
    result = cli("diff", "a", "b")
    assert result.code == 1
    assert "The first step that differs is" in result.out
    assert "only in A: ran" in result.out
    result = cli("diff", "a", "b", "--json")
    assert result.code == 1
    totals = result.json["totals"]
    one, other = (read_recorded(tmp_path / name) for name in "ab")
    change = other.tables.requests["ttft_ns"] - one.tables.requests["ttft_ns"]
    assert totals["ttft"]["earlier"] == int((change < 0).sum()) > 0
    assert totals["ttft"]["mean_change_ms"] == pytest.approx(change.mean() / 1e6)
    worst = totals["ttft"]["most_later"][0]
    assert worst["b_ms"] - worst["a_ms"] == pytest.approx(change.max() / 1e6)
    goodput = totals["summary"]["goodput"]
    assert goodput["change"] == pytest.approx(goodput["b"] - goodput["a"])


def test_only_times_differ(cli: Cli, tmp_path: Path) -> None:
    """All at once and served first come, first served: whatever a step costs, the batches are the same."""
    common = {"policies": ["fcfs+full"], "trace.workload": "mixed:arrivals=all-at-once"}
    for name, model in (("a", "sloweave-paper"), ("b", "h100-llama3.1-8b")):
        stored(tmp_path / name, **common, cost_model=model)
    result = cli("diff", "a", "b")
    assert result.code == 1
    assert "Every step has the same batch." in result.out
    assert "Times differ from step 0 on: duration" in result.out
    assert cli("diff", "a", "b", "--no-times").code == 0


def test_different_requests_are_refused(cli: Cli, tmp_path: Path) -> None:
    stored(tmp_path / "a")
    stored(tmp_path / "b", seeds=[1])
    result = cli("diff", "a", "b", "--json")
    assert result.code == 2
    assert "different requests" in result.err
    assert "seed 1" in result.err
    assert "different requests" in result.json["error"]


def as_engine(folder: Path, **tables: Any) -> None:
    """Let a stored run be one of vLLM's."""
    path = folder / "run.json"
    head = json.loads(path.read_text())
    head.update(host="vllm", **tables)
    path.write_text(json.dumps(head))


def test_a_simulation_and_an_engine(cli: Cli, tmp_path: Path) -> None:
    for name in "ab":
        stored(tmp_path / name, batches=True, **SCARCE)
    as_engine(tmp_path / "b")
    result = cli("diff", "a", "b")
    assert result.code == 0, result.out
    stored(tmp_path / "c", batches=True, **{**SCARCE, "memory.blocks": 320})
    as_engine(tmp_path / "c")
    result = cli("diff", "a", "c", "--json")
    assert result.code == 1
    document = result.json
    assert document["times"] is None, "an engine never takes the same time twice"
    assert document["b"]["host"] == "vLLM"
    first = document["decisions"]
    assert first["a"]["kv_blocks"] is not None
    assert first["a"]["kv_blocks_at_most"] == 299
    assert first["b"]["kv_blocks_at_most"] == 319


def test_batches_that_nobody_knows(cli: Cli, tmp_path: Path) -> None:
    """Preempted requests and no batches: what is left are counts."""
    for name, blocks in (("a", 300), ("b", 300), ("c", 320)):
        stored(tmp_path / name, **{**SCARCE, "memory.blocks": blocks})
    for name in "bc":
        as_engine(tmp_path / name)
    result = cli("diff", "a", "b", "--json")
    assert result.code == 0
    assert "compared by their counts" in result.json["notes"][0]
    result = cli("diff", "a", "c")
    assert result.code == 1
    assert "n_decode" in result.out or "prefill" in result.out


def test_replicas_count_their_own_steps(tmp_path: Path) -> None:
    values: dict[str, Any] = {"cluster.replicas": 2, "cluster.router": "round-robin", "trace.rate": 60.0}
    stored(tmp_path / "a", **values)
    stored(tmp_path / "b", **{**values, "policies": ["fcfs+full"]})
    found = diff(read_recorded(tmp_path / "a"), read_recorded(tmp_path / "b"))
    assert found.decisions is not None
    starts = []
    for known in (found.a, found.b):
        first = int(np.argmax(known.steps["replica"] == found.decisions.replica))
        starts.append(int(known.steps["start_ns"][first + found.decisions.step]))
    document = found.document()
    assert document["decisions"]["a"]["start_ms"] * 1e6 == pytest.approx(starts[0])
    assert document["decisions"]["b"]["start_ms"] * 1e6 == pytest.approx(starts[1])


@pytest.mark.parametrize(
    ("second", "words"),
    [("nowhere", "there is no folder"), ("server", "measured by a client"), ("many", "holds 2 runs")],
)
def test_mistakes_are_told(cli: Cli, tmp_path: Path, second: str, words: str) -> None:
    stored(tmp_path / "a", **{"trace.limit": 10})
    if second == "server":
        stored(tmp_path / second, **{"trace.limit": 10})
        path = tmp_path / second / "run.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "host": "server"}))
    if second == "many":
        for name in "ab":
            stored(tmp_path / second / name, **{"trace.limit": 10})
    result = cli("diff", "a", second)
    assert result.code == 2
    assert words in result.err


def test_a_run_that_goes_on_differs(tmp_path: Path) -> None:
    """The same steps up to a horizon, and then no more."""
    stored(tmp_path / "a", **SCARCE)
    tables = stored(tmp_path / "b", **SCARCE, **{"engine.horizon": 0.4})
    found = diff(read_recorded(tmp_path / "a"), read_recorded(tmp_path / "b"))
    assert found.decisions is not None
    assert found.decisions.step == len(tables.steps["start_ns"])
    document = found.document()
    assert document["decisions"]["b"] is None
    assert document["decisions"]["what"] == "only one of the two has such a step"
    assert document["totals"]["outcomes"]
