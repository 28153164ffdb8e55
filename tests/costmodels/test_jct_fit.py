"""JCT estimators from a profile: those of the cost model that made it."""

from __future__ import annotations

import numpy as np
import pytest

from costmodels import CostModelError
from costmodels.jct import ESTIMATORS, jct_model
from costmodels.jct_fit import jct_from_profile
from costmodels.kernels import step_grid
from costmodels.nnls import NnlsCost
from costmodels.nnls_fit import NnlsEstimator

TRUTH = NnlsCost(step_fs=10**12, pair_fs=4000, slopes_fs=(5 * 10**10,))
GRID = step_grid(decodes=(0, 8), chunks=(0, 500, 1000, 4000, 8000), prefill_contexts=(0, 2000, 8000))
NS = np.array([TRUTH.step_ns(*map(int, row)) for row in GRID])


@pytest.mark.parametrize("name", ESTIMATORS)
def test_it_is_that_of_the_model_that_made_the_profile(name: str) -> None:
    found, known = jct_from_profile(name, NnlsEstimator(), GRID, NS), jct_model(name, TRUTH, 16_000)
    for n_input, n_cached in ((1000, 0), (8000, 3000), (16_000, 0), (16_000, 15_000)):
        assert found.ns(n_input, n_cached) == pytest.approx(known.ns(n_input, n_cached), rel=0.001)


def test_steps_that_decode_say_nothing_of_prefill_alone() -> None:
    mixed = GRID[:, 0] > 0
    with pytest.raises(CostModelError, match="0 steps prefill one request and decode nothing; a fit needs at least 4"):
        jct_from_profile("linear", NnlsEstimator(), GRID[mixed], NS[mixed])
