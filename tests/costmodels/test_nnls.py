"""The closed form with physical terms: what it can say, tiles, and what is refused."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from costmodels import CostModelError
from costmodels.io import cost_model_from_dict
from costmodels.nnls import NnlsCost, prefill_context
from costmodels.nnls_fit import KNOTS, NnlsEstimator
from tests.costmodels.made_profiles import made, relative_errors
from tests.seeded import cases, wide


def test_it_learns_weights_that_hide_the_first_tokens() -> None:
    """The truth's bend lies at 200 tokens, between two knots; all else of it the form can say."""
    steps, ns, _ = made()
    fitted = NnlsEstimator().fit(steps, ns)
    assert relative_errors(fitted, steps, ns).max() < 0.05
    assert all(weight >= 0 for weight in (*fitted.coef_.values(), *fitted.slopes_))


def test_tokens_are_rounded_up_to_the_tile() -> None:
    rng = np.random.default_rng(0)
    tokens = rng.integers(1, 2048, 400)
    steps = np.column_stack([0 * tokens, 0 * tokens, 0 * tokens, 0 * tokens + 1, tokens, tokens * (tokens + 1) // 2])
    ns = 1e6 + 5e4 * np.ceil(tokens / 128) * 128
    plain, tiled = NnlsEstimator().fit(steps, ns), NnlsEstimator(tile=128).fit(steps, ns)
    assert relative_errors(tiled, steps, ns).max() < 0.002
    assert relative_errors(plain, steps, ns).max() > 0.05
    model = tiled.compile("tiles")
    times = [model.step_ns(0, 0, 0, 1, c, 0) for c in (1, 127, 128, 129)]
    assert times[0] == times[1] == times[2] < times[3]


@cases(150, wide(10**5, 1), wide(10**6))
def test_the_context_of_a_prefill_is_in_its_pairs(tokens: int, before: int) -> None:
    assert prefill_context(tokens, tokens * before + tokens * (tokens + 1) // 2) == before


GOOD = NnlsCost(step_fs=5, knots=KNOTS, slopes_fs=(1,) * len(KNOTS)).to_dict()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"pair_fs": -1}, "pair_fs is -1; it must be a whole number from 0 to 10"),
        ({"pair_fs": 1.5}, "pair_fs is 1.5; it must be a whole number"),
        ({"tile": 0}, "tile is 0; it must be a whole number from 1"),
        ({"knots": [1, 2]}, "knots must rise from 0, with a slope each"),
        ({"knots": 3}, "knots is a number; it must be an array"),
        ({"slopes_fs": [1]}, "knots must rise from 0, with a slope each"),
        ({"slopes_fs": ["a"] * len(KNOTS)}, "a slope is 'a'"),
        ({"step_fs": 0, "slopes_fs": [0] * len(KNOTS)}, "a step would take no time"),
        ({"version": 2}, "format version 2 is not 1, the one read here; it was written by a newer version"),
    ],
)
def test_a_model_that_makes_no_sense_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(CostModelError, match=re.escape(message)):
        cost_model_from_dict(GOOD | change)
