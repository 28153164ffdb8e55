"""What all estimators of step times share: scikit-learn's conventions, and what a profile must be to be fitted."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, Self

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.exceptions import NotFittedError

from costmodels.base import CostModel, CostModelError
from costmodels.profile import FEATURES

Matrix = NDArray[np.float64]

MOST_NS = 10**15
"""Longest step that is believed, eleven days."""


class StepEstimator(RegressorMixin, BaseEstimator):  # type: ignore[misc]
    """Learns step times in ns from the six step features, one row per measured step.

    ``X`` is an array of shape (rows, 6) in the order of :data:`costmodels.profile.FEATURES`, or a frame with columns
    of these names, others ignored; ``y`` the durations in ns, shape (rows,). Fits minimise relative errors. After
    ``fit`` there are ``within_`` (the largest value of each feature seen) and ``n_features_in_``.

    :meth:`predict` equals the compiled model before it is rounded up.
    """

    def fit(self, X: Any, y: Any) -> Self:
        """Learn from measured steps.

        Raises:
            CostModelError: if a value is missing, negative or no number, a duration is not positive, or there are
                fewer than two shapes.
        """
        steps, ns = check_rows(type(self).__name__, X, y)
        self.n_features_in_ = len(FEATURES)
        self.within_ = tuple(int(v) for v in steps.max(axis=0))
        self._learn(steps, ns)
        return self

    def predict(self, X: Any) -> Matrix:
        """Return the predicted durations in ns, shape (rows,).

        Raises:
            CostModelError: if ``X`` has other columns, or values that no step has.
            NotFittedError: before :meth:`fit`.
        """
        if not hasattr(self, "within_"):
            raise NotFittedError(f"{type(self).__name__} is not fitted yet; call fit first")
        return self._predict(check_steps(type(self).__name__, X))

    @abstractmethod
    def _learn(self, steps: Matrix, ns: Matrix) -> None:
        """Learn from checked rows."""

    @abstractmethod
    def _predict(self, steps: Matrix) -> Matrix:
        """Predict checked rows."""

    @abstractmethod
    def compile(self, name: str, source: str = "") -> CostModel:
        """Return the fitted model as a plain-Python cost model whose ``step_ns`` is ``predict`` rounded up."""


def check_steps(who: str, X: Any) -> Matrix:
    """Return the six features as floats, shape (rows, 6).

    Raises:
        CostModelError: if columns are missing, or a value is negative or no number.
    """
    if isinstance(X, pd.DataFrame):
        missing = [c for c in FEATURES if c not in X.columns]
        if missing:
            raise CostModelError(f"{who}: column {missing[0]} is missing (columns: {', '.join(FEATURES)})")
        X = X[list(FEATURES)]
    try:
        steps = np.asarray(X, dtype=np.float64)
    except (TypeError, ValueError):
        raise CostModelError(f"{who}: the features hold what is not a number") from None
    if steps.ndim != 2 or steps.shape[1] != len(FEATURES):
        raise CostModelError(f"{who}: features of shape {steps.shape}; they must be (rows, 6): {', '.join(FEATURES)}")
    bad = np.argwhere(~((steps >= 0) & (steps < MOST_NS)))
    if len(bad):
        row, column = bad[0]
        raise CostModelError(
            f"{who}: {FEATURES[column]} of row {row} is {steps[row, column]:g}; it must be a number, at least 0"
        )
    return steps


def check_rows(who: str, X: Any, y: Any) -> tuple[Matrix, Matrix]:
    """Return features and durations that a model can be fitted to; see :meth:`StepEstimator.fit`."""
    steps = check_steps(who, X)
    try:
        ns = np.asarray(y, dtype=np.float64)
    except (TypeError, ValueError):
        raise CostModelError(f"{who}: the durations hold what is not a number") from None
    if ns.shape != (len(steps),):
        raise CostModelError(f"{who}: durations of shape {ns.shape} for {len(steps)} rows of features")
    bad = np.flatnonzero(~((ns > 0) & (ns < MOST_NS)))
    if len(bad):
        raise CostModelError(
            f"{who}: duration_ns of row {bad[0]} is {ns[bad[0]]:g}; it must be a number of nanoseconds above 0"
        )
    if len(steps) == 0 or (steps == steps[0]).all():
        raise CostModelError(f"{who}: the {len(steps)} rows are of one shape; a fit needs several")
    return steps, ns


def prefill_contexts(steps: Matrix) -> Matrix:
    """Return the whole tokens that prefills had computed before, were they one; see ``prefill_context``."""
    tokens, pairs = steps[:, 4], steps[:, 5]
    return np.floor(np.maximum(2 * pairs - tokens * (tokens + 1), 0) / np.maximum(2 * tokens, 1))
