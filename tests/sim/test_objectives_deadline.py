"""Which objective becomes D, and who belongs to a window."""

from __future__ import annotations

import numpy as np
import pytest

from sim.objectives import Objectives
from sim.records import NO_PREEMPTIONS
from sim.window import arrived_between


@pytest.mark.parametrize(
    ("slo", "ms"),
    [
        ("ttft:1,tpot:5,tpot_p99:7,itl_max:9,jct:11", 7),
        ("ttft:1,tpot:5,itl_max:9,jct:11", 9),
        ("ttft:1,tpot:5,jct:11", 5),
        ("ttft:1,jct:11", None),
    ],
)
def test_d_is_the_objective_nearest_to_every_gap(slo: str, ms: int | None) -> None:
    assert Objectives.parse(slo).deadline_ns == (None if ms is None else ms * 10**6)


@pytest.mark.parametrize(("begin", "end", "inside"), [(10, 30, [10, 20]), (11, 31, [20, 30]), (10, None, [10, 20, 30])])
def test_a_window_has_its_begin_and_not_its_end(begin: int, end: int | None, inside: list[int]) -> None:
    requests = {"arrival_ns": np.array([0, 10, 20, 30])}
    kept, _ = arrived_between(requests, NO_PREEMPTIONS, begin, end)
    assert kept["arrival_ns"].tolist() == inside


def test_preemptions_name_the_rows_that_are_left() -> None:
    preemptions = {
        "step": np.array([1, 2, 3]),
        "request": np.array([0, 2, 3]),
        "after": np.zeros(3),
        "until": np.ones(3),
    }
    _, chosen = arrived_between({"arrival_ns": np.array([0, 10, 20, 30])}, preemptions, 10, 30)
    assert chosen["request"].tolist() == [1]
    assert chosen["step"].tolist() == [2]
