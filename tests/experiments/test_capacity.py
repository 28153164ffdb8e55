"""Capacity: the interval against a queue whose capacity is known, what a search does, and the command."""

import csv
import json
import math
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize

from costmodels.linear import LinearCost
from experiments.capacity.estimate import crossing, estimate, ratio, surely_higher
from experiments.capacity.options import parse_levels, parse_rates
from experiments.capacity.search import Capacity, Design, Grid, Search, Verdict, Want
from experiments.config import ConfigError
from tests.experiments.conftest import Cli
from tests.theory.test_fcfs import md1_wait_at_most

quietly = settings(deadline=None, max_examples=60)

WAIT = 1.0
"""Objective: to wait at most so many services."""

CUSTOMERS, WARM_UP = 6_000, 300

MD1 = Design(Grid.around(0.5, 0.01), 256, CUSTOMERS - WARM_UP)

Attainment = Callable[[float, int], float]
"""Of a rate and a seed."""


def md1_capacity(level: float) -> float:
    """Return the load at which P(W <= WAIT) of M/D/1 is the level."""
    return float(optimize.brentq(lambda load: md1_wait_at_most(WAIT, load) - level, 0.01, 0.95))


@lru_cache(maxsize=MD1.seeds)
def drawn_gaps(first_seed: int, seed: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return gaps at load 1, which a search draws at every rate."""
    return np.random.default_rng([first_seed, seed]).exponential(1.0, CUSTOMERS)


def md1(load: float, seed: int, service: float = 1.0, first_seed: int = 0) -> float:
    """Return the share of customers whose sojourn is at most ``WAIT`` + 1, of an M/D/1 queue by Lindley's recursion."""
    walk = np.cumsum(service - drawn_gaps(first_seed, seed) / load)
    wait = walk - np.minimum.accumulate(np.minimum(walk, 0.0))
    return float((wait[WARM_UP:] + service <= WAIT + 1.0).mean())


def searched(design: Design, level: float, attainment: Attainment) -> tuple[Capacity, dict[int, list[float]]]:
    search, values = Search(design, level), dict[int, list[float]]()
    while wanted := search.wanted(values):
        for place, n in wanted:
            own = values.setdefault(place, [])
            assert len(own) < n <= design.seeds
            own += [attainment(design.grid.rate(place), seed) for seed in range(len(own), n)]
    return search.found(values), values


def ends(design: Design, found: Capacity) -> tuple[float, float]:
    assert found.holds is not None
    assert found.breaks is not None
    return design.grid.rate(found.holds), design.grid.rate(found.breaks)


def test_the_interval_holds_the_capacity_of_md1_and_none_of_a_queue_that_is_3_percent_slower() -> None:
    truth = md1_capacity(0.9)
    low, high = ends(MD1, searched(MD1, 0.9, md1)[0])
    assert low <= truth <= high
    assert high / low < 1.03
    low, high = ends(MD1, searched(MD1, 0.9, lambda load, seed: md1(load, seed, service=1.03))[0])
    assert not low <= truth <= high


def test_the_estimate_is_the_capacity_of_md1() -> None:
    found, values = searched(MD1, 0.9, md1)
    middle, low, high = estimate(found, values, MD1.grid, 0.99)
    assert middle is not None
    assert low is not None
    assert high is not None
    assert low <= md1_capacity(0.9) <= high
    assert high / low < 1.02


@pytest.mark.parametrize("level", [0.9, 0.99])
def test_intervals_hold_the_capacity_as_often_as_they_say(level: float) -> None:
    """At 95 %; four misses of 25 or more would have a chance of 3 % if it were exact, and it is more than that."""
    design = Design(Grid.around(0.5, 0.05), 32, CUSTOMERS - WARM_UP)
    truth = md1_capacity(level)
    misses, widths = 0, []
    for repeat in range(25):
        low, high = ends(design, searched(design, level, lambda r, s, k=repeat: md1(r, s, first_seed=k))[0])
        misses += not low <= truth <= high
        widths.append(high / low)
    assert misses <= 3
    assert np.median(widths) < 1.35


def test_seeds_are_only_spent_near_the_capacity() -> None:
    _, values = searched(MD1, 0.9, md1)
    truth = md1_capacity(0.9)
    far = [len(v) for place, v in values.items() if not 0.8 < MD1.grid.rate(place) / truth < 1.25]
    assert set(far) == {MD1.looks[0]}
    assert MD1.looks[0] == 8


@st.composite
def falling(draw: st.DrawFn) -> tuple[float, float]:
    """A capacity within the grid's reach, and how steeply attainment falls there."""
    return draw(st.floats(0.04, 25.0)), draw(st.floats(0.5, 40.0))


def curve(capacity: float, slope: float, level: float) -> Attainment:
    """Return attainment that falls through ``level`` at ``capacity``, without noise."""
    odds = math.log(level / (1 - level))
    return lambda rate, _: 1 / (1 + math.exp(min(slope * math.log(rate / capacity) - odds, 700.0)))


@quietly
@given(falling(), st.sampled_from([0.5, 0.9, 0.99]), st.sampled_from([1, 64]))
def test_without_noise_the_interval_is_as_narrow_as_the_tests_allow(
    drawn: tuple[float, float], level: float, seeds: int
) -> None:
    design = Design(Grid.around(1.0, 0.025), seeds, 10**7)
    found, values = searched(design, level, curve(*drawn, level))
    low, high = ends(design, found)
    assert low <= drawn[0] <= high
    assert found.rises is None
    assert not found.spent
    assert len(values) <= design.grid.most_rates + 5
    if seeds == 1:
        assert found.breaks == (found.holds or 0) + 1


@quietly
@given(falling(), st.sampled_from([0.9, 0.99]))
def test_a_range_that_does_not_hold_the_capacity_is_said_to_be_so(drawn: tuple[float, float], level: float) -> None:
    capacity = drawn[0]
    below = Design(Grid.between(2 * capacity, 4 * capacity, 0.025), 8, 10**7)
    found, values = searched(below, level, curve(*drawn, level))
    assert (found.holds, found.breaks) == (None, 0)
    above = Design(Grid.between(capacity / 4, capacity / 2, 0.025), 8, 10**7)
    found, values = searched(above, level, curve(*drawn, level))
    assert (found.holds, found.breaks) == (above.grid.size, None)
    assert len(values) == 2


def test_a_level_that_is_never_reached_ends_at_the_lowest_rate() -> None:
    design = Design(Grid.around(1.0, 0.025), 16, 1000)
    found, values = searched(design, 0.99, lambda rate, seed: 0.95)
    assert (found.holds, found.breaks) == (None, 0)
    assert min(values) == 0
    found, _ = searched(design, 0.9, lambda rate, seed: 0.95)
    assert (found.holds, found.breaks) == (design.grid.size, None)


def test_attainment_that_rises_again_is_reported_and_the_lowest_crossing_is_searched() -> None:
    """A dip below the level below the capacity that bisection meets first."""

    def dipped(rate: float, _: int) -> float:
        return 0.5 if 0.6 < rate < 0.8 or rate > 1.1 else 0.99

    design = Design(Grid.around(1.0, 0.025), 16, 1000)
    found, _ = searched(design, 0.9, dipped)
    low, high = ends(design, found)
    assert found.rises is not None
    assert low <= 0.6 <= high < 0.65


def test_noise_that_hides_the_level_gives_a_wide_interval_rather_than_a_wrong_one() -> None:
    def noisy(rate: float, seed: int) -> float:
        noise = np.random.default_rng([seed, round(rate * 1e6)]).normal(0, 0.05)
        return float(np.clip(0.9 - 0.02 * math.log(rate) + noise, 0, 1))

    design = Design(Grid.around(1.0, 0.025), 16, 1000)
    found, _ = searched(design, 0.9, noisy)
    low = 0 if found.holds is None else found.holds
    high = design.grid.size if found.breaks is None else found.breaks
    assert design.grid.rate(low) <= 1.0 <= design.grid.rate(high)
    assert design.grid.rate(high) / design.grid.rate(low) > 1.5


def test_a_rate_whose_first_seeds_are_the_good_ones_is_found_out() -> None:
    """Attainment is 0.97 at every rate above 1, and nobody misses on the first eight seeds."""

    def rarely_bad(rate: float, seed: int) -> float:
        return 0.5 if rate > 2 else 0.91 if rate > 1 and seed >= 8 and seed % 4 else 1.0

    design = Design(Grid.around(1.0, 0.025), 64, 1000)
    low, high = ends(design, searched(design, 0.99, rarely_bad)[0])
    assert design.verdict([rarely_bad(1.5, seed) for seed in range(8)], 0.99) is Verdict.HOLDS
    assert low <= 1.0 <= high


attainments = st.lists(st.floats(0.0, 1.0), min_size=1, max_size=70)


@quietly
@given(attainments, st.floats(0.05, 0.99))
def test_a_verdict_once_given_stays(values: list[float], level: float) -> None:
    """What seeds come later changes nothing, or the error probability would be spent more than once."""
    design = Design(Grid.around(1.0, 0.05), 64, 1000)
    verdicts = [design.verdict(values[:n], level) for n in range(len(values) + 1)]
    told = next((v for v in verdicts if v is not Verdict.OPEN), Verdict.OPEN)
    assert all(v in (Verdict.OPEN, told) for v in verdicts)
    assert verdicts == sorted(verdicts, key=lambda v: v is not Verdict.OPEN)


@quietly
@given(attainments, st.floats(0.05, 0.95))
def test_holding_a_level_is_breaking_it_upside_down(values: list[float], level: float) -> None:
    design = Design(Grid.around(1.0, 0.05), 64, 1000)
    other = {Verdict.HOLDS: Verdict.BREAKS, Verdict.BREAKS: Verdict.HOLDS}
    verdict = design.verdict(values, level)
    assert design.verdict([1 - v for v in values], 1 - level) is other.get(verdict, verdict)


def test_seeds_without_spread_are_not_believed_beyond_what_their_requests_allow() -> None:
    few, many = (Design(Grid.around(1.0, 0.05), 8, n) for n in (20, 2_000))
    assert few.verdict([1.0] * 8, 0.99) is Verdict.UNCLEAR
    assert many.verdict([1.0] * 8, 0.99) is Verdict.HOLDS


@pytest.mark.parametrize(("seeds", "looks"), [(1, (1,)), (5, (5,)), (15, (15,)), (16, (8, 16)), (64, (8, 16, 32, 64))])
def test_looks(seeds: int, looks: tuple[int, ...]) -> None:
    assert Design(Grid.around(1.0, 0.05), seeds, 10).looks == looks


@quietly
@given(st.floats(1e-3, 1e3), st.floats(0.002, 1.0), st.floats(1.01, 100.0))
def test_grids_reach_their_ends_in_steps_of_the_precision(base: float, precision: float, factor: float) -> None:
    around, between = Grid.around(base, precision), Grid.between(base, base * factor, precision)
    for grid, low, high in ((around, base / 32, base * 32), (between, base, base * factor)):
        assert grid.rate(0) == pytest.approx(low, rel=1e-5)
        assert grid.rate(grid.size) == pytest.approx(high, rel=1e-5)
        assert grid.ratio <= 1 + precision * (1 + 1e-9)
    assert around.rate(around.start[0]) == pytest.approx(base, rel=1e-5)


@quietly
@given(st.floats(-5, 5), st.floats(-9, -0.1), st.floats(0.1, 0.9), st.integers(2, 6))
def test_a_straight_line_crosses_where_it_crosses(at: float, slope: float, level: float, n: int) -> None:
    x = np.linspace(at - 0.3, at + 0.2, n)
    assert crossing(x, level + slope * (x - at), level) == pytest.approx(at)
    assert crossing(x + 1, level + slope * (x - at), level) == pytest.approx(at + 1)


@quietly
@given(st.lists(st.floats(0, 1), min_size=2, max_size=8), st.floats(0.05, 0.95))
def test_a_crossing_is_where_attainment_first_falls_below(curve: list[float], level: float) -> None:
    x, y = np.arange(len(curve), dtype=np.float64), np.array(curve)
    at = crossing(x, y, level)
    before = y[x < at]
    assert (before >= level).all()
    if y[0] >= level > y.min():
        assert np.interp(at, x, y) == pytest.approx(level)


def test_ratios_are_paired_by_seed() -> None:
    """Seeds move both policies' capacities by the same factor, which their ratio does not see."""
    grid = Grid.between(1.0, 2.0, 0.01)
    luck = np.random.default_rng(0).normal(0, 0.05, 12)

    def values(capacity: float) -> dict[int, list[float]]:
        return {
            p: [0.9 - 0.5 * (math.log(grid.rate(p) / capacity) - x) for x in luck.tolist()]
            for p in range(grid.size + 1)
        }

    def found(capacity: float) -> Capacity:
        at = grid.places(capacity)
        return Capacity(0.9, at - 3, at + 3, 9, None, False)

    a, b = ((found(c), values(c)) for c in (1.5, 1.2))
    mean, low, high = ratio(a, b, grid, 0.95)
    assert (mean, low, high) == pytest.approx((1.25, 1.25, 1.25), rel=1e-6)
    alone = estimate(*a, grid, 0.95)
    assert alone.hi is not None
    assert alone.lo is not None
    assert alone.hi / alone.lo > 1.04
    assert surely_higher(a[0], b[0])
    assert not surely_higher(b[0], a[0])
    assert not surely_higher(a[0], a[0])


def test_a_search_waits_for_what_it_has_asked() -> None:
    search = Search(Design(Grid.between(1.0, 2.0, 0.05), 16, 1000), 0.9)
    first = search.wanted({})
    assert first == [Want(0, 8), Want(15, 8)]
    assert search.wanted({}) == first
    assert search.wanted({0: [1.0] * 8}) == [Want(15, 8)]


@pytest.mark.parametrize("text", ["", "0", "0.9", "100", "90,x", "nan", "-5"])
def test_levels_that_are_none(text: str) -> None:
    with pytest.raises(ConfigError, match="percentages from 1 to below 100"):
        parse_levels(text)


@pytest.mark.parametrize("text", ["", "40", "40:40", "160:40", "0:5", "a:b", "1:inf", "nan:3"])
def test_rates_that_are_none(text: str) -> None:
    with pytest.raises(ConfigError, match="LOW:HIGH"):
        parse_rates(text)


def test_levels_and_rates() -> None:
    assert parse_levels("99, 90,90") == [0.9, 0.99]
    assert parse_rates("40:160") == (40.0, 160.0)


# A queue of equal prompts at a Poisson rate is M/D/1 for the command too.
PROMPT = 2_000
SERVICE_NS = LinearCost().step_ns(0, 0, 0, 1, PROMPT, 0)
EQUAL = f"credit-verification:clip={PROMPT}-{PROMPT},users=400,rate=20"


@pytest.fixture
def no_capacity_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawing takes longer than a small search."""
    monkeypatch.setattr("experiments.capacity.report.write_capacity", lambda measured, folder: [])


def slo(waits: float) -> str:
    return f"ttft:{(1 + waits) * SERVICE_NS / 1e6!r}"


@pytest.mark.usefixtures("no_capacity_picture")
def test_the_command_finds_the_capacity_of_md1(cli: Cli) -> None:
    options = ["-p", "fcfs+full", "--attainment", "90", "--rates", "20:50", "--precision", "0.1", "--seeds", "8"]
    result = cli("capacity", "--workload", EQUAL, "--slo", slo(WAIT), *options, "--json", "--out", "a")
    assert result.code == 0, result.err
    (found,) = result.json["capacities"]
    truth = md1_capacity(0.9) * 1e9 / SERVICE_NS
    assert found["holds"] <= truth <= found["breaks"]
    assert found["breaks"] / found["holds"] < 1.6
    assert found["estimate"] == pytest.approx(truth, rel=0.1)
    assert found["runs"] == result.json["runs"] == len(list(Path("a/cells").iterdir()))


def test_the_command_draws_compares_and_goes_on(cli: Cli, light_pictures: None) -> None:
    policies = ["-p", "fcfs+full", "-p", "srjf-static+full"]
    options = ["--attainment", "90", "--rates", "60:240", "--precision", "0.3", "--seeds", "8", "--limit", "60"]
    command = ["capacity", "--workload", "chat", "--slo", "ttft:500", *policies, *options, "--out", "a"]
    shown = cli(*command)
    assert shown.code == 0, shown.err
    assert "90 %" in shown.out
    document = json.loads(Path("a/capacity.json").read_bytes())
    (pair,) = document["paired"]
    assert (pair["a"], pair["b"]) == ("srjf-static+full", "fcfs+full")
    with Path("a/capacity.csv").open() as file:
        rows = list(csv.DictReader(file))
    by_policy = {p: {r["rate"] for r in rows if r["policy"] == p} for p in ("fcfs+full", "srjf-static+full")}
    common = set.intersection(*by_policy.values())
    assert common, "policies see the same rates, so the same requests"
    assert Path("a/capacity.png").exists()
    before = {path: path.stat().st_mtime_ns for path in Path("a/cells").iterdir()}
    again = cli(*command, "--resume", "--json")
    assert again.code == 0, again.err
    assert again.json["capacities"] == document["capacities"]
    assert {path: path.stat().st_mtime_ns for path in Path("a/cells").iterdir()} == before


@pytest.mark.usefixtures("no_capacity_picture")
def test_a_file_keeps_its_own_arrivals_and_has_no_confidence(cli: Cli) -> None:
    """The capacity of one trace is a fact: a run at the rate that holds meets the level, one that breaks does not."""
    assert cli("trace", "generate", "--workload", "chat", "--limit", "200", "--out", "chat.jsonl").code == 0
    run = ["--trace", "chat.jsonl", "--slo", "ttft:500", "-p", "fcfs+full"]
    result = cli("capacity", *run, "--attainment", "90", "--json", "--out", "a")
    assert result.code == 0, result.err
    (found,) = result.json["capacities"]
    assert result.json["confidence"] is None
    assert "one trace" in result.json["warnings"][0]
    own = result.json["range"][0] * 32
    for key, met in (("holds", True), ("breaks", False)):
        scale = f"{found[key] / own:.6g}"
        once = cli("simulate", *run, "--rate-scale", scale, "--json", "--out", f"b-{key}")
        assert (once.json["summary"]["slo_attainment"] >= 0.9) is met


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--workload", "chat", "--slo", "ttft:500", "--seeds", "2"], "give at least 4"),
        (["--workload", "chat", "--slo", "ttft:500", "--set", "trace.rate_scale=2"], "--rate-scale"),
        (["--workload", "chat:arrivals=all-at-once", "--slo", "ttft:500"], "all at once"),
        (["--workload", "credit-verification"], "needs objectives"),
        (["--workload", "chat", "--set", "sweep.tpot=[10]"], "varies the rate alone"),
        (["--workload", "chat", "--rates", "5"], "LOW:HIGH"),
        (["--workload", "chat", "--attainment", "0.9"], "percentages"),
    ],
)
def test_the_command_refuses_in_one_sentence(cli: Cli, options: list[str], reason: str) -> None:
    result = cli("capacity", "-p", "fcfs+full", *options)
    assert result.code == 2
    assert reason in result.err
    assert result.err.count("\n") == 1
    assert not Path("runs").exists()
