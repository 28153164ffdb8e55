"""Goodput at any objectives, soft goodput, and who is dominated: against the metrics of runs, and as a command."""

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.config import ConfigError
from experiments.pareto import Case, standings
from experiments.recorded import Described
from experiments.surface import credit, objective_grid, overshoot, parse_objectives, surface
from experiments.surface_picture import best, surfaces, write_surfaces
from experiments.webreport.groups import Group
from policies.units import MS
from sim.metrics import met
from sim.objectives import Objectives
from sim.records import FINISHED, NULL, REJECTED, UNFINISHED, Columns
from tests.experiments.conftest import Cli

quietly = settings(deadline=None, max_examples=40)

MOST = 12

times = st.integers(1, MOST)


DIGITS = 10


def table_of(drawn: bytes) -> Columns:
    """Requests of all outcomes, with and without gaps, in few nanoseconds so that many equal their objectives."""
    outcomes = np.array([FINISHED, FINISHED, FINISHED, REJECTED, UNFINISHED])
    digits = np.frombuffer(drawn, dtype=np.uint8).astype(np.int64).reshape(DIGITS, -1)
    outcome = outcomes[digits[0] % len(outcomes)]
    finished = outcome == FINISHED
    ttft, decoding, longest = 1 + digits[1:4] % MOST
    generated = np.where(finished, 1 + digits[4] % 6, 0)
    decoding = np.where(generated > 1, decoding, 0)
    arrival = np.sort(digits[5] % 101)
    own = np.array([NULL, NULL, 4, 8])[digits[6] % 4]
    gap = 1 + (256 * digits[7] + digits[8]) % (100 * MOST) / 100
    return {
        "arrival_ns": arrival,
        "outcome": outcome,
        "ttft_ns": np.where(finished, ttft, NULL),
        "first_token_ns": np.where(finished, arrival + ttft, NULL),
        "finished_ns": np.where(finished, arrival + ttft + decoding, NULL),
        "generated_tokens": generated,
        # Of whole nanoseconds half, which equal their objectives.
        "tpot_p99_ns": np.where(generated > 1, np.where(digits[9] % 2, gap, np.floor(gap)), np.nan),
        "itl_max_ns": np.where(generated > 1, longest, NULL),
        "jct_ns": np.where(finished, ttft + decoding, NULL),
        "slo_ttft_ns": own,
        "slo_tpot_ns": own[::-1].copy(),
    }


tables = st.integers(1, 12).map(DIGITS.__mul__).flatmap(lambda n: st.binary(min_size=n, max_size=n)).map(table_of)

grids = st.lists(times, min_size=1, max_size=6, unique=True).map(lambda v: np.array(sorted(v), dtype=np.int64))

optional = st.sampled_from([*[None] * 2 * MOST, *range(1, MOST + 1)])
"""Seldom there: among many, one alone seldom decides."""


@quietly
@given(tables, grids, grids)
def test_a_surface_counts_who_meets_each_pair_of_objectives(requests: Columns, ttft: Any, tpot: Any) -> None:
    nobody = np.full(len(requests["outcome"]), NULL)
    without_own = {**requests, "slo_ttft_ns": nobody, "slo_tpot_ns": nobody}
    found = surface(requests, ttft, tpot)
    for i, t in enumerate(ttft.tolist()):
        for j, d in enumerate(tpot.tolist()):
            expected = met(without_own, Objectives(ttft=t, tpot_p99=d)).sum()
            assert found.met[i, j] == expected
            assert found.attainment[i, j] == expected / len(nobody)
    assert (np.diff(found.met, axis=0) >= 0).all()
    assert (np.diff(found.met, axis=1) >= 0).all()


@settings(deadline=None, max_examples=150)
@given(tables, st.builds(Objectives, optional, optional, optional, optional, optional))
def test_a_request_overshoots_where_it_does_not_meet(requests: Columns, objectives: Objectives) -> None:
    over = overshoot(requests, objectives)
    assert ((over <= 0) == met(requests, objectives)).all()
    assert (credit(over, 0.0) == met(requests, objectives)).all()


@quietly
@given(tables, times, times, st.floats(0.01, 5.0), st.floats(1.0, 3.0))
def test_soft_goodput_is_at_least_the_hard_one_and_grows_with_the_width(
    requests: Columns, ttft: int, tpot: int, width: float, more: float
) -> None:
    over = overshoot(requests, Objectives(ttft=ttft, tpot_p99=tpot))
    hard, soft, softer = credit(over, 0.0), credit(over, width), credit(over, width * more)
    assert (hard <= soft).all()
    assert (soft <= softer + 1e-12).all()
    assert (soft[over >= width] == 0).all()
    assert (softer <= 1).all()


def test_half_as_late_as_the_width_counts_half() -> None:
    assert credit(np.array([-0.5, 0.0, 0.05, 0.1, np.inf]), 0.1).tolist() == [1.0, 1.0, 0.5, 0.0, 0.0]


@quietly
@given(st.lists(tables, min_size=1, max_size=3), st.sampled_from(["ttft_ns", "tpot_p99_ns"]))
def test_objectives_of_a_grid_rise(runs: list[Columns], column: str) -> None:
    grid = objective_grid(runs, column)
    assert len(grid)
    assert (np.diff(grid) > 0).all()


@pytest.mark.parametrize("text", ["", "a", "5:", "10:5", "1:2:3", "0,5", "-1:4", "nan", "1:inf"])
def test_objectives_that_are_none(text: str) -> None:
    with pytest.raises(ConfigError, match="--ttft"):
        parse_objectives("--ttft", text)


def test_objectives() -> None:
    assert parse_objectives("--ttft", "20,10,20").tolist() == [10 * MS, 20 * MS]
    assert parse_objectives("--ttft", "10:1000", 3).tolist() == [10 * MS, 100 * MS, 1000 * MS]


def described(policy: str, seed: int, **summary: float) -> Described:
    return Described(
        Path(f"{policy}/{seed}"), policy, "trace", seed, "", f"hash-{seed}", Objectives(), {}, dict(summary), {}
    )


def case(policy: str, ttft: list[float], tpot: list[float], met_of: list[int]) -> Case:
    """A policy of whose 1,000 requests within 1 s so many finish, on each seed."""
    runs = [described(policy, s, ttft_p99_ms=a, tpot_p99_ms=b) for s, (a, b) in enumerate(zip(ttft, tpot, strict=True))]
    requests = []
    for good in met_of:
        finished = np.arange(1000) < good
        requests.append(
            {
                "arrival_ns": np.zeros(1000, dtype=np.int64),
                "outcome": np.where(finished, FINISHED, REJECTED),
                "ttft_ns": np.where(finished, 5, NULL),
                "first_token_ns": np.where(finished, 5, NULL),
                "finished_ns": np.where(finished, 10**9, NULL),
                "generated_tokens": np.where(finished, 1, 0),
                "tpot_p99_ns": np.full(1000, np.nan),
                "itl_max_ns": np.full(1000, NULL),
                "jct_ns": np.where(finished, 10**9, NULL),
                "slo_ttft_ns": np.full(1000, NULL),
                "slo_tpot_ns": np.full(1000, NULL),
            }
        )
    return Case(Group(policy, "trace", "", {}, list(runs)), requests, Objectives())


def test_who_is_dominated() -> None:
    fast = case("fast", [10, 11, 12], [5, 5, 5], [900, 901, 902])
    slow = case("slow", [20, 21, 22.5], [5, 5, 5], [800, 801, 803])
    other = case("other", [50, 50, 50], [1, 1, 1], [700, 700, 700])
    lucky = case("lucky", [10, 11, 11.9], [5, 5, 5], [900, 890, 915])
    found = {s.case.policy: s for s in standings([fast, slow, other, lucky], 0.1)}
    assert found["other"].front
    assert (found["slow"].dominated_by, found["slow"].surely) == ("fast", True)
    assert (found["fast"].dominated_by, found["fast"].surely) == ("lucky", False)
    assert found["lucky"].front


numbers = st.lists(st.integers(1, 4), min_size=3, max_size=3)


@settings(deadline=None, max_examples=30)
@given(st.lists(st.tuples(numbers, numbers, numbers), min_size=1, max_size=5))
def test_somebody_is_on_the_front_and_only_better_ones_dominate(drawn: list[Any]) -> None:
    cases = [case(f"p{k}", *values) for k, values in enumerate(drawn)]
    found = standings(cases, 0.1)
    assert any(s.front for s in found)
    by_name = {s.case.policy: s for s in found}
    for s in found:
        if s.dominated_by is not None:
            better = by_name[s.dominated_by].estimates
            assert (better["ttft_p99_ms"].mean or 0) <= (s.estimates["ttft_p99_ms"].mean or 0)
            assert (better["tpot_p99_ms"].mean or 0) <= (s.estimates["tpot_p99_ms"].mean or 0)
            assert (better["goodput"].mean or 0) >= (s.estimates["goodput"].mean or 0)


def test_nobody_is_surely_best_where_seeds_disagree() -> None:
    a, b, c = (case(n, [1, 1, 1], [1, 1, 1], m) for n, m in (("a", [9, 5, 7]), ("b", [5, 9, 8]), ("c", [1, 1, 2])))
    grid = np.array([10], dtype=np.int64)
    winner, sure = best(surfaces([a, c], grid, grid))
    assert (winner.item(), sure.item()) == (0, True)
    winner, sure = best(surfaces([a, b, c], grid, grid))
    assert (winner.item(), sure.item()) == (1, False)
    assert not best(surfaces([a], grid, grid))[1].any()


def test_the_command_reads_a_comparison_at_other_objectives(cli: Cli, no_picture: None, light_pictures: None) -> None:
    policies = ["-p", "sloweave", "-p", "vllm-default"]
    options = ["--seeds", "3", "--limit", "60", "--json"]
    assert cli("compare", "--workload", "mixed", *policies, *options, "--slo", "tpot_p99:50", "--out", "a").code == 0
    other = cli("compare", "--workload", "mixed", *policies, *options, "--slo", "ttft:300,tpot_p99:20", "--out", "b")
    objectives = ["--ttft", "100,300", "--tpot", "10,20,40"]
    result = cli("pareto", "a", "--slo", "ttft:300,tpot_p99:20", *objectives, "--json", "--out", "c")
    assert result.code == 0, result.err
    for row in result.json["policies"]:
        if row["policy"] == "vllm-default":  # the other fills deadlines, which it has not got without an objective
            compared = other.json["policies"]["vllm-default"]["goodput"]
            assert row["goodput"] == pytest.approx(compared["mean"])
            assert [row["goodput_lo"], row["goodput_hi"]] == pytest.approx(compared["ci95"])
        assert row["soft_goodput"] >= row["goodput"]
    with Path("c/surface.csv").open() as file:
        rows = {(r["policy"], r["ttft_ms"], r["tpot_ms"]): r for r in csv.DictReader(file)}
    assert len(rows) == 2 * 2 * 3
    at = rows["vllm-default", "300.0", "20.0"]
    assert float(at["goodput"]) == pytest.approx(other.json["policies"]["vllm-default"]["goodput"]["mean"])
    assert {Path(f).name for f in result.json["files"]} == {
        *("pareto.json", "pareto.csv", "pareto.png", "pareto.pdf", "surface.csv", "surface.png", "surface.pdf")
    }


def test_without_gaps_between_tokens_goodput_is_drawn_along_ttft(tmp_path: Path, light_pictures: None) -> None:
    cases = [case("a", [1, 1], [1, 1], [9, 8]), case("b", [1, 1], [1, 1], [7, 7])]
    runs = [run for c in cases for run in c.requests]
    tpot = objective_grid(runs, "tpot_p99_ns")
    assert len(tpot) == 1
    write_surfaces(cases, np.array([1, 5, 10]), tpot, tmp_path)
    with (tmp_path / "surface.csv").open() as file:
        goodput = [float(row["goodput"]) for row in csv.DictReader(file)]
    assert goodput == [0, 8.5, 8.5, 0, 7, 7]
    assert (tmp_path / "surface.png").exists()


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["nowhere"], "no folder nowhere"),
        (["."], "neither a run nor a sweep"),
        ([".", "--ttft", "x"], "LOW:HIGH"),
        ([".", "--slo", "ttfx:5"], "did you mean ttft"),
    ],
)
def test_the_command_refuses_in_one_sentence(cli: Cli, arguments: list[str], reason: str) -> None:
    result = cli("pareto", *arguments)
    assert result.code == 2
    assert reason in result.err
    assert not Path("runs").exists()


def test_a_sweep_without_tables_is_refused(cli: Cli, no_picture: None) -> None:
    options = ["--seeds", "1", "--limit", "20", "--set", "keep=summary", "--out", "a", "--json"]
    assert cli("compare", "--workload", "mixed", "-p", "vllm-default", *options).code == 0
    result = cli("pareto", "a")
    assert result.code == 2
    assert "summary only" in result.err
