"""Verdicts on any figures: what must hold whatever the runs came to."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.regress.baseline import Baseline, CellFigures, SeedFigures
from experiments.regress.check import Check, Outcome, Row, judge, misfits
from experiments.regress.metrics import METRICS, Metric, Tolerances
from experiments.regress.report import junit, markdown
from sim.stats import t_interval

NAMES = [metric.name for metric in METRICS]
HIGHER = {metric.name: metric.higher_is_better for metric in METRICS}

measured = st.just(0.0) | st.floats(1e-6, 1e6).map(lambda x: float(f"{x:.10g}"))
values = st.none() | measured
texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)


@st.composite
def baselines(draw: st.DrawFn) -> Baseline:
    n, names = draw(st.integers(1, 3)), draw(st.sampled_from([NAMES, NAMES[:3]]))
    cells = []
    for policy in draw(st.lists(texts, min_size=1, max_size=3, unique=True)):
        seeds = {seed: SeedFigures(trace="t", metrics={name: draw(values) for name in names}) for seed in range(n)}
        point = draw(st.dictionaries(texts, st.none() | st.integers() | texts, max_size=2))
        cells.append(
            CellFigures(policy=policy, trace=draw(texts), point=point, configuration={"policy": "p"}, seeds=seeds)
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


@settings(deadline=None, max_examples=30)
@given(baselines())
def test_text_reads_back_and_has_a_line_per_run(baseline: Baseline) -> None:
    text = baseline.text()
    assert Baseline.model_validate_json(text) == baseline
    runs = sum(len(cell.seeds) for cell in baseline.cells)
    assert sum('"metrics"' in line for line in text.split("\n")) >= runs
    assert text.count("\n") == 6 + sum(8 + len(cell.seeds) for cell in baseline.cells)


@settings(deadline=None, max_examples=30)
@given(baselines())
def test_nothing_differs_from_itself(baseline: Baseline) -> None:
    rows = judge(baseline, baseline, judged_all(0))
    assert {row.verdict for row in rows} <= {"unchanged"}
    assert misfits(baseline, baseline) == []


@settings(deadline=None, max_examples=50)
@given(
    baselines(), st.sampled_from(NAMES), st.integers(-300, 300).filter(bool), st.integers(0, 300).map(lambda t: t / 100)
)
def test_a_figure_is_worse_exactly_beyond_its_tolerance(
    baseline: Baseline, name: str, per_myriad: int, tolerance: float
) -> None:
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


per_seed = st.lists(st.tuples(values, values), min_size=1, max_size=4)


def one(metric: Metric, figures: Sequence[float | None]) -> Baseline:
    """Return a baseline of one cell with one figure."""
    seeds = {seed: SeedFigures(trace="t", metrics={metric.name: value}) for seed, value in enumerate(figures)}
    return Baseline(package="1", cells=(CellFigures(policy="p", trace="t", point={}, configuration={}, seeds=seeds),))


def verdict(metric: Metric, pairs: Sequence[tuple[float | None, float | None]], percent: float) -> str:
    """Return the verdict on pairs of then and now."""
    (row,) = judge(one(metric, [a for a, _ in pairs]), one(metric, [b for _, b in pairs]), judged_all(percent))
    return row.verdict


@settings(deadline=None, max_examples=50)
@given(st.sampled_from(METRICS), per_seed, st.floats(0, 50), st.floats(0, 50))
def test_more_tolerance_is_never_stricter(metric: Metric, pairs: list[Any], a: float, b: float) -> None:
    if all(a is None and b is None for a, b in pairs):
        return
    strict, loose = (verdict(metric, pairs, percent) for percent in sorted((a, b)))
    assert loose in (strict, "changed")


@settings(deadline=None, max_examples=50)
@given(st.sampled_from(METRICS), st.lists(st.tuples(measured, measured), min_size=1, max_size=4))
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


@settings(deadline=None, max_examples=30)
@given(per_seed)
def test_the_interval_is_that_of_the_differences(pairs: list[Any]) -> None:
    metric = METRICS[0]
    for row in judge(one(metric, [a for a, _ in pairs]), one(metric, [b for _, b in pairs]), judged_all(0)):
        differences = [b - a for a, b in pairs if a is not None and b is not None]
        assert row.difference == t_interval(differences)
        if differences:
            assert row.now == pytest.approx(sum(b for a, b in pairs if None not in (a, b)) / len(differences))


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_what_is_no_longer_measured_is_worse(metric: Metric) -> None:
    assert verdict(metric, [(1.0, 1.0), (1.0, None)], 50) == "worse"
    assert verdict(metric, [(1.0, None), (1.0, None)], 50) == "worse"
    assert verdict(metric, [(1.0, 1.0), (None, 1.0)], 50) == "changed"
    assert judge(one(metric, [None]), one(metric, [None]), judged_all(0)) == []
    assert verdict(metric, [(0.0, 0.1)], 50) == ("better" if metric.higher_is_better else "worse")


@settings(deadline=None, max_examples=30)
@given(baselines(), st.lists(st.text(max_size=20), max_size=2), st.floats(0.5, 2))
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
