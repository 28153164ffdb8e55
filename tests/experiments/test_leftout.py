"""The experiments the PrefillOnly paper left out: what is run, what is compared, and what the findings rest on."""

import math
from pathlib import Path
from typing import Any

import pytest

from experiments.prefillonly import bench, fairness, leftout, scaling
from experiments.prefillonly.bench import MODES, Run, aggregate, arriving, at_once, differences, run_all, runs_of
from experiments.prefillonly.leftout import STUDIES
from experiments.prefillonly.stores import offloading
from experiments.prefillonly.study import Study
from experiments.prefillonly.systems import SETUPS, WORKLOADS, Deployment, deploy
from experiments.tables import Rows
from traces.synthetic import generate

LONGEST = WORKLOADS[bench.POST]

SMALL = "post-recommendation:users=4,requests_per_user=6"

MANY = "post-recommendation:users=12,requests_per_user=6"


@pytest.fixture(scope="module")
def system() -> Deployment:
    return deploy(SETUPS["h100"], "prefillonly", LONGEST)


def mean(rows: Rows, metric: str, **at: Any) -> float:
    values = [row[metric] for row in rows if all(row[k] == v for k, v in at.items())]
    return sum(values) / len(values)


def test_modes_have_the_same_requests_at_other_times() -> None:
    tokens = [
        sorted(generate(a.workload, 3, rate=8.0).prompt_tokens.tolist()) for a in (arriving(m, 8.0) for m in MODES)
    ]
    assert tokens[0] == tokens[1] == tokens[2]
    assert len(tokens[0]) == 1000


def test_rows_come_in_the_order_of_the_runs(system: Deployment) -> None:
    points = [({"rate": rate}, system, arriving("users", rate, SMALL)) for rate in (9.0, 3.0)]
    runs = runs_of(points, [1, 0])
    rows = run_all(runs, jobs=1)
    assert [(row["rate"], row["seed"]) for row in rows] == [(9.0, 1), (9.0, 0), (3.0, 1), (3.0, 0)]
    assert [row["finished"] for row in rows] == [24] * 4


def test_percentiles_of_a_curve_are_those_of_the_metrics(system: Deployment) -> None:
    (row,) = run_all(runs_of([({}, system, arriving("users", 9.0, SMALL))], [0], curve=True), jobs=1)
    assert row["percentiles_s"][50] == pytest.approx(row["p50_s"])
    assert row["percentiles_s"][99] == pytest.approx(row["p99_s"])
    assert row["percentiles_s"] == sorted(row["percentiles_s"])


def test_differences_are_paired_by_seed() -> None:
    rows = [{"a": 1, "b": b, "seed": s, "m": 10.0 * s + b} for b in (1, 3) for s in (0, 1, 2)]
    (row,) = differences(rows, ["a"], "b", 1, ["m"])
    assert row == {
        "a": 1,
        "b": 3,
        "base": 1,
        "metric": "m",
        "difference": 2.0,
        "lo": 2.0,
        "hi": 2.0,
        "significant": True,
    }
    (low, high) = aggregate(rows, ["b"], ["m"])
    assert (low["m"], high["m"], low["seeds"]) == (11.0, 13.0, 3)
    assert low["m_lo"] < 11.0 < low["m_hi"]


def unlike(run: Run) -> dict[str, Any]:
    """A row that differs from run to run, without running anything."""
    value = 1.0 + hash((repr(run.at), run.deployment.policy, run.seed)) % 1000
    return {**dict(run.at), "seed": run.seed, **dict.fromkeys(bench.METRICS, value)}


@pytest.fixture
def unrun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "measure", unlike)


@pytest.mark.parametrize("study", STUDIES, ids=[study.stem for study in STUDIES])
def test_every_study_tells_its_points_apart_and_compares_them(
    study: Study, unrun: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[Rows] = []

    def remember(rows: Rows, *others: Any) -> list[Path]:
        drawn.append(rows)
        return []

    monkeypatch.setattr("experiments.prefillonly.study.draw_panels", remember)
    points = study.points((0, 1), 1)
    assert len({tuple(at[name] for name in study.by) for at, _, _ in points}) == len(points)
    # Of each trace in use, one is made: its prompts must be as long as the system was made for.
    for load in {load for _, _, load in points}:
        longest = max(generate(load.workload, 0, rate=load.rate).prompt_tokens.tolist())
        assert all(longest <= (d.memory.max_input or 0) for _, d, other in points if other == load)
    study.run(tmp_path, (0, 1), 1)
    (rows,) = drawn
    assert len(rows) == len(points)
    assert {row["seeds"] for row in rows} == {2}
    compared = (tmp_path / f"{study.stem}-paired.csv").read_text().splitlines()
    groups = len({tuple(at[name] for name in study.by if name != study.over) for at, _, _ in points})
    assert len(compared) - 1 == (len(points) - groups) * len(study.compared)


def test_a_picture_of_panels(tmp_path: Path, unrun: None, light_pictures: None) -> None:
    files = leftout.SPLIT.run(tmp_path, (0, 1), 1)
    assert {path.name for path in files} == {
        "left-out-split-paired.csv",
        *(f"left-out-split.{end}" for end in ("csv", "png", "pdf")),
    }
    assert all(path.stat().st_size > 500 for path in files if path.suffix == ".csv")


def test_figure_11_with_whole_users(system: Deployment) -> None:
    """The median must not fall nor the P99 rise with λ, for the order of users alone changes: no prefix is lost."""
    points = [
        ({"lam": lam}, system.with_policy(f"prefillonly:lam={lam}"), arriving("users", 31.6)) for lam in fairness.LAMS
    ]
    rows = run_all(runs_of(points, range(2)), jobs=1)
    assert {row["reloads"] for row in rows} == {20}
    for metric, sign in (("p50_s", 1), ("p99_s", -1)):
        values = [sign * mean(rows, metric, lam=lam) for lam in fairness.LAMS]
        assert values == sorted(values)
        assert values[0] < values[-1]


def test_figure_11_with_shuffled_requests_turns(system: Deployment) -> None:
    """λ=2000 goes back and forth between users whose profiles drive each other out; median and P99 both rise."""
    points = [
        ({"lam": lam}, system.with_policy(f"prefillonly:lam={lam}"), arriving("requests", 31.6)) for lam in (500, 2000)
    ]
    rows = run_all(runs_of(points, range(2)), jobs=1)
    assert mean(rows, "reloads", lam=2000) > 1.5 * mean(rows, "reloads", lam=500)
    for metric in ("p50_s", "p99_s"):
        assert mean(rows, metric, lam=2000) > mean(rows, metric, lam=500)


def test_figure_11_is_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, light_pictures: None) -> None:
    def curve(run: Run) -> dict[str, Any]:
        return {**unlike(run), "percentiles_s": [float(p + run.seed) for p in bench.PERCENTS]}

    monkeypatch.setattr(bench, "measure", curve)
    files = fairness.draw_figure11(tmp_path, (0, 1), 1)
    assert {"figure11.png", "figure11.csv", "figure11-paired.csv"} <= {path.name for path in files}
    # Three λ against the one before, of three modes and three metrics.
    assert len((tmp_path / "figure11-paired.csv").read_text().splitlines()) == 1 + 3 * 3 * 3


def test_throttling_of_chunked_prefill_needs_users_whose_requests_mingle() -> None:
    """Throughput falls as the rate rises where a user's requests come over time, and does not for whole users."""
    chunked = deploy(SETUPS["h100"], "chunked", LONGEST)
    points = [
        ({"mode": mode, "rate": rate}, chunked, arriving(mode, rate))
        for mode in ("users", "spread")
        for rate in (4.0, 32.0)
    ]
    rows = run_all(runs_of(points, range(1)), jobs=1)
    assert mean(rows, "throughput", mode="spread", rate=32) < 0.6 * mean(rows, "throughput", mode="spread", rate=4)
    assert mean(rows, "hit_rate", mode="spread", rate=32) < 0.7 * mean(rows, "hit_rate", mode="spread", rate=4)
    assert mean(rows, "throughput", mode="users", rate=32) > mean(rows, "throughput", mode="users", rate=4)


def test_a_slow_link_makes_offloading_wait(system: Deployment) -> None:
    changed = {"PCIe": offloading(system), "PCIe/100": offloading(system, 100)}
    points = [({"suffix": name}, d, arriving("requests", 9.0, MANY)) for name, d in changed.items()]
    rows = run_all(runs_of(points, range(1)), jobs=1)
    assert mean(rows, "hit_rate", suffix="PCIe") > 0.7
    assert mean(rows, "mean_s", suffix="PCIe") < mean(rows, "mean_s", suffix="PCIe/100")


@pytest.mark.parametrize("at", [0.05, 0.1, 0.7])
def test_the_lambda_that_is_needed_is_read_off_between_the_grid(at: float) -> None:
    def over(ratio: float) -> float:
        return 1.0 if math.isinf(ratio) else 1.2 + max(-0.2, 0.2 * math.log(at / ratio)) if ratio else 9.0

    assert scaling.needed([over(ratio) for ratio in scaling.RATIOS]) == pytest.approx(at, rel=0.02)


def test_a_lambda_below_the_grid_is_its_least() -> None:
    ones = [1.0] * (len(scaling.RATIOS) - 1)
    assert scaling.needed([1.0, *ones]) == scaling.needed([2.0, *ones]) == scaling.RATIOS[1]


def test_the_last_crossing_counts() -> None:
    """A λ keeps the bound only if all larger ones do."""
    found = scaling.needed([2.0, 1.1, 2.0, 1.1, *[1.0] * (len(scaling.RATIOS) - 4)])
    assert scaling.RATIOS[2] < found < scaling.RATIOS[3]


def test_one_gpu_that_is_twice_as_fast_needs_twice_the_lambda() -> None:
    def p99(ratio: float, seed: int) -> float:
        return (10.0 + seed) * (1 + 0.1 / (ratio + 0.1))

    rows = [
        {"gpu": gpu, "sigma": sigma, "ratio": ratio, "seed": seed, "tokens_per_s": speed, "p99_s": p99(ratio, seed)}
        for gpu, speed in zip(scaling.GPUS, (100.0, 200.0), strict=True)
        for sigma in scaling.SIGMAS
        for ratio in scaling.RATIOS
        for seed in range(3)
    ]
    table = {(row["gpu"], row["sigma"]): row for row in scaling.needed_rows(rows)}
    slow, fast = (table[gpu, scaling.SIGMAS[0]] for gpu in scaling.GPUS)
    assert fast["needed_lam"] == pytest.approx(2 * slow["needed_lam"])
    assert fast["vs_first_gpu"] == fast["vs_first_gpu_lo"] == fast["vs_first_gpu_hi"] == 1
    assert slow["needed_over_speed"] == pytest.approx(0.4, rel=0.1)


def test_saturation_is_the_papers_x(system: Deployment) -> None:
    (row,) = run_all(runs_of([({}, system, at_once(SMALL))], [0]), jobs=1)
    assert bench.saturation(system, at_once(SMALL), [0], 1) == pytest.approx(row["throughput"], rel=0.005)
