"""The map of choices: who is best where, and when nobody is."""

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.choice import axes_of, choices
from experiments.config import ConfigError
from experiments.recorded import Described, Swept
from sim.objectives import Objectives
from tests.experiments.conftest import Cli
from tests.experiments.sweeping import toml


def swept(values: dict[tuple[str, int], list[float]], **axes: list[Any]) -> Swept:
    """A sweep over rates; goodputs by policy and rate, one per seed."""
    cells = [
        Described(Path("x"), p, "trace", s, "", f"hash-{rate}-{s}", Objectives(), {"rate": rate}, {"goodput": v}, {})
        for (p, rate), seeds in values.items()
        for s, v in enumerate(seeds)
    ]
    return Swept(Path("sweep"), "sweep", {"rate": sorted({rate for _, rate in values}), **axes}, {}, cells, [], [])


def noisy(mean: float, seed: int, n: int = 8) -> list[float]:
    return (mean + np.random.default_rng(seed).normal(0, 1, n)).tolist()


def test_the_best_is_surely_best_only_where_it_is() -> None:
    found = choices(
        swept(
            {
                ("a", 1): noisy(10, 1),
                ("b", 1): noisy(5, 2),
                ("a", 2): noisy(5, 3),
                ("b", 2): noisy(10, 4),
                ("a", 3): noisy(10, 5),
                ("b", 3): noisy(10, 6),
            }
        ),
        "goodput",
    )
    assert [(c.best, c.sure) for c in found[:2]] == [("a", True), ("b", True)]
    assert not found[2].sure
    assert [c.difference.excludes_zero for c in found] == [True, True, False]


def test_a_third_that_is_as_good_as_the_best_makes_it_unsure() -> None:
    """To be told apart from the second is not enough where the third varies more."""
    wild = [30.0, -10.0, 30.0, -11.0, 29.0, -9.0, 31.0, -10.0]
    (found,) = choices(swept({("a", 1): noisy(12, 1), ("b", 1): noisy(10.5, 1), ("c", 1): wild}), "goodput")
    assert (found.best, found.second) == ("a", "b")
    assert found.difference.excludes_zero
    assert not found.sure


def test_many_points_need_more_of_a_difference() -> None:
    """Holm: what one point alone would call sure by chance is not, among a hundred."""
    rng = np.random.default_rng(0)
    values = {(p, rate): rng.normal(10, 1, 6).tolist() for rate in range(100) for p in ("a", "b")}
    found = choices(swept(values), "goodput")
    assert sum(c.difference.excludes_zero for c in found) >= 2
    assert not any(c.sure for c in found)


@settings(deadline=None, max_examples=40)
@given(st.lists(st.floats(0, 100), min_size=1, max_size=6))
def test_equal_policies_are_never_told_apart(seeds: list[float]) -> None:
    (found,) = choices(swept({("a", 1): seeds, ("b", 1): seeds}), "goodput")
    assert not found.sure
    assert found.p == 1


def test_one_seed_is_never_sure() -> None:
    (found,) = choices(swept({("a", 1): [100.0], ("b", 1): [1.0]}), "goodput")
    assert found.best == "a"
    assert not found.sure


def test_axes_go_where_they_are_told_rates_first() -> None:
    values = {(p, rate): [1.0] for p in "ab" for rate in (1, 2)}
    more: dict[str, list[Any]] = {"trace.workload": ["x", "y"], "tpot": [5, 10]}
    sweep = swept(values, **more)
    for cell in sweep.cells:
        cell.point.update({"trace.workload": "x", "tpot": 5})
    assert axes_of(sweep, None, None).names == ["rate", "tpot", "trace.workload"]
    assert axes_of(sweep, "tpot", "trace.workload").names == ["tpot", "trace.workload", "rate"]
    with pytest.raises(ConfigError, match="did you mean tpot"):
        axes_of(sweep, "tpott", None)
    with pytest.raises(ConfigError, match="both rate"):
        axes_of(sweep, "rate", "rate")
    with pytest.raises(ConfigError, match="no axis"):
        axes_of(swept({("a", 1): [1.0], ("b", 1): [1.0]}), "rate", None)


def test_an_axis_that_some_policies_do_not_have_is_refused() -> None:
    sweep = swept({(p, rate): [1.0] for p in "ab" for rate in (1, 2)})
    sweep.cells[0].point["rate"] = None
    with pytest.raises(ConfigError, match="a parameter that a does not have"):
        axes_of(sweep, None, None)


def test_the_command_draws_a_sweep(cli: Cli, monkeypatch: pytest.MonkeyPatch, light_pictures: None) -> None:
    workloads = ["chat", "chat:prompt_median=900"]
    axes: dict[str, list[Any]] = {"rate": [40, 120], "tpot": [12, 40], "trace.workload": workloads}
    values = {"policies": ["vllm-default", "fcfs+full"], "seeds": 3, "trace.limit": 30, "slo": "ttft:300"}
    toml(Path("a.toml"), values, **axes)
    assert cli("sweep", "a.toml", "--out", "a", "--json").code == 0
    result = cli("map", "a", "--json", "--out", "m")
    assert result.code == 0, result.err
    assert result.json["axes"] == ["rate", "tpot", "trace.workload"]
    with Path("a/summary.csv").open() as file:
        runs = list(csv.DictReader(file))
    assert len(result.json["points"]) == 8
    for point in result.json["points"]:
        for policy in ("vllm-default", "fcfs+full"):
            own = [
                float(r["goodput"])
                for r in runs
                if r["policy"] == policy
                and (float(r["rate"]), float(r["tpot"]), r["trace.workload"])
                == (point["rate"], point["tpot"], point["trace.workload"])
            ]
            assert point[f"mean {policy}"] == pytest.approx(np.mean(own))
    assert Path("m/map.png").exists()
    monkeypatch.setattr("experiments.choice_picture.write_map", lambda *_: [])
    shown = cli("map", "a", "--metric", "ttft_p99_ms")
    assert shown.code == 0, shown.err
    assert "of 8 points" in shown.out


@pytest.mark.parametrize(
    ("arguments", "reason"), [(["nowhere"], "no folder nowhere"), (["."], "neither a run nor a sweep")]
)
def test_the_command_refuses_in_one_sentence(cli: Cli, arguments: list[str], reason: str) -> None:
    result = cli("map", *arguments)
    assert result.code == 2
    assert reason in result.err
    assert not Path("runs").exists()
