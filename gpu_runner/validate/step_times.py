"""Step times: how far a cost model is from measured steps, of shapes that it has not seen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.model_selection import GroupKFold, cross_val_predict

from costmodels.base import CostModel
from costmodels.estimator import StepEstimator
from gpu_runner.validate.tolerances import ValidationError

FOLDS = 5

FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class StepErrors:
    """Errors of predicted step times, ``predicted / measured - 1``."""

    steps: int
    mape: float
    """Mean of their sizes."""
    bias: float
    """Their mean: positive where steps are predicted too long."""
    worst_decile: float
    """Mean of the largest tenth of their sizes."""
    worst: float
    total: float
    """Error of the sum of all steps, which is what a run's length sees."""

    @classmethod
    def of(cls, predicted: ArrayLike, measured: ArrayLike) -> StepErrors:
        """Compare predictions with what was measured, in the same unit, shape (steps,).

        Raises:
            ValidationError: if there are no steps, not as many of both, or times that are not positive.
        """
        ours, real = (np.asarray(a, dtype=np.float64) for a in (predicted, measured))
        if ours.shape != real.shape or not len(real):
            raise ValidationError(f"{len(ours)} predicted and {len(real)} measured steps cannot be compared")
        if not (np.isfinite(real).all() and (real > 0).all()):
            raise ValidationError("a measured step takes no time; step times must be positive")
        error = ours / real - 1
        sizes = np.sort(np.abs(error))
        return cls(
            steps=len(error),
            mape=float(sizes.mean()),
            bias=float(error.mean()),
            worst_decile=float(sizes[-max(len(sizes) // 10, 1) :].mean()),
            worst=float(sizes[-1]),
            total=float(ours.sum() / real.sum() - 1),
        )


def predicted_ns(cost: CostModel, features: NDArray[Any]) -> FloatArray:
    """Return what a cost model says of steps of features (steps, 6), in nanoseconds."""
    return np.array([cost.step_ns(*row) for row in np.asarray(features, dtype=np.int64).tolist()], dtype=np.float64)


def held_out_ns(make: Callable[[], StepEstimator], features: NDArray[Any], measured_ns: NDArray[Any]) -> FloatArray:
    """Return predictions of each step by a model fitted to other shapes: five folds, equal shapes never apart.

    Raises:
        ValidationError: if there are fewer shapes than folds.
    """
    _, shape = np.unique(np.asarray(features, dtype=np.int64), axis=0, return_inverse=True)
    shape = shape.reshape(-1)
    shapes = int(shape.max(initial=-1)) + 1
    if shapes < FOLDS:
        raise ValidationError(f"{shapes} shapes of steps are too few to hold some out; it takes at least {FOLDS}")
    # Shapes are in order; numbers at random keep a fold from being one level of an axis.
    mixed = np.random.default_rng(0).permutation(shapes)[shape]
    predicted: FloatArray = cross_val_predict(make(), features, measured_ns, groups=mixed, cv=GroupKFold(FOLDS))
    return predicted
