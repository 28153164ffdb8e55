"""Comparisons end to end and of step times, against slow ones and against what must hold for any numbers."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from sklearn.base import BaseEstimator, RegressorMixin

from costmodels import LinearCost
from gpu_runner.validate.ends import Row, Sample, compare, keeps_up, knee, sample_of
from gpu_runner.validate.ends_report import ends_section, knee_section, verdict
from gpu_runner.validate.step_times import StepErrors, held_out_ns, predicted_ns
from gpu_runner.validate.tolerances import FIGURES, OTHERS, TIMES, Tolerances, ValidationError
from policies import parse_policy
from sim.engine import simulate
from sim.metrics import summarise
from sim.objectives import Objectives
from sim.records import Tables
from tests.seeded import Maker, cases, either, whole
from tests.sim.random_runs import engine_run, memory_run
from tests.sim.slow_metrics import rows_of
from traces import Trace

runs = either(engine_run, memory_run)


def number(rng: random.Random) -> float:
    return rng.choice((rng.choice((1e-3, 1.0, 1e6)), rng.uniform(1e-3, 1e6), 10 ** rng.uniform(-3, 6)))


def several(maker: Maker, low: int, high: int) -> Maker:
    """Make a list, often of one value only."""

    def make(rng: random.Random) -> list[Any]:
        n = rng.randint(low, high)
        return [maker(rng)] * n if rng.randrange(4) == 0 else [maker(rng) for _ in range(n)]

    return make


SUMMARY = {
    "ttft_mean": "ttft_mean_ms",
    "ttft_p50": "ttft_p50_ms",
    "ttft_p90": "ttft_p90_ms",
    "ttft_p99": "ttft_p99_ms",
    "tpot_mean": "tpot_mean_ms",
    "tpot_p50": "tpot_p50_ms",
    "jct_mean": "jct_mean_ms",
    "jct_p50": "jct_p50_ms",
    "jct_p99": "jct_p99_ms",
    "itl_p99": "itl_p99_ms",
    "goodput": "goodput",
}


@cases(60, runs)
def test_figures_are_those_of_every_summary(run: tuple[Trace, Tables, Objectives]) -> None:
    _, t, goals = run
    summary = summarise(t.requests, t.steps, goals, t.preemptions)
    figures = sample_of(t.requests, t.steps, t.preemptions, goals).figures
    for name, key in SUMMARY.items():
        expected = summary[key]
        assert figures[name] == (None if expected is None else pytest.approx(expected, rel=1e-9)), name


@cases(40, engine_run)
def test_gaps_are_those_between_each_requests_tokens(run: tuple[Trace, Tables, Objectives]) -> None:
    _, t, goals = run
    gaps = sorted(gap for row in rows_of(t.requests, t.steps, t.preemptions) for gap in row.gaps)
    found = sample_of(t.requests, t.steps, t.preemptions, goals).times["itl"]
    assert np.rint(np.sort(found) * 1e6).astype(int).tolist() == gaps


@cases(20, runs)
def test_a_run_is_no_different_from_itself(run: tuple[Trace, Tables, Objectives]) -> None:
    _, t, goals = run
    figures = sample_of(t.requests, t.steps, t.preemptions, goals).figures
    rows = compare([figures] * 3, [figures], Tolerances(dict.fromkeys(FIGURES, 0.0)))
    assert all(r.within is not False for r in rows)
    assert all(r.error is None or abs(r.error) < 1e-12 for r in rows)
    assert all(r.spread is None or r.spread < 1e-12 for r in rows)


@cases(100, several(number, 1, 5), several(number, 1, 3), whole(-20, 20))
def test_errors_and_spreads_have_no_unit(real: list[float], ours: list[float], power: int) -> None:
    scale = 2.0**power
    (row,) = compare([{"ttft_p99": v} for v in real], [{"ttft_p99": v} for v in ours], Tolerances())
    (scaled,) = compare([{"ttft_p99": v * scale} for v in real], [{"ttft_p99": v * scale} for v in ours], Tolerances())
    assert (row.error, row.spread, row.within) == (scaled.error, scaled.spread, scaled.within)


def share(rng: random.Random) -> float:
    return rng.choice((0.0, 1.0, rng.random(), rng.random(), rng.random()))


@cases(100, number, lambda rng: 3 * share(rng), share)
def test_the_tolerance_is_a_band_around_what_was_measured(measured: float, tolerance: float, share: float) -> None:
    inside, outside = (1 + share * tolerance * 0.999), (1 + tolerance) * 1.001
    for factor, within in ((inside, True), (outside, False)):
        (row,) = compare([{"jct_p50": measured}], [{"jct_p50": measured * factor}], Tolerances({"jct": tolerance}))
        assert row.within is within


@pytest.mark.parametrize(
    ("repeats", "within"), [([90.0, 100.0, 110.0], True), ([99.0, 100.0, 101.0], False), ([80.0, 120.0], False)]
)
def test_an_error_within_twice_the_spread_of_three_repeats_is_allowed(repeats: list[float], within: bool) -> None:
    """Two repeats say nothing about their spread, however far apart they are."""
    (row,) = compare([{"itl_p99": v} for v in repeats], [{"itl_p99": 115.0}], Tolerances())
    assert row.error == pytest.approx(0.15)
    assert row.within is within
    if len(repeats) > 2:
        assert row.spread == pytest.approx(np.std(repeats, ddof=1) / 100)


def test_what_was_measured_and_not_simulated_is_a_miss_and_the_reverse_is_not() -> None:
    rows = compare([{"ttft_p50": 3.0, "goodput": 0.0}], [{"itl_p50": 2.0, "goodput": 1.0}], Tolerances())
    assert {r.figure: r.within for r in rows} == {"ttft_p50": False, "itl_p50": None, "goodput": False}
    assert verdict(rows)[0] is False
    assert verdict([r for r in rows if r.figure == "itl_p50"])[0] is None


def test_nothing_to_compare_is_refused() -> None:
    with pytest.raises(ValidationError, match="at least one measured"):
        compare([], [{}], Tolerances())


def _constant(rho: float, n: int = 400) -> Any:
    """Return the requests of an engine that serves one at a time, offered ``rho`` times what it can."""
    cost = LinearCost(step=1000, decode=0, per_decode=0, prefill=0, per_token=0)
    trace = Trace((np.arange(n) * 1000 / rho).astype(np.int64), np.ones(n, np.int64), np.ones(n, np.int64))
    return simulate(trace, parse_policy("fcfs+full"), cost).requests


@pytest.mark.parametrize(("rho", "stable"), [(0.3, True), (0.95, True), (1.0, True), (1.1, False), (3.0, False)])
def test_a_rate_is_stable_as_long_as_the_engine_is_not_overloaded(rho: float, stable: bool) -> None:
    assert keeps_up(_constant(rho)) is stable


def repeats_by_rate(rng: random.Random) -> dict[float, list[bool]]:
    """Make whether an engine kept up, some times at each of some rates, which are in any order."""
    rates = [rng.choice((float(rng.randint(1, 9)), rng.uniform(0.1, 100))) for _ in range(rng.randint(0, 6))]
    likely = rng.choice((0.0, 0.5, 0.5, 0.8, 1.0))
    return {rate: [rng.random() < likely for _ in range(rng.randint(1, 5))] for rate in rates}


@cases(100, repeats_by_rate)
def test_the_knee_is_the_last_rate_before_the_first_that_mostly_fails(stable: dict[float, list[bool]]) -> None:
    found = knee(stable)
    fine = {rate: np.mean(repeats) > 0.5 for rate, repeats in stable.items()}
    failing = [rate for rate, good in fine.items() if not good]
    below = [rate for rate in fine if not failing or rate < min(failing)]
    assert found == (max(below) if below else None)


def test_knees_are_judged_by_their_own_tolerance() -> None:
    assert knee_section("x", 10.0, 10.9, Tolerances()).passed is True
    assert knee_section("x", 10.0, 10.9, Tolerances.parse("knee:5")).passed is False
    assert knee_section("x", 10.0, None, Tolerances()).passed is False
    assert knee_section("x", None, None, Tolerances()).passed is None


def test_a_miss_says_what_where_and_how_much_was_allowed() -> None:
    trace = Trace(np.zeros(1, np.int64), np.array([5]), np.array([3]))
    cost = LinearCost(step=7_000_000, decode=0, per_decode=0, prefill=0, per_token=0)
    t = simulate(trace, parse_policy("fcfs+full"), cost)
    sample = sample_of(t.requests, t.steps, t.preemptions, Objectives())
    twice = type(sample)({name: 2 * v for name, v in sample.times.items()}, sample.goodput)
    section = ends_section("fcfs+full", [sample], [twice], Tolerances.parse("ttft:30"), rho=(0.7, 0.72))
    assert section.passed is False
    assert (
        "L3 fcfs+full at ρ 0.70: P99 TTFT is simulated as 14 ms and measured as 7 ms, +100.0 % where ±30.0 % is allowed"
        in section.misses
    )
    assert not any("goodput" in miss for miss in section.misses)


def percents(rng: random.Random) -> dict[str, int]:
    names = [*TIMES, *FIGURES, *OTHERS]
    return {rng.choice(names): rng.choice((0, 500, *rng.choices(range(501), k=4))) for _ in range(rng.randint(0, 8))}


@cases(100, percents)
def test_tolerances_read_back_what_they_print(given_percent: dict[str, int]) -> None:
    read = Tolerances.parse(",".join(f"{name}:{value}" for name, value in given_percent.items()))
    again = Tolerances.parse(str(read))
    for name in (*FIGURES, *OTHERS):
        expected = given_percent.get(name, given_percent.get(name.partition("_")[0], 10))
        assert read.of(name) == again.of(name) == pytest.approx(expected / 100)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tftt:5", "did you mean ttft"),
        ("ttft", "should read ttft:PERCENT"),
        ("ttft:-1", "at least 0"),
        ("ttft:nan", "at least 0"),
        ("ttft:5,ttft:6", "gives ttft twice"),
    ],
)
def test_bad_tolerances_are_one_sentence(text: str, message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Tolerances.parse(text)


def pairs_of(rng: random.Random) -> list[tuple[float, float]]:
    alike = rng.choice((0.0, 0.1, 10.0))
    some = several(number, 1, rng.choice((1, 5, 40)))(rng)
    return [(number(rng) if alike > 1 else m * (1 + alike * rng.uniform(-1, 1)), m) for m in some]


@cases(100, pairs_of)
def test_step_errors_are_means_of_what_they_say(pairs: list[tuple[float, float]]) -> None:
    predicted, measured = zip(*pairs, strict=True)
    errors = [p / m - 1 for p, m in pairs]
    sizes = sorted(map(abs, errors))
    found = StepErrors.of(predicted, measured)
    assert found.mape == pytest.approx(sum(sizes) / len(sizes))
    assert found.bias == pytest.approx(sum(errors) / len(errors), rel=1e-9, abs=1e-9)
    assert found.worst == pytest.approx(sizes[-1])
    assert found.worst_decile == pytest.approx(np.mean(sizes[-max(len(sizes) // 10, 1) :]))
    assert found.total == pytest.approx(sum(predicted) / sum(measured) - 1, rel=1e-9, abs=1e-9)
    assert abs(found.bias) <= found.mape * (1 + 1e-12) + 1e-12
    assert found.mape <= found.worst_decile * (1 + 1e-12)


@pytest.mark.parametrize(("predicted", "measured"), [([], []), ([1.0], [1.0, 2.0]), ([1.0], [0.0]), ([1.0], [np.nan])])
def test_steps_that_cannot_be_compared_are_refused(predicted: list[float], measured: list[float]) -> None:
    with pytest.raises(ValidationError):
        StepErrors.of(predicted, measured)


class Memoriser(RegressorMixin, BaseEstimator):
    """Predicts 1 for a shape that it was fitted to, and 0 for any other."""

    def fit(self, X: Any, y: Any) -> Memoriser:
        self.known_ = {tuple(row) for row in np.asarray(X).tolist()}
        return self

    def predict(self, X: Any) -> Any:
        return np.array([float(tuple(row) in self.known_) for row in np.asarray(X).tolist()])


def test_held_out_shapes_were_never_seen() -> None:
    rng = np.random.default_rng(0)
    features = np.repeat(rng.integers(0, 99, (20, 6)), 4, axis=0)
    rng.shuffle(features)
    assert held_out_ns(Memoriser, features, np.ones(len(features))).tolist() == [0.0] * 80  # type: ignore[arg-type]
    with pytest.raises(ValidationError, match="too few"):
        held_out_ns(Memoriser, features[:1], np.ones(1))  # type: ignore[arg-type]


def test_predictions_are_the_cost_models() -> None:
    cost = LinearCost(step=5, per_decode=3, per_token=2)
    assert predicted_ns(cost, np.array([[2, 9, 5, 0, 0, 0], [0, 0, 0, 1, 7, 28]])).tolist() == [
        cost.step_ns(2, 9, 5, 0, 0, 0),
        cost.step_ns(0, 0, 0, 1, 7, 28),
    ]


def test_rows_say_in_json_what_they_are() -> None:
    row = Row("ttft_p50", 2.0, 3.0, None, 0.1)
    assert row.to_dict()["within"] is False
    assert row.to_dict()["error"] == pytest.approx(0.5)


def test_a_simulation_in_which_nobody_is_served_is_out_of_tolerance_and_has_no_pictures() -> None:
    served = Sample({"ttft": np.array([3.0]), "tpot": np.empty(0), "itl": np.empty(0), "jct": np.array([3.0])}, 1.0)
    nobody = Sample(dict.fromkeys(served.times, np.empty(0)))
    section = ends_section("fcfs+full", [served], [nobody], Tolerances())
    assert section.passed is False
    assert not section.pictures
    assert "P99 TTFT is simulated as – and measured as 3 ms" in section.misses[3]
