"""Cases that neighbouring tools got wrong, identities, and what shifting and scaling time may change."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest

from costmodels import LinearCost
from policies import parse_policy
from sim.engine import simulate
from sim.limits import Limits
from sim.metrics import over_time, summarise
from sim.objectives import Objectives
from sim.records import FINISHED, NULL
from tests.seeded import cases, whole, wide
from tests.sim.random_runs import engine_run
from tests.tables import RunTables
from traces import Trace, TraceError

Run = tuple[Trace, RunTables, Objectives]

COST = LinearCost(step=10, decode=0, per_decode=1, prefill=0, per_token=1)

COUNTS = {
    "arrived",
    "finished",
    "rejected",
    "redirected",
    "unfinished",
    "steps",
    "slo_exceptions",
    "preemptions",
    "aged_chunks",
}


def run(arrivals: list[int], prompts: list[int], outputs: list[int], limits: Limits | None = None) -> RunTables:
    trace = Trace(*(np.array(column, dtype=np.int64) for column in (arrivals, prompts, outputs)))
    return simulate(trace, parse_policy("fcfs+full"), COST, limits=limits)


def test_no_request_has_zero_outputs() -> None:
    """Case 6 (openshift-psap/llm-load-test#93): an output of 0 is refused."""
    with pytest.raises(TraceError, match="output_tokens 0, which must be at least 1"):
        run([0], [10], [0])


def test_one_output_has_no_tpot() -> None:
    """Case 6 (openshift-psap/llm-load-test#93): with one output, TPOT is null and the latency is TTFT."""
    tables = run([0], [10], [1])
    summary = summarise(tables.requests, tables.steps, Objectives(tpot_p99=1))
    assert summary["jct_mean_ms"] == summary["ttft_mean_ms"] == 20 / 1e6
    assert [key for key, value in summary.items() if value is None] == [
        "tpot_mean_ms",
        "tpot_p50_ms",
        "tpot_p99_ms",
        "kv_blocks_max",
        "itl_p99_ms",
        "itl_max_ms",
        "late_gap_share",
        "predicted_bias_ms",
        "predicted_mape",
    ]
    assert summary["slo_attainment"] == 1.0


def test_five_outputs_are_four_decode_steps() -> None:
    """Case 6 (openshift-psap/llm-load-test#93): TPOT = (latency − TTFT) / 4, and exactly 4 steps decode."""
    tables = run([0], [10], [5])
    summary = summarise(tables.requests, tables.steps, Objectives())
    assert tables.steps["n_decode"].tolist() == [0, 1, 1, 1, 1]
    assert summary["jct_mean_ms"] == (20 + 4 * 11) / 1e6
    assert summary["tpot_mean_ms"] == summary["tpot_p99_ms"] == summary["itl_p99_ms"] == 11 / 1e6


def test_attainment_is_of_all_that_arrived() -> None:
    """Case 7 (inference-sim#1409): 40 arrive, 38 are rejected or unfinished, 1 of 2 meets the SLO: 2.5 %."""
    tables = run([0] * 40, [10, 10, *[500] * 30, *[10] * 8], [1] * 40, Limits(max_model_len=100, horizon_ns=40))
    summary = summarise(tables.requests, tables.steps, Objectives(ttft=20))
    assert [summary[name] for name in ("arrived", "finished", "rejected", "unfinished")] == [40, 2, 30, 8]
    assert summary["slo_attainment"] == 0.025
    assert summary["goodput"] == pytest.approx(1 / 40e-9, rel=1e-12)
    assert summary["longest_wait_ms"] == 40 / 1e6


def assert_nothing_measured(tables: RunTables, measured: set[str]) -> None:
    """Counts add up, everything else is null but what is named, and the summary is JSON."""
    summary = summarise(tables.requests, tables.steps, Objectives(ttft=1000, tpot_p99=25))
    assert summary["arrived"] == sum(
        summary[name]
        for name in ("finished", "rejected", "redirected", "unfinished")  # type: ignore[misc]
    )
    assert {key for key, value in summary.items() if value is not None} == COUNTS | measured
    assert json.loads(json.dumps(summary, allow_nan=False)) == summary
    full = run([0, 3], [10, 10], [4, 4])
    assert list(summary) == list(summarise(full.requests, full.steps, Objectives()))


def test_an_empty_trace_has_a_report_of_nulls() -> None:
    """Case 9 (inference-sim#926): an empty trace."""
    assert_nothing_measured(run([], [], []), set())


def test_all_too_large_has_a_report_of_nulls() -> None:
    """Case 9 (inference-sim#926): all requests too large; that none of them met anything is known."""
    tables = run([0, 5, 9], [100] * 3, [100] * 3, Limits(max_model_len=50))
    assert_nothing_measured(tables, {"slo_attainment"})
    assert summarise(tables.requests, tables.steps, Objectives())["slo_attainment"] == 0.0


def test_a_horizon_before_the_first_finish_has_a_report_of_nulls() -> None:
    """Case 9 (inference-sim#926): what the engine did is known, what requests got is not."""
    steps = {"hit_rate", "utilisation", "queue_mean", "queue_max", "batch_mean", "longest_wait_ms"}
    tables = run([0, 5], [100, 100], [10, 10], Limits(horizon_ns=50))
    assert_nothing_measured(
        tables, {"slo_attainment", *steps, "ttft_mean_ms", "ttft_p50_ms", "ttft_p90_ms", "ttft_p99_ms"}
    )
    chunked = simulate(
        Trace(np.array([0]), np.array([100]), np.array([2])),
        parse_policy("fcfs+fixed:chunk=10"),
        COST,
        limits=Limits(horizon_ns=50),
    )
    assert_nothing_measured(chunked, {"slo_attainment", *steps})


def test_a_horizon_before_the_first_arrival_has_a_report_of_nulls() -> None:
    """Case 9 (inference-sim#926): nobody has waited in a run that was over before they came."""
    assert_nothing_measured(run([500], [10], [1], Limits(horizon_ns=50)), {"slo_attainment"})


@cases(100, engine_run)
def test_little_s_law_is_exact_on_the_sample_path(drawn: Run) -> None:
    """∫ N dt = Σ T for decoding requests, and for those that wait at the start of steps (T12 of the theory checks)."""
    _, tables, _ = drawn
    requests, steps = tables.requests, tables.steps
    start, duration = steps["start_ns"], steps["duration_ns"]
    if not len(start):
        return
    ends = start + duration
    first, finished = requests["first_token_ns"], requests["finished_ns"]
    until = np.where(finished == NULL, ends[-1], finished)
    assert (steps["n_decode"] * duration).sum() == (until - first)[first != NULL].sum()

    waited = (requests["outcome"] >= FINISHED) & (requests["visible_step"] != NULL)
    waited &= (requests["first_scheduled_ns"] != NULL) | (requests["outcome"] == 3)
    waited &= requests["visible_step"] < len(start)
    scheduled = requests["first_scheduled_ns"][waited]
    leaves = np.where(scheduled == NULL, ends[-1], ends[np.searchsorted(start, scheduled)])
    stays = leaves - start[requests["visible_step"][waited]]
    assert (steps["waiting"] * duration).sum() == stays.sum()


@cases(60, engine_run, whole(1, 20))
def test_bins_add_up_to_the_summary(drawn: Run, bins: int) -> None:
    _, tables, goals = drawn
    summary = summarise(tables.requests, tables.steps, goals)
    series = over_time(tables.requests, tables.steps, bins)
    width = series["end_ns"] - series["start_ns"]
    for column, key in (("queue", "queue_mean"), ("utilisation", "utilisation")):
        if summary[key] is not None:
            assert (series[column] * width).sum() == pytest.approx(summary[key] * width.sum(), rel=1e-9)
    batch = (tables.steps["n_decode"] + tables.steps["n_prefill"]) * tables.steps["duration_ns"]
    assert (series["batch"] * width).sum() == pytest.approx(batch.sum(), rel=1e-9)


@cases(100, engine_run)
def test_goodput_is_throughput_times_attainment_where_all_finish(drawn: Run) -> None:
    """Table 2 of SLOWeave is consistent in the same way."""
    _, tables, goals = drawn
    summary = summarise(tables.requests, tables.steps, goals)
    if summary["finished"] == summary["arrived"]:
        product = summary["throughput"] * summary["slo_attainment"]  # type: ignore[operator]
        assert summary["goodput"] == pytest.approx(product, rel=1e-12)


@cases(60, engine_run, wide(10**15))
def test_shifting_time_changes_nothing(drawn: Run, by: int) -> None:
    _, tables, goals = drawn
    requests = {
        name: np.where(column == NULL, NULL, column + by)
        if name in ("arrival_ns", "first_scheduled_ns", "first_token_ns", "finished_ns")
        else column
        for name, column in tables.requests.items()
    }
    steps = {**tables.steps, "start_ns": tables.steps["start_ns"] + by}
    assert summarise(requests, steps, goals) == summarise(tables.requests, tables.steps, goals)


@cases(60, engine_run, whole(1, 20))
def test_scaling_time_by_a_power_of_two_scales_times_and_rates(drawn: Run, power: int) -> None:
    _, tables, goals = drawn
    factor = 2**power

    def scaled(columns: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {
            name: np.where(column == NULL, NULL, column * factor) if name.endswith("_ns") else column
            for name, column in columns.items()
        }

    before = summarise(tables.requests, tables.steps, goals)
    wider = Objectives(**{k: None if v is None else v * factor for k, v in vars(goals).items()})
    after = summarise(scaled(tables.requests), scaled(tables.steps), wider)
    for key, value in before.items():
        if value is not None and (key.endswith("_ms") or key == "duration_s"):
            assert after[key] == pytest.approx(value * factor, rel=1e-12)
        elif value is not None and key in ("goodput", "throughput", "output_throughput", "prefill_throughput"):
            assert after[key] == pytest.approx(value / factor, rel=1e-12)
        else:
            assert after[key] == value


@cases(60, engine_run, lambda rng: rng)
def test_the_order_of_requests_does_not_matter(drawn: Run, rng: random.Random) -> None:
    _, tables, goals = drawn
    order = list(range(len(tables.requests["arrival_ns"])))
    rng.shuffle(order)
    before = summarise(tables.requests, tables.steps, goals)
    after = summarise({name: column[order] for name, column in tables.requests.items()}, tables.steps, goals)
    for key, value in before.items():
        assert after[key] == (value if value is None else pytest.approx(value, rel=1e-12, abs=0))
