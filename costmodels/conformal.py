"""Margins from residuals: split-conformal shares with a stated coverage, and P99 residual tables."""

from __future__ import annotations

from fractions import Fraction
from math import ceil
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.model_selection import GroupKFold, GroupShuffleSplit, cross_val_predict

from costmodels.base import CostModelError
from costmodels.calibrated import PPM, CalibratedCost, ResidualTable
from costmodels.estimator import StepEstimator, check_rows

FOLDS = 5

MOST_BINS = 6
"""Batches and chunks of a residual table."""


def conformal_share(observed: NDArray[Any], predicted: NDArray[Any], coverage: float) -> Fraction:
    """Return the share of the prediction that a step overruns with a probability of at most ``1 - coverage``.

    It is the ``ceil((rows + 1) * coverage)``-th smallest ratio of observed to predicted, less 1 and not negative. For
    a step exchangeable with these rows, none of which the model was fitted to, ``prediction * (1 + share)`` covers it
    with a probability of at least ``coverage``, and at most ``1 / (rows + 1)`` more where no ratios are equal.

    Raises:
        CostModelError: if the rows are too few for the coverage.
    """
    if not 0 < coverage < 1:
        raise CostModelError(f"conformal: coverage is {coverage!r}; it must be above 0 and below 1")
    ratio = np.sort(np.asarray(observed, dtype=np.float64) / np.asarray(predicted, dtype=np.float64))
    exact = Fraction(repr(coverage))
    rank = ceil((len(ratio) + 1) * exact)
    if rank > len(ratio):
        needed = ceil(exact / (1 - exact))
        raise CostModelError(
            f"conformal: {len(ratio)} rows are too few for a coverage of {coverage:g}; it needs at least {needed}"
        )
    return max(Fraction(0), Fraction(ceil((float(ratio[rank - 1]) - 1) * 10**9), 10**9))


def split_conformal(
    estimator: StepEstimator,
    X: Any,
    y: Any,
    coverage: float = 0.99,
    *,
    groups: Any = None,
    held_out: float = 0.3,
    seed: int = 0,
) -> tuple[StepEstimator, Fraction]:
    """Fit a clone to one part of a profile, calibrate its margin on the other.

    Args:
        estimator: is cloned, not fitted.
        X: step features.
        y: durations in ns.
        coverage: the share of steps that prediction and margin shall cover.
        groups: rows of one group, like one shape, go to the same part; by default each row is its own.
        held_out: the share of groups to calibrate on.
        seed: of the split.

    Returns:
        The fitted clone, and the margin as a share of the prediction.

    Raises:
        CostModelError: if the rows held out are too few for the coverage.
    """
    steps, ns = check_rows("split_conformal", X, y)
    own = np.arange(len(ns)) if groups is None else np.asarray(groups)
    fitted, rest = next(GroupShuffleSplit(1, test_size=held_out, random_state=seed).split(steps, ns, own))
    model = clone(estimator).fit(steps[fitted], ns[fitted])
    return model, conformal_share(ns[rest], model.predict(steps[rest]), coverage)


def residual_table(
    n_decode: NDArray[Any],
    prefill_tokens: NDArray[Any],
    observed: NDArray[Any],
    predicted: NDArray[Any],
    quantile: float,
) -> ResidualTable:
    """Return the quantile of the relative residual by decode batch and prefill tokens, cumulative along both.

    Bins are quantiles of the rows, as many as leave each enough rows to tell the quantile; one with fewer takes that of
    all rows. Only the profile's own rows speak: predictions should be out of fold.
    """
    share = np.maximum(np.asarray(observed) / np.asarray(predicted) - 1, 0)
    least = ceil(1 / (1 - quantile))
    bins = int(np.clip(np.sqrt(len(share) / (2 * least)), 1, MOST_BINS))
    axes = [_edges(np.asarray(v), bins) for v in (n_decode, prefill_tokens)]
    at = [np.searchsorted(edges, v) for edges, v in zip(axes, (n_decode, prefill_tokens), strict=True)]
    overall = _upper_quantile(share, quantile)
    grid = np.full((len(axes[0]), len(axes[1])), overall)
    for i, j in np.ndindex(grid.shape):
        inside = share[(at[0] == i) & (at[1] == j)]
        if len(inside) >= least:
            grid[i, j] = _upper_quantile(inside, quantile)
    rising = np.maximum.accumulate(np.maximum.accumulate(np.ceil(grid * PPM), axis=0), axis=1)
    return ResidualTable(
        tuple(map(int, axes[0])),
        tuple(map(int, axes[1])),
        tuple(tuple(int(min(v, 1000 * PPM)) for v in row) for row in rising),
    )


def calibrate(
    estimator: StepEstimator,
    X: Any,
    y: Any,
    name: str,
    *,
    groups: Any,
    source: str = "",
    quantiles: tuple[float, ...] = (0.5, 0.9, 0.99, 0.999),
    coverages: tuple[float, ...] = (0.9, 0.95, 0.99, 0.999),
) -> CalibratedCost:
    """Fit to all rows, with margins from out-of-fold residuals of folds that keep groups whole.

    The coverage is the cross-validated one: the model is fitted to more rows than those of the folds, and so is
    somewhat better than its margins say. For the exact guarantee use :func:`split_conformal`. Coverages that the rows
    are too few for are left out.
    """
    steps, ns = check_rows("calibrate", X, y)
    own = np.asarray(groups)
    folds = min(FOLDS, len(np.unique(own)))
    if folds < 2:
        raise CostModelError("calibrate: all rows are of one group; held-out residuals need at least two")
    out = cross_val_predict(clone(estimator), steps, ns, groups=own, cv=GroupKFold(folds))
    model = clone(estimator).fit(steps, ns)
    return CalibratedCost(
        model.compile(name, source),
        model.within_,
        tuple((repr(q), residual_table(steps[:, 0], steps[:, 4], ns, out, q)) for q in quantiles),
        tuple(
            (repr(c), conformal_share(ns, out, c))
            for c in coverages
            if ceil((len(ns) + 1) * Fraction(repr(c))) <= len(ns)
        ),
    )


def _edges(values: NDArray[Any], bins: int) -> NDArray[np.int64]:
    return np.unique(np.quantile(values, np.linspace(0, 1, bins + 1)[1:], method="higher")).astype(np.int64)


def _upper_quantile(values: NDArray[Any], quantile: float) -> float:
    return float(np.quantile(values, quantile, method="higher"))
