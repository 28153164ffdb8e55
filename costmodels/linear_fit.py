"""The paper's linear cost model, fitted."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.optimize import nnls

from costmodels.base import CostModelError
from costmodels.estimator import Matrix, StepEstimator
from costmodels.linear import COEFFICIENTS, MAX_NS, LinearCost


class LinearEstimator(StepEstimator):
    """``step + [n > 0](decode + per_decode * n) + [c > 0](prefill + per_token * c)`` (SLOWeave §4.1).

    Non-negative least squares of the relative error; coefficients are whole nanoseconds, in ``coef_`` by name.
    """

    def _learn(self, steps: Matrix, ns: Matrix) -> None:
        terms = _terms(steps)
        weights = solve_relative(terms, ns)
        for j in (1, 3):
            # Where every step decodes, or prefills, what that costs at least cannot be told from what any step costs.
            if terms[:, j].all():
                weights[0] += weights[j]
                weights[j] = 0
        self.coef_: dict[str, Any] = {c: int(w) for c, w in zip(COEFFICIENTS, np.rint(weights), strict=True)}
        if max(self.coef_.values()) > MAX_NS:
            raise CostModelError("LinearEstimator: a coefficient is above 1,000 s; are the durations in ns?")

    def _predict(self, steps: Matrix) -> Matrix:
        return np.asarray(_terms(steps) @ np.array(list(self.coef_.values()), dtype=np.float64))

    def compile(self, name: str, source: str = "") -> LinearCost:
        return LinearCost(name=name, source=source, **self.coef_)


def _terms(steps: Matrix) -> Matrix:
    n, tokens = steps[:, 0], steps[:, 4]
    return np.column_stack([np.ones(len(steps)), n > 0, n, tokens > 0, tokens]).astype(np.float64)


def solve_relative(terms: Matrix, ns: Matrix) -> Matrix:
    """Return the non-negative weights with the least sum of squared relative errors, shape (terms,)."""
    relative = terms / ns[:, None]
    scale = np.abs(relative).max(axis=0)
    scale[scale == 0] = 1.0
    weights, _ = nnls(relative / scale, np.ones(len(ns)), maxiter=100 * terms.shape[1])
    return np.asarray(weights / scale)
