"""Orderings that misjudge requests: without an error they are those of the registry."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from costmodels import load_cost_model
from experiments.findings.plugins import __file__ as here
from policies import parse_policy
from policies.checks import check_policy
from policies.registry import load_plugin
from policies.views import RequestView
from sim.engine import simulate
from sim.objectives import Objectives
from traces.synthetic import generate

TRACE = generate("mixed", seed=0, n=150, rate=150)
PLUGIN = Path(here).with_name("erring_orderings.py")


@pytest.fixture(autouse=True)
def loaded() -> None:
    load_plugin(PLUGIN)


def finished(policy: str) -> list[int]:
    goals = Objectives.parse("ttft:300,tpot_p99:25")
    tables = simulate(TRACE, parse_policy(policy), load_cost_model("sloweave-paper"), objectives=goals)
    return tables.requests["finished_ns"].tolist()


@pytest.mark.parametrize(
    ("erring", "right"),
    [
        ("erring-srjf", "srjf-static"),
        ("erring-srjf:lam=12.5", "srjf-calibrated:lam=12.5"),
        ("erring-qoserve", "qoserve"),
        ("erring-qoserve:alpha=0.5", "qoserve:alpha=0.5"),
    ],
)
def test_without_an_error_the_order_is_the_known_one(erring: str, right: str) -> None:
    assert finished(f"{erring}+full") == finished(f"{right}+full")
    name, _, params = erring.partition(":")
    wrong = f"{name}:{params}{',' if params else ''}sigma=2"
    assert finished(f"{wrong}+full") != finished(f"{right}+full")
    assert finished(f"{wrong},draw=1+full") != finished(f"{wrong}+full")
    assert check_policy(parse_policy(f"{wrong}+full")) == []


def test_errors_have_the_spread_that_they_say_and_stay_with_the_request() -> None:
    ordering = parse_policy("erring-srjf:sigma=0.5+full").ordering
    ordering.reset(None)
    keys = [ordering.key(RequestView(number, 0, 1000)) for number in range(5000)]  # type: ignore[operator]
    logs = np.log(np.array(keys, dtype=float) / ordering.key(RequestView(0, 0, 1000)))  # type: ignore[operator]
    assert abs(logs.std() - 0.5) < 0.02
    assert ordering.key(RequestView(7, 0, 2000)) == 2 * keys[7]  # type: ignore[operator]
