"""Verdicts on any figures: what must hold whatever the runs came to."""

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from experiments.regress.baseline import Baseline, CellFigures, SeedFigures
from experiments.regress.check import Check, Outcome, Row, judge, misfits
from experiments.regress.metrics import METRICS, Metric, Tolerances
from experiments.regress.report import junit, markdown
from sim.stats import t_interval
from tests.experiments.odd import odd_text
from tests.seeded import cases, either, just, pick

NAMES = [metric.name for metric in METRICS]
HIGHER = {metric.name: metric.higher_is_better for metric in METRICS}


def positive(rng: random.Random) -> float:
    """Return a number of any size, some of them equal."""
    return float(rng.choice((1.0, 1e-6, 1e6, f"{10 ** rng.uniform(-6, 6):.10g}", f"{rng.uniform(1, 2):.10g}")))


measured = either(just(0.0), positive)
values = either(just(None), just(0.0), positive)


def texts(rng: random.Random) -> str:
    return odd_text(rng, 1, 12)


def baselines(rng: random.Random) -> Baseline:
    n, names = rng.randint(1, 3), rng.choice([NAMES, NAMES[:3]])
    cells = []
    for policy in {texts(rng): None for _ in range(rng.randint(1, 3))}:
        seeds = {seed: SeedFigures(trace="t", metrics={name: values(rng) for name in names}) for seed in range(n)}
        contents = either(just(None), pick(0, -1, 2**63, -(2**200)), texts)
        point = {texts(rng): contents(rng) for _ in range(rng.randint(0, 2))}
        cells.append(
            CellFigures(policy=policy, trace=texts(rng), point=point, configuration={"policy": "p"}, seeds=seeds)
        )
    return Baseline(package="1", cells=tuple(cells))


def changed(baseline: Baseline, name: str, factor: float) -> Baseline:
    """Return a baseline with one figure multiplied on every seed."""
    content = json.loads(baseline.text())
    for cell in content["cells"]:
        for figures in cell["seeds"].values():
            if figures["metrics"].get(name) is not None:
                figures["metrics"][name] *= factor
    return Baseline.model_validate_json(json.dumps(content))


def judged_all(percent: float) -> Tolerances:
    return Tolerances(dict.fromkeys(NAMES, percent))


def rows_of(rows: list[Row], name: str) -> list[Row]:
    return [row for row in rows if row.metric.name == name]


@cases(30, baselines)
def test_text_reads_back_and_has_a_line_per_run(baseline: Baseline) -> None:
    text = baseline.text()
    assert Baseline.model_validate_json(text) == baseline
    runs = sum(len(cell.seeds) for cell in baseline.cells)
    assert sum('"metrics"' in line for line in text.split("\n")) >= runs
    assert text.count("\n") == 6 + sum(8 + len(cell.seeds) for cell in baseline.cells)


@cases(30, baselines)
def test_nothing_differs_from_itself(baseline: Baseline) -> None:
    rows = judge(baseline, baseline, judged_all(0))
    assert {row.verdict for row in rows} <= {"unchanged"}
    assert misfits(baseline, baseline) == []


def change_and_tolerance(rng: random.Random) -> tuple[int, float]:
    """By how much in ten thousand a figure changes, and how many per cent are tolerated: often nearly as many."""
    per_myriad = rng.choice((-1, 1)) * rng.choice((1, 100, 300, rng.randint(1, 300)))
    near = max(0, abs(per_myriad) + rng.randint(-1, 1))
    return per_myriad, rng.choice((near, rng.choice((0, 1, 100, 300, rng.randint(0, 300))))) / 100


@cases(50, baselines, pick(*NAMES), change_and_tolerance)
def test_a_figure_is_worse_exactly_beyond_its_tolerance(
    baseline: Baseline, name: str, drawn: tuple[int, float]
) -> None:
    per_myriad, tolerance = drawn
    now = changed(baseline, name, 1 + per_myriad / 10_000)
    percent = per_myriad / 100
    rows = judge(baseline, now, judged_all(tolerance))
    assert {row.verdict for row in rows if row.metric.name != name} <= {"unchanged"}
    for row in rows_of(rows, name):
        if not row.then:
            assert row.verdict == "unchanged"
        elif abs(percent) > tolerance * (1 + 1e-9):
            assert row.verdict == ("better" if (percent > 0) == HIGHER[name] else "worse")
        elif abs(percent) < tolerance * (1 - 1e-9):
            assert row.verdict == "changed"
        if row.then:
            assert row.percent.mean == pytest.approx(percent, rel=1e-6)


def per_seed(rng: random.Random) -> list[tuple[float | None, float | None]]:
    """Pairs, of which some are equal."""
    drawn = [(values(rng), values(rng)) for _ in range(rng.randint(1, 4))]
    return [(a, rng.choice((a, b, b, b))) for a, b in drawn]


def percent(rng: random.Random) -> float:
    return rng.choice((0.0, 50.0, rng.uniform(0, 50), rng.uniform(0, 50)))


def one(metric: Metric, figures: Sequence[float | None]) -> Baseline:
    """Return a baseline of one cell with one figure."""
    seeds = {seed: SeedFigures(trace="t", metrics={metric.name: value}) for seed, value in enumerate(figures)}
    return Baseline(package="1", cells=(CellFigures(policy="p", trace="t", point={}, configuration={}, seeds=seeds),))


def verdict(metric: Metric, pairs: Sequence[tuple[float | None, float | None]], percent: float) -> str:
    """Return the verdict on pairs of then and now."""
    (row,) = judge(one(metric, [a for a, _ in pairs]), one(metric, [b for _, b in pairs]), judged_all(percent))
    return row.verdict


@cases(100, pick(*METRICS), per_seed, percent, percent)
def test_more_tolerance_is_never_stricter(metric: Metric, pairs: list[Any], a: float, b: float) -> None:
    if all(a is None and b is None for a, b in pairs):
        return
    strict, loose = (verdict(metric, pairs, percent) for percent in sorted((a, b)))
    assert loose in (strict, "changed")


@cases(100, pick(*METRICS), lambda rng: [(measured(rng), measured(rng)) for _ in range(rng.randint(1, 4))])
def test_better_is_worse_seen_from_the_other_side(metric: Metric, pairs: list[tuple[float, float]]) -> None:
    opposite = {"worse": "better", "better": "worse", "changed": "changed", "unchanged": "unchanged"}
    there, back = verdict(metric, pairs, 0), verdict(metric, [(b, a) for a, b in pairs], 0)
    # A difference of the last digits may pass for rounding beside the larger of two numbers only.
    assert back == opposite[there] or "unchanged" in (there, back)


def test_one_seed_of_many_is_enough_to_differ() -> None:
    for metric in METRICS:
        assert verdict(metric, [(2.0, 2.0), (2.0, 2.2)], 50) == "changed"
        assert verdict(metric, [(2.0, 2.0), (2.0, 2.2)], 1) == ("better" if metric.higher_is_better else "worse")


def test_exactly_the_tolerance_is_allowed() -> None:
    for metric, now in ((METRICS[0], 1.0), (METRICS[2], 3.0)):
        assert verdict(metric, [(2.0, now)], 50) == "changed"
        assert verdict(metric, [(2.0, now)], 49.999) == "worse"


@cases(50, per_seed)
def test_the_interval_is_that_of_the_differences(pairs: list[Any]) -> None:
    metric = METRICS[0]
    for row in judge(one(metric, [a for a, _ in pairs]), one(metric, [b for _, b in pairs]), judged_all(0)):
        differences = [b - a for a, b in pairs if a is not None and b is not None]
        assert row.difference == t_interval(differences)
        if differences:
            assert row.now == pytest.approx(sum(b for a, b in pairs if None not in (a, b)) / len(differences))


def test_a_figure_that_only_one_side_has_does_not_fit() -> None:
    """A line edited by hand or by a merge must not take a figure out of the check."""
    full, less = one(METRICS[0], [1.0, 2.0]), one(METRICS[1], [1.0, 2.0])
    assert misfits(full, less) == [
        "baseline and runs do not both have attainment of every seed of p on t",
        "baseline and runs do not both have goodput of every seed of p on t",
    ]


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_what_is_no_longer_measured_is_worse(metric: Metric) -> None:
    assert verdict(metric, [(1.0, 1.0), (1.0, None)], 50) == "worse"
    assert verdict(metric, [(1.0, None), (1.0, None)], 50) == "worse"
    assert verdict(metric, [(1.0, 1.0), (None, 1.0)], 50) == "changed"
    assert judge(one(metric, [None]), one(metric, [None]), judged_all(0)) == []
    assert verdict(metric, [(0.0, 0.1)], 50) == ("better" if metric.higher_is_better else "worse")


@cases(
    30,
    baselines,
    lambda rng: [odd_text(rng, 0, 20) for _ in range(rng.randint(0, 2))],
    lambda rng: rng.choice((0.5, 1.0, 2.0, rng.uniform(0.5, 2))),
)
def test_reports_are_well_formed_whatever_the_names(baseline: Baseline, faults: list[str], factor: float) -> None:
    now = changed(baseline, "goodput", factor)
    nothing: Any = None
    check = Check(Path("a|b<c>.toml"), Path("b.json"), nothing, Tolerances({}), baseline)
    rows = judge(baseline, now, judged_all(1))
    outcome = Outcome(check, now, rows, faults, [])
    suite = ElementTree.fromstring(junit([outcome])).find("testsuite")
    assert suite is not None
    assert len(suite.findall("testcase")) == len(rows) + 2
    failed = sum(row.verdict == "worse" for row in rows) + bool(faults)
    assert len(suite.findall("testcase/failure")) == failed
    lines = markdown([outcome]).split("\n")
    table = [line.replace("\\|", "") for line in lines if line.startswith("| ")]
    assert {line.count("|") for line in table} <= {9}
    assert len(table) == (1 + sum(row.verdict != "unchanged" for row in rows) if rows and len(table) else 0)
    assert lines[0] == f"## prefillsim regress: {'failed' if failed else 'passed'}"
