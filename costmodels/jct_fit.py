"""JCT estimators from a measured profile (PrefillOnly §6.3)."""

from __future__ import annotations

from typing import Any

from costmodels.base import CostModelError
from costmodels.estimator import StepEstimator, check_rows
from costmodels.jct import STEP, Jct, jct_model

FEWEST = 4
"""Prefill-only rows that a fit needs."""


def jct_from_profile(name: str, estimator: StepEstimator, X: Any, y: Any, step: int = STEP) -> Jct:
    """Return the JCT estimator ``name`` of the steps that prefill one request and decode nothing.

    ``estimator`` is fitted to those steps and read on the grid of ``step`` tokens up to the longest of them, so that a
    profile needs none of the grid's points.

    Args:
        name: One of ``costmodels.jct.ESTIMATORS``.
        estimator: is fitted.
        X: step features, see :class:`costmodels.estimator.StepEstimator`.
        y: durations in ns.
        step: Granularity of the grid in tokens.

    Raises:
        CostModelError: if there is no such estimator, or the profile has too few steps of one prefill alone.
    """
    steps, ns = check_rows("jct_from_profile", X, y)
    alone = (steps[:, 0] == 0) & (steps[:, 3] == 1)
    if alone.sum() < FEWEST:
        raise CostModelError(
            f"jct_from_profile: {int(alone.sum())} steps prefill one request and decode nothing; a fit needs at least "
            f"{FEWEST}"
        )
    cost = estimator.fit(steps[alone], ns[alone]).compile("profiled")
    tokens, pairs = steps[alone, 4], steps[alone, 5]
    before = (2 * pairs - tokens * (tokens + 1)) / (2 * tokens)
    return jct_model(name, cost, max(FEWEST, int((tokens + before).max())), step)
