"""Cases that other simulators got wrong, and small runs worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from policies import PolicyError, parse_policy
from sim.engine import simulate
from sim.limits import Limits
from sim.records import FINISHED, NULL, REJECTED, UNFINISHED
from tests.engine.costs import PAPER, prefill_only
from tests.tables import RunTables
from traces import Trace

LINE = prefill_only()
"""A step without decodes lasts one nanosecond per prefill token."""


def trace(*rows: tuple[int, int, int]) -> Trace:
    """Return the trace of (arrival, prompt, output) rows."""
    return Trace(*np.array(rows, dtype=np.int64).reshape(-1, 3).T)


def batches(run: RunTables) -> list[dict[int, int]]:
    """Return the prefill tokens of each request, step by step."""
    steps: list[dict[int, int]] = [{} for _ in run.steps["start_ns"]]
    for step, request, tokens in zip(*(run.chunks[c].tolist() for c in ("step", "request", "tokens")), strict=True):
        steps[step][request] = tokens
    return steps


def outcomes(run: RunTables) -> dict[str, int]:
    names = {"finished": FINISHED, "rejected": REJECTED, "unfinished": UNFINISHED}
    return {name: int((run.requests["outcome"] == code).sum()) for name, code in names.items()}


@pytest.mark.parametrize(("budget", "prompts", "rest"), [(512, (200, 400), 312), (8, (4, 8), 4)])
def test_a_budget_is_filled_by_a_part_of_the_next_prompt(budget: int, prompts: tuple[int, int], rest: int) -> None:
    """Case 3 (simdistserve: the budget left after a whole prompt went unused)."""
    run = simulate(
        trace((0, prompts[0], 3), (0, prompts[1], 3)), parse_policy(f"fcfs+token-budget:budget={budget}"), PAPER
    )
    assert batches(run)[0] == {0: prompts[0], 1: rest}
    # The first request decodes now, and its token comes out of the budget.
    assert batches(run)[1] == {1: min(prompts[1] - rest, budget - 1)}
    assert run.steps["n_decode"][1] == 1


def test_a_budget_counts_decode_tokens() -> None:
    """Case 3, the other half: three decodes leave five of eight tokens."""
    run = simulate(
        trace((0, 2, 9), (0, 2, 9), (0, 2, 9), (1, 20, 1)), parse_policy("fcfs+token-budget:budget=8"), PAPER
    )
    assert batches(run)[:3] == [{0: 2, 1: 2, 2: 2}, {3: 5}, {3: 5}]


@pytest.mark.parametrize("limit", [None, 512])
def test_a_prompt_beyond_the_budget_without_chunking(limit: int | None) -> None:
    """Case 4 (simdistserve looped for ever): alone in its step or rejected with a reason, and the next is served."""
    run = simulate(
        trace((0, 600, 1), (0, 100, 1)), parse_policy("fcfs+full"), PAPER, limits=Limits(max_model_len=limit)
    )
    assert batches(run) == ([{0: 600}, {1: 100}] if limit is None else [{1: 100}])
    assert run.requests["outcome"][1] == FINISHED
    if limit is not None:
        assert run.requests["outcome"][0] == REJECTED
        assert run.reasons == {0: "600 prompt and 1 output tokens exceed max_model_len 512"}


@pytest.mark.parametrize("policy", ["fcfs+full", "fcfs+token-budget:seqs=1", "sloweave", "srjf-static+full"])
def test_one_slot_serves_the_second_request_when_the_first_has_finished(policy: str) -> None:
    """Case 8 (inference-sim#326: without later arrivals the second request never started)."""
    service = PAPER.step_ns(0, 0, 0, 1, 1000, 0) + 4 * PAPER.step_ns(1, 0, 0, 0, 0, 0)
    run = simulate(
        trace((0, 1000, 5), (service // 2, 1000, 5)), parse_policy(policy), PAPER, limits=Limits(max_num_seqs=1)
    )
    assert run.requests["first_scheduled_ns"].tolist() == [0, service]
    assert run.requests["finished_ns"].tolist() == [service, 2 * service]


def test_nothing_fits_the_model() -> None:
    """Case 9 (inference-sim#926): all too large."""
    run = simulate(trace((0, 100, 1), (5, 40, 60)), parse_policy("sloweave"), PAPER, limits=Limits(max_model_len=99))
    assert outcomes(run) == {"finished": 0, "rejected": 2, "unfinished": 0}
    assert set(run.reasons) == {0, 1}
    assert_no_times(run)
    assert all(len(column) == 0 for column in run.steps.values())


def test_an_empty_trace() -> None:
    """Case 9: tables with all their columns and no rows."""
    run = simulate(trace(), parse_policy("sloweave"), PAPER)
    full = simulate(trace((0, 1, 1)), parse_policy("sloweave"), PAPER)
    for table in ("requests", "steps", "chunks"):
        empty, one = getattr(run, table), getattr(full, table)
        assert {c: v.dtype for c, v in empty.items()} == {c: v.dtype for c, v in one.items()}
        assert all(len(column) == 0 for column in empty.values())


@pytest.mark.parametrize(("horizon", "generated"), [(0, 0), (1, 1), (1000, 1), (1001, 2), (1003, 4)])
def test_the_horizon_comes_before_the_first_finish(horizon: int, generated: int) -> None:
    """Case 9: no step starts at or after the horizon, one that started before it ends."""
    run = simulate(
        trace((0, 1000, 9), (500, 10, 1), (7000, 10, 1)),
        parse_policy("edf:ttft=1+full"),
        prefill_only(),
        limits=Limits(horizon_ns=horizon, max_num_seqs=1),
    )
    assert outcomes(run) == {"finished": 0, "rejected": 0, "unfinished": 3}
    assert run.requests["generated_tokens"].tolist() == [generated, 0, 0]
    assert (run.requests["finished_ns"] == NULL).all()
    assert (run.requests["jct_ns"] == NULL).all()
    assert (run.requests["ttft_ns"][1:] == NULL).all()


def assert_no_times(run: RunTables) -> None:
    for name in ("first_scheduled_ns", "first_token_ns", "finished_ns", "ttft_ns", "itl_max_ns", "jct_ns"):
        assert (run.requests[name] == NULL).all(), name
    for name in ("tpot_mean_ns", "tpot_p99_ns"):
        assert np.isnan(run.requests[name]).all(), name


def test_outputs_of_one_and_of_five() -> None:
    """Case 6 (llm-load-test#93): one token has no TPOT; five take four decode steps and TPOT is their mean."""
    run = simulate(trace((0, 100, 1), (10**9, 100, 5)), parse_policy("fcfs+full"), PAPER)
    requests = run.requests
    assert requests["jct_ns"][0] == requests["ttft_ns"][0]
    assert np.isnan(requests["tpot_mean_ns"][0])
    assert (run.steps["n_decode"] == 1).sum() == 4
    assert requests["tpot_mean_ns"][1] == (requests["jct_ns"][1] - requests["ttft_ns"][1]) / 4


def test_percentiles_of_a_request_are_numpy_s() -> None:
    """Long and short gaps mixed by another request's chunks."""
    run = simulate(trace((0, 10, 40), (100_000, 3000, 1)), parse_policy("fcfs+fixed:chunk=128"), PAPER)
    ends = run.steps["start_ns"] + run.steps["duration_ns"]
    gaps = np.diff(ends[:40])
    assert len(set(gaps.tolist())) > 2
    assert run.requests["tpot_p99_ns"][0] == np.percentile(gaps, 99)
    assert run.requests["itl_max_ns"][0] == gaps.max()


def test_seats_above_a_budget_are_refused() -> None:
    """As in vLLM: a decode could miss its step."""
    with pytest.raises(PolicyError, match="budget=4 is below the 8 requests"):
        simulate(trace((0, 1, 1)), parse_policy("fcfs+token-budget:budget=4"), PAPER, limits=Limits(max_num_seqs=8))
