"""The lookup table of SLOWeave §5.1: cells, cumulative maxima, quantiles, what lies between knots and beyond."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from costmodels import CostModelError
from costmodels.io import cost_model_from_dict
from costmodels.table_fit import TableEstimator
from tests.costmodels.made_profiles import made, relative_errors


def test_at_the_knots_it_is_the_median_of_the_cell() -> None:
    steps, ns, shapes = made(noise=0.0005, repeats=9)
    fitted = TableEstimator(longest=0).fit(steps, ns)
    medians = np.array([np.median(ns[shapes == s]) for s in shapes])
    error = fitted.predict(steps) / medians - 1
    # What a cumulative maximum raised is larger, by no more than the noise; nothing is smaller.
    assert error.min() > -1e-6
    assert error.max() < 0.002
    assert np.mean(error < 1e-6) > 0.5


def test_a_dip_along_the_chunk_axis_is_raised_and_counted() -> None:
    steps, ns, _ = made()
    clean = TableEstimator().fit(steps, ns)
    dip = ns.copy()
    dipped = (steps[:, 4] == 512) & (steps[:, 0] == 16)
    dip[dipped] *= 0.2
    repaired = TableEstimator().fit(steps, dip)
    assert repaired.repaired_ >= dipped.sum() > 0
    assert clean.repaired_ < repaired.repaired_
    smaller = steps[dipped].copy()
    smaller[:, 4] = 128
    smaller[:, 5] = 128 * 129 // 2 + 128 * (steps[dipped][:, 5] - 512 * 513 // 2) / 512
    assert (repaired.predict(steps[dipped]) >= repaired.predict(smaller)).all()


def test_p99_is_another_table() -> None:
    steps, ns, _ = made(noise=0.1, repeats=40, seed=2)
    model = TableEstimator().fit(steps, ns).compile("table")
    careful = model.at_quantile(0.99)
    over = [ns_ > careful.step_ns(*map(int, step)) for step, ns_ in zip(steps, ns, strict=True)]
    assert np.mean(over) < 0.02
    assert np.mean([ns_ > model.step_ns(*map(int, step)) for step, ns_ in zip(steps, ns, strict=True)]) > 0.2
    with pytest.raises(CostModelError, match=re.escape("has no quantile 0.9 in its cells, only 0.5, 0.99")):
        model.at_quantile(0.9)


def test_upper_takes_the_next_larger_knot() -> None:
    steps, ns, _ = made()
    upper = TableEstimator(lookup="upper").fit(steps, ns).compile("upper")
    between = TableEstimator().fit(steps, ns).compile("between")
    for n in (1, 3, 4, 9):
        for c in (17, 100, 128, 400):
            step = (n, 100 * n, 100, 1, c, c * (c + 1) // 2)
            assert upper.step_ns(*step) >= between.step_ns(*step)
    assert upper.step_ns(4, 256, 64, 1, 17, 153) == upper.step_ns(4, 256, 64, 1, 128, 8256)


def test_held_out_shapes_are_filled_in_from_their_neighbours() -> None:
    steps, ns, shapes = made()
    held = shapes % 5 == 2
    fitted = TableEstimator().fit(steps[~held], ns[~held])
    assert fitted.filled_ == len(set(shapes[~held]))
    assert relative_errors(fitted, steps[held], ns[held]).mean() < 0.1


def test_beyond_the_last_knot_it_goes_on() -> None:
    steps, ns, _ = made()
    model = TableEstimator().fit(steps, ns).compile("table")
    at, beyond = (model.step_ns(0, 0, 0, 1, c, c * (c + 1) // 2) for c in (2048, 4096))
    assert beyond - at > 0.8 * 60e3 * 2048


GOOD: dict[str, Any] = {
    "kind": "table",
    "batches": [0, 2],
    "contexts": [0],
    "chunks": [0, 5],
    "depths": [0],
    "cells_ns": {"0.5": [1, 2, 3, 4]},
    "beyond_ns": [1, 1, 1, 1],
    "longest": 0,
    "lookup": "interpolate",
}


def test_the_smallest_table() -> None:
    model = cost_model_from_dict(GOOD)
    assert [model.step_ns(n, 0, 0, 0, 0, 0) for n in (0, 1, 2, 4)] == [1, 2, 3, 5]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"cells_ns": {"0.5": [2, 1, 3, 4]}}, "cells of 0.5 fall along chunks; no step may get shorter"),
        ({"cells_ns": {"0.5": [1, 4, 3, 4, 5]}}, "the cells of 0.5 must be 2 x 1 x 2 x 1 whole numbers"),
        ({"cells_ns": {"0.5": [0, 4, 3, 4]}}, "the cells of 0.5 must be"),
        ({"cells_ns": {}}, "cells are missing"),
        ({"cells_ns": []}, "cells_ns is an array; it must be an object"),
        ({"batches": [2, 0]}, "batches must be whole numbers that rise"),
        ({"lookup": "x"}, "lookup is 'x'; it must be interpolate or upper"),
        ({"beyond_ns": [1, 1]}, "beyond_ns must be 4 whole numbers"),
        ({"longest": -1}, "longest is -1"),
        ({"version": 9}, "it was written by a newer version"),
    ],
)
def test_a_table_that_makes_no_sense_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(CostModelError, match=re.escape(message)):
        cost_model_from_dict(GOOD | change)
