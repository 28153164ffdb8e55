"""Gradient-boosted residuals on a non-negative closed form, monotone by construction."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from sklearn.ensemble import HistGradientBoostingRegressor
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from costmodels.base import CostModelError
from costmodels.boosted import INPUTS, BoostedCost, Tree, trees_ns
from costmodels.estimator import Matrix, StepEstimator, prefill_contexts
from costmodels.nnls import NnlsCost
from costmodels.nnls_fit import NnlsEstimator


class BoostedEstimator(StepEstimator):
    """Fits :class:`costmodels.boosted.BoostedCost`.

    Trees learn, by squared relative error and with monotone constraints, what a ``share`` of the fitted closed form
    (:class:`costmodels.nnls_fit.NnlsEstimator`) leaves. A share below 1 gives them room: a residual that must not fall
    could never take away what the closed form has too much. Beyond the profile trees are constant, and so the slope is
    that share of the closed form's. The loss must stay squared: scikit-learn does not keep to monotone constraints with
    the quantile loss.

    Args:
        share: of the closed form, above 0 to 1.
        trees: how many; one costs some 0.1 µs per prediction.
        leaves: most per tree.
        rate: the share of its residual that a tree takes away.
        least_rows: fewest rows of a leaf.
        tile: see :class:`costmodels.nnls_fit.NnlsEstimator`.
    """

    def __init__(
        self,
        share: float = 0.6,
        trees: int = 60,
        leaves: int = 31,
        rate: float = 0.25,
        least_rows: int = 3,
        tile: int = 1,
    ) -> None:
        self.share = share
        self.trees = trees
        self.leaves = leaves
        self.rate = rate
        self.least_rows = least_rows
        self.tile = tile

    def _learn(self, steps: Matrix, ns: Matrix) -> None:
        if not 0 < self.share <= 1:
            raise CostModelError(f"BoostedEstimator: share is {self.share!r}; it must be above 0 and at most 1")
        closed = NnlsEstimator(self.tile).fit(steps, ns)
        closed.coef_ = {price: round(self.share * value) for price, value in closed.coef_.items()}
        closed.coef_["step_fs"] = max(1, closed.coef_["step_fs"])
        closed.slopes_ = tuple(round(self.share * slope) for slope in closed.slopes_)
        self.base_: NnlsCost = closed.compile("base")
        self._closed = closed
        model = HistGradientBoostingRegressor(
            max_iter=self.trees,
            max_leaf_nodes=self.leaves,
            learning_rate=self.rate,
            min_samples_leaf=self.least_rows,
            monotonic_cst=[1] * len(INPUTS),
            early_stopping=False,
        )
        # The histograms of some thousand rows are not worth waiting for other threads.
        with threadpool_limits(limits=1):
            model.fit(_inputs(steps), ns - closed.predict(steps), sample_weight=(ns.min() / ns) ** 2)
        self.trees_ = _exported(model)

    def _predict(self, steps: Matrix) -> Matrix:
        whole = np.floor(_inputs(steps)).astype(np.int64)
        return np.maximum(self._closed.predict(steps) + trees_ns(self.trees_, whole), 1.0)

    def compile(self, name: str, source: str = "") -> BoostedCost:
        return BoostedCost(name, self.base_, self.trees_, source)


def _inputs(steps: Matrix) -> Matrix:
    return np.column_stack([steps, steps[:, 0] + steps[:, 4], prefill_contexts(steps)])


def _exported(model: Any) -> tuple[Tree, ...]:
    """Return the trees in flat arrays; features are whole, and so thresholds can be."""
    start = round(float(np.ravel(model._baseline_prediction)[0]))
    trees = [Tree((-1,), (0,), (0,), (0,), (start,))]
    for (predictor,) in model._predictors:
        nodes = predictor.nodes
        trees.append(
            Tree(
                tuple(-1 if leaf else int(k) for leaf, k in zip(nodes["is_leaf"], nodes["feature_idx"], strict=True)),
                tuple(
                    0 if leaf else math.floor(min(t, 1e18))
                    for leaf, t in zip(nodes["is_leaf"], nodes["num_threshold"], strict=True)
                ),
                tuple(map(int, nodes["left"])),
                tuple(map(int, nodes["right"])),
                tuple(round(float(v)) if leaf else 0 for leaf, v in zip(nodes["is_leaf"], nodes["value"], strict=True)),
            )
        )
    return tuple(trees)
