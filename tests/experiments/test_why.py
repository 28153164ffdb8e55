"""Why requests waited: every moment is accounted for once, and each reason holds in the step that it names."""

from __future__ import annotations

import json
import math
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.axes import only_cell, plan
from experiments.config import ConfigError
from experiments.draft import Draft
from experiments.recorded import Recorded, read_recorded
from experiments.run import run_info, simulate_cell
from experiments.why.again import CannotRemake, Remade, remake
from experiments.why.reasons import (
    AGAIN,
    BEFORE,
    BETWEEN,
    BUDGET,
    KV,
    PREFILLS,
    RANK,
    REASONS,
    SEATS,
    lanes_of,
)
from experiments.why.stories import Why, explain, schedule_of
from policies.units import MS
from sim.batches import batch_table
from sim.provenance import provenance
from sim.records import Tables
from sim.store import write_run
from tests.experiments.conftest import Cli
from tests.experiments.runs import SCARCE, stored, swept

POLICIES = (
    "sloweave",
    "vllm-default",
    "sarathi:budget=128",
    "fcfs+full",
    "fcfs+fixed:chunk=64",
    "srjf-static+full",
    "fcfs+deadline-slots:slots=3",
    "hrrn+full",
    "fcfs+token-budget:threshold=64",
)


def explained(folder: Path, *, batches: bool = False, **values: Any) -> Why:
    stored(folder, batches=batches, **values)
    return explain(read_recorded(folder))


@st.composite
def configurations(draw: st.DrawFn) -> dict[str, Any]:
    values: dict[str, Any] = {
        "policies": [draw(st.sampled_from(POLICIES))],
        "trace.limit": draw(st.integers(5, 50)),
        "trace.rate": draw(st.sampled_from([5.0, 40.0, 400.0])),
        "seeds": [draw(st.integers(0, 5))],
        "engine.pipeline_depth": draw(st.sampled_from([1, 2])),
    }
    if draw(st.booleans()):
        values["memory.blocks"] = draw(st.sampled_from([200, 300, 600]))
    if draw(st.booleans()):
        values["engine.max_num_seqs"] = draw(st.integers(1, 12))
    if draw(st.booleans()):
        values["engine.horizon"] = 1.0
    if draw(st.booleans()):
        values["cluster.replicas"] = 2
        values["cluster.router"] = "round-robin"
    return values


@settings(max_examples=25, deadline=None)
@given(configurations())
def test_a_run_is_explained(values: dict[str, Any]) -> None:
    with TemporaryDirectory() as folder:
        tables = stored(Path(folder), **values)
        run = read_recorded(Path(folder))
        why = explain(run)
        again = remake(run)
    every_moment_before_the_start_has_one_reason(why)
    waiting_and_prefilling_make_the_time_to_first_token(why)
    those_who_wait_are_the_ones_that_the_engine_counted(why)
    each_reason_holds(values, tables, why, again)


def every_moment_before_the_start_has_one_reason(why: Why) -> None:
    assert why.note is None
    requests = why.requests
    started = requests["first_scheduled_ns"] >= 0
    waited = why.waited[BEFORE].sum(axis=1)
    assert (waited[started] == (requests["first_scheduled_ns"] - requests["arrival_ns"])[started]).all()


def waiting_and_prefilling_make_the_time_to_first_token(why: Why) -> None:
    requests = why.requests
    for lane in why.lanes:
        spans = np.diff(lane.edges)
        for life in lane.lives:
            r = life.request
            if requests["first_token_ns"][r] < 0 or requests["preemptions"][r]:
                continue
            # All but the last chunk's step end where the next step begins, or later where one is in flight.
            prefilling = sum(int(spans[step]) for step, _ in life.chunks[:-1])
            last = life.chunks[-1][0]
            prefilling += int(lane.ends[last] - lane.edges[last])
            assert why.waited[:, r].sum() + prefilling == requests["ttft_ns"][r]


def those_who_wait_are_the_ones_that_the_engine_counted(why: Why) -> None:
    for lane in why.lanes:
        waiting = np.zeros(lane.size + 1, dtype=np.int64)
        for stay in lane.stays:
            # Who is preempted in a step waits from then on, and was counted as running at its decision.
            waiting[stay.begin + (stay.phase == AGAIN)] += 1
            waiting[stay.end] -= 1
        counted = np.cumsum(waiting)[: lane.size] + lane.starting
        steady = np.ones(lane.size, dtype=bool)
        lost = why.run.tables.preemptions["step"] - lane.first
        for step in lost.tolist():
            # A decision that preempts everybody makes no step; the next one is decided with them in the queue.
            steady[max(step, 0) : step + 2] = False
        assert (counted == lane.steps["waiting"])[steady].all()


def each_reason_holds(values: dict[str, Any], tables: Tables, why: Why, again: Remade) -> None:
    """Checked against the batches, which the reasons were not found from."""
    batches = batch_table(tables)
    size = len(tables.steps["start_ns"])
    members = np.bincount(batches["step"], minlength=size)
    used = np.bincount(tables.chunks["step"], tables.chunks["tokens"], size).astype(np.int64)
    chunks = np.bincount(tables.chunks["step"], minlength=size)
    for lane in why.lanes:
        stalled = np.zeros(lane.size, dtype=np.int64)
        for life in lane.lives:
            for pause in lane.pauses(life):
                stalled[pause.begin : pause.end] += 1
        for stay in lane.every_stay():
            for at, code in enumerate(lane.reasons(stay).tolist(), stay.begin):
                step = lane.first + at
                grant = again.grants.get(step)
                if code == RANK:
                    assert lane.starting[at] > 0
                    assert stay.phase != BETWEEN
                elif code == BUDGET:
                    assert grant is not None
                    assert used[step] == grant.tokens
                elif code == PREFILLS:
                    assert grant is not None
                    assert grant.prefills == chunks[step]
                elif code == SEATS:
                    assert lane.schedule.seats is not None
                    leaving = 0 if not lane.schedule.deep else members[step - 1] if at else 0
                    running = members[step] + stalled[at]
                    assert running <= lane.schedule.seats <= running + leaving
                else:
                    assert code == KV
                    assert "memory.blocks" in values


@settings(max_examples=20, deadline=None)
@given(
    st.sampled_from(["sloweave", "fcfs+full", "fcfs+fixed:chunk=64", "sarathi:budget=128"]),
    st.sampled_from([20.0, 200.0]),
    st.sampled_from([None, 4, 9]),
    st.integers(0, 3),
)
def test_the_tables_alone_tell_the_same(policy: str, rate: float, seqs: int | None, seed: int) -> None:
    """Where memory has no bounds and the policy's grants are all alike, nothing has to be guessed."""
    values: dict[str, Any] = {"policies": [policy], "trace.rate": rate, "seeds": [seed]}
    if seqs is not None:
        values["engine.max_num_seqs"] = seqs
    with TemporaryDirectory() as folder:
        stored(Path(folder), batches=True, **values)
        run = read_recorded(Path(folder))
        made, told = schedule_of(run, remake(run)), schedule_of(run, None)
    assert made is not None
    assert told is not None
    assert told.grants is None
    for exact, inferred in zip(lanes_of(made), lanes_of(told), strict=True):
        assert exact.stays == inferred.stays
        assert exact.lives == inferred.lives
        asked = np.zeros(exact.size, dtype=bool)
        for stay in exact.every_stay():
            asked[stay.begin : stay.end] = True
        assert (exact.limit == inferred.limit)[asked].all()


def of_rows(folder: Path, rows: list[tuple[float, int, int]], policy: str, **values: Any) -> Why:
    """Explain a run of requests given by arrival in s, prompt and output tokens."""
    path = folder / "trace.csv"
    lines = [f"2023-11-16 18:00:{at:010.7f},{p},{o}" for at, p, o in rows]
    path.write_text("\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *lines]) + "\n")
    draft = Draft()
    common = {"trace.file": str(path), "policies": [policy], "seeds": [0], "slo": "ttft:1000"}
    for key, value in {**common, **values}.items():
        draft.put(key, value, "test")
    cell = only_cell(plan(draft))
    trace, tables, result = simulate_cell(cell)
    write_run(folder / "run", trace, tables, run_info(cell, result, provenance(), 0.0), summary=result.summary)
    why = explain(read_recorded(folder / "run"))
    assert why.note is None
    return why


def codes(why: Why, request: int) -> set[str]:
    return {REASONS[k] for k in range(len(REASONS)) if why.waited[:, request, k].sum()}


def test_who_comes_second_waits_for_its_rank_and_not_longer(tmp_path: Path) -> None:
    why = of_rows(tmp_path, [(0.0, 100, 1), (0.0, 100, 1), (0.0, 100, 1)], "fcfs+full")
    assert [codes(why, r) for r in range(3)] == [set(), {"rank"}, {"rank"}]
    steps = why.run.tables.steps
    assert why.waited[BEFORE, 2, RANK] == steps["start_ns"][2]


def test_a_seat_that_is_taken(tmp_path: Path) -> None:
    rows = [(0.0, 100, 50), (0.001, 100, 2)]
    why = of_rows(tmp_path, rows, "fcfs+full", **{"engine.max_num_seqs": 1})
    assert codes(why, 1) <= {"seats", "not yet visible"}
    assert why.waited[BEFORE, 1, SEATS] > 0
    assert why.requests["first_scheduled_ns"][1] == why.requests["finished_ns"][0]


def test_a_long_prompt_eats_the_budget(tmp_path: Path) -> None:
    rows = [(0.0, 1000, 1), (0.0001, 100, 1)]
    why = of_rows(tmp_path, rows, "fcfs+token-budget:budget=128,seqs=8")
    # In the step that ends the long prompt, 104 tokens of 128, the short one begins.
    assert codes(why, 1) == {"budget", "not yet visible"}


def test_a_fixed_chunk_is_one_prefill(tmp_path: Path) -> None:
    rows = [(0.0, 100, 1), (0.0001, 100, 1)]
    why = of_rows(tmp_path, rows, "fcfs+fixed:chunk=64")
    # 64 tokens, arrival, then 36 of 64: the rest of the chunk may go to nobody else.
    assert codes(why, 1) == {"prefills", "not yet visible"}


def test_blocks_that_are_taken(tmp_path: Path) -> None:
    rows = [(0.0, 160, 20), (0.0001, 160, 2)]
    memory = {"memory.blocks": 17, "memory.prefix_cache": False}
    why = of_rows(tmp_path, rows, "vllm-default", **memory)
    assert codes(why, 1) == {"kv", "not yet visible"}
    story = why.request(str(why.requests["id"][1]))["story"]
    assert any("of 16 KV blocks free; its prompt fills 10" in event["text"] for event in story)


def test_deadlines_that_leave_no_room(tmp_path: Path) -> None:
    rows = [(0.0, 100, 40), (0.02, 2000, 1)]
    why = of_rows(tmp_path, rows, "fcfs+deadline-fill:tpot=1.4")
    document = why.totals()
    budget = next(row for row in document["reasons"] if row["reason"] == "budget")
    assert budget["waited_s"] > 0
    assert why.waited[:, 1, BUDGET].sum() == pytest.approx(budget["waited_s"] * 1e9)


def test_a_preempted_request_waits_for_blocks(tmp_path: Path) -> None:
    why = explained(tmp_path, **SCARCE)
    lost = np.unique(why.run.tables.preemptions["request"])
    assert len(lost)
    assert (why.waited[AGAIN, lost].sum(axis=1) > 0).all()
    assert why.waited[AGAIN, :, KV].sum() > 0.5 * why.waited[AGAIN].sum()
    others = np.setdiff1d(np.arange(len(why.requests["arrival_ns"])), lost)
    assert not why.waited[AGAIN, others].any()


@pytest.mark.parametrize(
    ("policy", "key"),
    [
        ("fcfs+fixed:chunk=64", lambda r, i: (r["arrival_ns"][i], i)),
        ("srjf-static+fixed:chunk=64", lambda r, i: (r["prompt_tokens"][i], r["arrival_ns"][i], i)),
    ],
)
def test_places_are_the_orders(tmp_path: Path, policy: str, key: Any) -> None:
    tables = stored(tmp_path, **{"policies": [policy], "trace.rate": 400.0})
    run = read_recorded(tmp_path)
    step = int(np.argmax(tables.steps["waiting"]))
    order = remake(run, watch=step).order
    assert order is not None
    assert len(order) > 10
    assert order == sorted(order, key=lambda i: key(run.tables.requests, i))
    why = explain(run, watch=step)
    waiting = [row for row in why.step(step)["waiting"] if row["place"] is not None]
    assert [row["place"] for row in waiting] == list(range(1, len(order) + 1))
    assert [row["request"] for row in waiting] == [str(run.tables.requests["id"][i]) for i in order]


def test_a_watched_run_is_the_same_run(tmp_path: Path) -> None:
    stored(tmp_path, **SCARCE)
    run = read_recorded(tmp_path)
    plain, watched = remake(run), remake(run, watch=5)
    assert plain.grants == watched.grants
    assert plain.order is None
    assert watched.order is not None


def test_stories_are_whole(tmp_path: Path) -> None:
    """A story has no holes from arrival to the first token, and says nothing twice."""
    why = explained(tmp_path, **{"policies": ["sarathi:budget=128"], "trace.rate": 100.0})
    for i, name in enumerate(why.requests["id"].tolist()):
        story = why.request(str(name))["story"]
        at = why.requests["arrival_ns"][i] / MS
        for event in story:
            if event["state"] in ("first token", "finished"):
                continue
            assert math.isclose(event["from_ms"], at, abs_tol=1e-9), story
            at = event["to_ms"]
        assert math.isclose(at, why.requests["first_token_ns"][i] / MS, abs_tol=1e-9)


def test_rejections_are_told(tmp_path: Path) -> None:
    why = explained(tmp_path, **{"engine.max_model_len": 600})
    document = why.totals()
    turned_away = sum(row["requests"] for row in document["turned_away"])
    assert turned_away == int((why.requests["outcome"] == 1).sum()) > 0
    i = int(np.argmax(why.requests["outcome"] == 1))
    [event] = why.request(str(why.requests["id"][i]))["story"]
    assert event["state"] == "rejected"
    assert "max_model_len" in event["text"]
    step = int(why.requests["visible_step"][i])
    assert any("max_model_len" in row["reason"] for row in why.step(step)["waiting"])


def test_the_totals_add_up(tmp_path: Path) -> None:
    why = explained(tmp_path, **{"trace.rate": 200.0, **SCARCE})
    document = why.totals()
    assert math.isclose(sum(row["waited_s"] for row in document["reasons"]), document["waited_s"])
    assert math.isclose(sum(row["share"] for row in document["reasons"]), 1)
    for row in document["slowest"]:
        assert math.isclose(sum(row["by_reason_ms"].values()), row["waited_ms"])
    assert [row["waited_ms"] for row in document["slowest"]] == sorted(
        (row["waited_ms"] for row in document["slowest"]), reverse=True
    )


def changed(folder: Path, change: Any) -> Recorded:
    path = folder / "run.json"
    head = json.loads(path.read_text())
    change(head)
    path.write_text(json.dumps(head))
    return read_recorded(folder)


def test_what_cannot_be_made_again_says_why(tmp_path: Path) -> None:
    stored(tmp_path, batches=True)

    def refused(change: Any) -> str:
        kept = (tmp_path / "run.json").read_text()
        with pytest.raises(CannotRemake) as caught:
            remake(changed(tmp_path, change))
        (tmp_path / "run.json").write_text(kept)
        return str(caught.value)

    assert "vLLM" in refused(lambda head: head.update(host="vllm"))
    assert "its key stands for" in refused(lambda head: head["resolved"].update(seed=1))
    assert "its key stands for" in refused(lambda head: head.update(key="0" * 16))


def rekeyed(head: dict[str, Any], **values: Any) -> None:
    from experiments.cells import hash_of

    head["resolved"].update(values)
    head["key"] = hash_of(head["resolved"])


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"package": "0.0.1"}, "made by prefillsim 0.0.1"),
        ({"plugins": ["0" * 64]}, "give --plugin FILE"),
        ({"trace": "0" * 16}, "other requests now"),
        ({"engine": {"max_num_seqs": 2}}, "comes out different"),
        ({"engine": {"seats": 2}}, "describes no run"),
        ({"cost_model": {"kind": "none"}}, "unknown kind"),
    ],
)
def test_changed_configurations_say_what(tmp_path: Path, values: dict[str, Any], words: str) -> None:
    stored(tmp_path)
    with pytest.raises(CannotRemake, match=words):
        remake(changed(tmp_path, lambda head: rekeyed(head, **values)))


def test_an_engines_run_is_told_from_its_tables(tmp_path: Path) -> None:
    stored(tmp_path, batches=True, **SCARCE)
    exact = explain(read_recorded(tmp_path))
    why = explain(changed(tmp_path, lambda head: head.update(host="vllm")))
    assert why.note is not None
    assert "from the tables alone" in why.note
    assert why.waited.sum() == exact.waited.sum()
    assert (why.waited.sum(axis=2) == exact.waited.sum(axis=2)).all(), "only reasons may be inferred, not times"
    assert np.abs(why.waited - exact.waited).sum() < 0.2 * exact.waited.sum()


def test_the_command(cli: Cli, tmp_path: Path) -> None:
    stored(tmp_path / "run", **{"trace.rate": 100.0})
    tables = read_recorded(tmp_path / "run").tables
    name, busy = str(tables.requests["id"][30]), int(np.argmax(tables.steps["waiting"]))
    for more, has in (
        ([], "rank"),
        (["--request", name], "first token"),
        (["--step", str(busy)], "Nobody else ran for the reason"),
    ):
        result = cli("why", "run", *more)
        assert result.code == 0, result.err
        assert has in result.out
        document = cli("why", "run", *more, "--json").json
        assert document["policy"] == "sloweave"
        assert document["note"] is None
    document = cli("why", "run", "--step", str(busy), "--json").json
    assert document["step"] == busy
    assert document["ended_by"] in REASONS
    first = cli("why", "run", "--step", "0", "--json").json
    assert first["ended_by"] is None, "nobody waited"
    assert "Nobody waited" in cli("why", "run", "--step", "0").out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "--request", "nobody"], "no such request"),
        (["run", "--step", "100000"], "the run has steps 0 to"),
        (["run", "--step", "-1"], "the run has steps 0 to"),
        (["run", "--step", "1", "--request", "1"], "exclude each other"),
        (["nowhere"], "there is no folder"),
        (["sweep"], "is a sweep of"),
        (["server"], "measured by a client"),
    ],
)
def test_mistakes_are_told(cli: Cli, tmp_path: Path, arguments: list[str], words: str) -> None:
    if arguments[0] == "sweep":
        swept(tmp_path / "sweep", {"rate": [5.0, 10.0]}, **{"trace.limit": 5})
    elif arguments[0] != "nowhere":
        stored(tmp_path / arguments[0], **{"trace.limit": 10})
    if arguments[0] == "server":
        changed(tmp_path / "server", lambda head: head.update(host="server"))
    result = cli("why", *arguments)
    assert result.code == 2
    assert words in result.err
    assert not result.out


def test_steps_of_any_run_are_refused_alike(tmp_path: Path) -> None:
    why = explained(tmp_path, **{"trace.limit": 5})
    with pytest.raises(ConfigError, match="the run has steps"):
        why.step(len(why.run.tables.steps["start_ns"]))
