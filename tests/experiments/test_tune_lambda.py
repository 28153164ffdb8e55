"""λ tuning: what is chosen, that λ is measured against speed, and the command."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodels.linear import LinearCost
from experiments.bound import Bound
from experiments.config import ConfigError
from experiments.tuning import FCFS, best, curve_rows, default_grid, new_folder, parse_lams, speed_of
from policies import parse_policy
from sim.cluster import simulate_cluster
from sim.memory import Memory
from tests.experiments.conftest import Cli
from traces.schema import Segments, Trace

quietly = settings(deadline=None, max_examples=40)


@st.composite
def shared_prefixes(draw: st.DrawFn) -> Trace:
    """Requests of a few users, each with a profile in whole tokens and something of its own."""
    n = draw(st.integers(2, 14))
    users = draw(st.lists(st.integers(0, 3), min_size=n, max_size=n))
    profiles = [draw(st.integers(1, 40)) for _ in range(4)]
    own = draw(st.lists(st.integers(1, 9), min_size=n, max_size=n))
    arrivals = sorted(draw(st.lists(st.integers(0, 3_000), min_size=n, max_size=n)))
    tokens = np.array([[profiles[u], own[i]] for i, u in enumerate(users)], dtype=np.int64)
    ids = np.array([[u, 100 + i] for i, u in enumerate(users)], dtype=np.int64)
    segments = Segments(np.arange(n + 1, dtype=np.int64) * 2, ids.ravel(), tokens.ravel())
    return Trace(np.array(arrivals, dtype=np.int64), tokens.sum(axis=1), np.ones(n, dtype=np.int64), segments=segments)


def stretched(trace: Trace, time: int = 1, tokens: int = 1) -> Trace:
    """All times and all lengths a multiple of what they are."""
    assert trace.segments is not None
    segments = Segments(trace.segments.offsets, trace.segments.ids, trace.segments.tokens * tokens)
    return Trace(trace.arrival_ns * time, trace.prompt_tokens * tokens, trace.output_tokens, segments=segments)


def run(trace: Trace, cost: LinearCost, lam: float, block: int) -> Any:
    policies = [parse_policy(f"prefillonly:lam={lam!r}")]
    memory = Memory(blocks=6, block_size=block, regime="store")
    return simulate_cluster(trace, policies, cost, memory=memory).requests


LAMS = st.sampled_from([0.0, 2e5, 1e6, 1e7, 4e8, 1e9])


@quietly
@given(shared_prefixes(), LAMS, st.sampled_from([2, 4, 10]))
def test_stretched_time_with_as_much_less_lambda_is_the_same_run(trace: Trace, lam: float, k: int) -> None:
    """So λ goes with the speed of the hardware: k times slower, λ/k, and every time is exactly k times as long."""
    fast = LinearCost("fast", step=3, decode=1, per_decode=1, prefill=2, per_token=7)
    slow = LinearCost("slow", step=3 * k, decode=k, per_decode=k, prefill=2 * k, per_token=7 * k)
    a = run(trace, fast, lam, 4)
    b = run(stretched(trace, time=k), slow, lam / k, 4)
    assert (a["first_scheduled_ns"] * k == b["first_scheduled_ns"]).all()
    assert (a["finished_ns"] * k == b["finished_ns"]).all()
    assert (a["cached_tokens"] == b["cached_tokens"]).all()


@quietly
@given(shared_prefixes(), LAMS, st.sampled_from([2, 3, 8]))
def test_stretched_lengths_with_as_much_more_lambda_are_the_same_run(trace: Trace, lam: float, m: int) -> None:
    """λ goes with lengths: m times as many tokens, each m times as fast, need λ·m."""
    one = LinearCost("one", step=3, decode=1, per_decode=1, prefill=2, per_token=24)
    many = LinearCost("many", step=3, decode=1, per_decode=1, prefill=2, per_token=24 // m)
    a = run(trace, one, lam, 4)
    b = run(stretched(trace, tokens=m), many, lam * m, 4 * m)
    assert (a["finished_ns"] == b["finished_ns"]).all()
    # A hit leaves at least one token to compute, which is one block in both.
    assert (a["cached_tokens"] * m == b["cached_tokens"]).all()


def test_the_order_depends_on_lambda() -> None:
    """The two tests above would pass for a policy that ignores λ."""
    prompts = np.array([50, 60, 10], dtype=np.int64)
    trace = Trace(np.array([0, 1, 2], dtype=np.int64), prompts, np.ones(3, dtype=np.int64))
    cost = LinearCost("c", step=3, decode=1, per_decode=1, prefill=2, per_token=7)
    first = [int(run(trace, cost, lam, 4)["first_scheduled_ns"].argsort()[1]) for lam in (0.0, 1e12)]
    assert first == [2, 1]


def test_speed_is_the_inverse_of_a_token() -> None:
    cost = LinearCost("c", step=5, decode=1, per_decode=1, prefill=2, per_token=4_000)
    assert speed_of(cost) == 250_000
    grid = default_grid(250_000)
    assert (grid[0], grid[-1]) == (0, FCFS)
    assert grid == sorted(grid)
    assert [grid[1], grid[-2]] == [250, 2_500_000]


@pytest.mark.parametrize(
    ("text", "excess"),
    [("30s", [-10_000, 10_000]), ("30000ms", [-10_000, 10_000]), ("2x", [0, 10_000]), ("1.5x", [5_000, 17_500])],
)
def test_bounds(text: str, excess: list[float]) -> None:
    assert Bound.parse(text).excess([20_000, 40_000], [10_000, 15_000]) == excess


@pytest.mark.parametrize("text", ["30", "-3s", "0x", "x", "1.2 x", "nan", "infs", ""])
def test_bounds_that_are_none(text: str) -> None:
    with pytest.raises(ConfigError, match="--p99-bound is"):
        Bound.parse(text)


def test_lams() -> None:
    assert parse_lams("500, 20,inf,20") == [20, 500, math.inf]
    for text in ("", "1,x", "-1", "nan"):
        with pytest.raises(ConfigError, match="--lams has"):
            parse_lams(text)


def sweep_rows(values: dict[float, list[tuple[float, float]]], unfinished: int = 0) -> list[dict[str, Any]]:
    """Rows as a sweep makes them, from mean and P99 by λ and seed."""
    return [
        {
            "lam": lam,
            "seed": seed,
            "unfinished": unfinished,
            "jct_mean_ms": mean,
            "jct_p50_ms": mean,
            "jct_p99_ms": p99,
            "longest_wait_ms": p99,
        }
        for lam, seeds in values.items()
        for seed, (mean, p99) in enumerate(seeds)
    ]


curves = st.dictionaries(
    st.sampled_from([0.0, 1.0, 5.0, 20.0]),
    st.lists(st.tuples(st.integers(1, 50), st.integers(1, 50)), min_size=3, max_size=3),
)


@quietly
@given(curves, st.lists(st.tuples(st.integers(1, 50), st.integers(1, 50)), min_size=3, max_size=3), st.integers(1, 60))
def test_the_best_has_the_least_mean_of_those_that_keep_the_bound(
    values: dict[float, list[tuple[float, float]]], fcfs: list[tuple[float, float]], bound: int
) -> None:
    curve = curve_rows(sweep_rows({**values, FCFS: fcfs}), Bound.parse(f"{bound}ms"), 10.0)
    kept = {
        lam: sum(mean for mean, _ in seeds) / 3
        for lam, seeds in {**values, FCFS: fcfs}.items()
        if sum(p99 for _, p99 in seeds) / 3 <= bound + 1e-9
    }
    chosen = best(curve)
    assert (chosen is None) == (not kept)
    if chosen is not None:
        assert kept[chosen["lam"]] == pytest.approx(min(kept.values()))


def test_a_relative_bound_is_paired_by_seed() -> None:
    curve = curve_rows(sweep_rows({1.0: [(1, 12), (1, 100)], FCFS: [(2, 10), (2, 100)]}), Bound.parse("1x"), 10.0)
    (row, fcfs) = curve
    assert row["excess_ms"] == 1
    assert not row["meets_bound"]
    assert fcfs["excess_ms"] == 0
    assert fcfs["meets_bound"]
    assert row["versus_fcfs"]["jct_mean_ms"]["difference"] == -1


def test_a_lambda_under_which_requests_do_not_finish_keeps_no_bound() -> None:
    rows = sweep_rows({1.0: [(1, 1)]}, unfinished=1) + sweep_rows({FCFS: [(2, 2)]})
    chosen = best(curve_rows(rows, Bound.parse("1x"), 10.0))
    assert chosen is not None
    assert chosen["lam"] == FCFS


SMALL = [
    "--workload",
    "post-recommendation:users=4,requests_per_user=5",
    *("--rate", "8", "--gpu", "l4", "--llm", "llama-3.1-8b", "--mode", "hybrid", "--suffix", "discard"),
    *("--lams", "50,500", "--rounds", "1", "--seeds", "2", "--jobs", "1"),
]


def test_command(cli: Cli, no_tradeoff: None, no_picture: None) -> None:
    done = cli("tune-lambda", *SMALL, "--out", "tuned", "--json")
    assert done.code == 0, done.err
    lams = [row["lam"] for row in done.json["curve"]]
    assert {0, 50, 500, "inf"} <= set(lams)
    chosen, fcfs = done.json["chosen"], done.json["curve"][-1]
    assert chosen["jct_mean_ms"]["mean"] <= fcfs["jct_mean_ms"]["mean"]
    assert done.json["seeds"] == [0, 1]
    assert done.json["check"][-1]["jct_mean_ms"]["per_seed"] != fcfs["jct_mean_ms"]["per_seed"]

    reference = cli("compare", *SMALL[:12], "-p", "fcfs+full", "--seeds", "2", "--jobs", "1", "--json", "--out", "fcfs")
    assert reference.code == 0, reference.err
    (policy,) = reference.json["policies"].values()
    assert fcfs["jct_mean_ms"]["per_seed"] == policy["ttft_mean_ms"]["per_seed"]

    again = cli("tune-lambda", *SMALL, "--out", "tuned", "--resume", "--json")
    assert again.code == 0, again.err
    assert again.json["curve"] == done.json["curve"]


def test_a_bound_that_no_lambda_keeps(cli: Cli, no_tradeoff: None) -> None:
    done = cli("tune-lambda", *SMALL, "--p99-bound", "1ms", "--out", "tuned", "--json")
    assert done.code == 1
    assert done.json["lam"] is None
    assert done.json["nearest"]["excess_ms"] > 0
    assert len(done.json["curve"]) >= 4
    assert done.json["check"] == []


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--p99-bound", "3"], "--p99-bound is '3', but it should be a time like 30s"),
        (["--lams", "x"], "--lams has 'x'"),
        (["-p", "fcfs+full"], "none of the policies has a parameter lam"),
        (["-p", "prefillonly", "-p", "srjf-calibrated+full"], "tunes one policy"),
        (["--set", "sweep.rate=[1,2]"], "[sweep] has rate"),
    ],
)
def test_bad_input(cli: Cli, arguments: list[str], reason: str) -> None:
    done = cli("tune-lambda", "--workload", "credit-verification", "--seeds", "1", *arguments)
    assert done.code == 2
    assert reason in done.err
    assert done.err.count("\n") == 1


def test_table_and_picture(cli: Cli, light_pictures: None) -> None:
    done = cli("tune-lambda", *SMALL, "--rounds", "0")
    assert done.code == 0, done.err
    assert "λ=" in done.out
    assert "On 2 other seeds" in done.out
    for name in ("tradeoff.csv", "tune-lambda.json"):
        assert (Path("runs/tune-lambda") / name).stat().st_size > 500
    for suffix in ("png", "pdf"):
        assert (Path("runs/tune-lambda") / f"tradeoff.{suffix}").exists()
    assert len((Path("runs/tune-lambda") / "tradeoff.csv").read_text().splitlines()) == 5


def test_requests_that_were_turned_away_are_reported(cli: Cli, no_tradeoff: None) -> None:
    command = ["tune-lambda", "--workload", "post-recommendation", "--limit", "6", "--max-input", "9", "--lams", "5"]
    done = cli(*command, "--rounds", "0", "--seeds", "1", "--jobs", "1")
    assert done.code == 1
    assert "No λ keeps the bound: under none was a P99 measured" in done.out
    assert "3 of 3 runs (prefillonly: 3): 6 of 6 requests were rejected" in done.err


def test_folders_are_numbered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for number in ("", "-2", "-3"):
        folder = new_folder(resume=False)
        assert folder == Path(f"runs/tune-lambda{number}")
        folder.mkdir(parents=True)
        assert new_folder(resume=True) == folder


@pytest.fixture
def no_tradeoff(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawing takes longer than all else."""
    monkeypatch.setattr("experiments.tradeoff.write_tradeoff", lambda tuned, folder: [])


def test_what_goes_on_after_an_interrupt_is_the_whole_command(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    import experiments.executors

    def interrupted(*arguments: Any, **options: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(experiments.executors, "run_cell", interrupted)
        patch.setattr("sys.argv", ["prefillsim", "tune-lambda", *SMALL])
        stopped = cli("tune-lambda", *SMALL)
    assert stopped.code == 130
    message = stopped.err.strip()
    folder = message.partition("kept in ")[2].partition("; go on with: ")[0]
    assert Path(folder).name == "curve"
    assert message.endswith(f" --out {Path(folder).parent} --resume")
