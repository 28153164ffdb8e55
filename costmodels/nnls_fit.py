"""Non-negative least squares of step times on physical terms."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from costmodels.base import CostModelError
from costmodels.estimator import Matrix, StepEstimator
from costmodels.linear_fit import solve_relative
from costmodels.nnls import PRICES, NnlsCost
from costmodels.prefill import FS, MAX_FS

KNOTS = (0, 16, 64, 128, 256, 512, 1024, 2048)
"""Where the price of a token in the step may change: reading the weights hides the work of the first ones."""


class NnlsEstimator(StepEstimator):
    """Fits :class:`costmodels.nnls.NnlsCost`; learns ``coef_``, prices in femtoseconds by name, and ``slopes_``.

    Args:
        tile: tokens of a step are rounded up to a multiple of this, as kernels that work in tiles do; 1 for none.
    """

    def __init__(self, tile: int = 1) -> None:
        self.tile = tile

    def _learn(self, steps: Matrix, ns: Matrix) -> None:
        if type(self.tile) is not int or self.tile < 1:
            raise CostModelError(f"NnlsEstimator: tile is {self.tile!r}; it must be a whole number, at least 1")
        weights = solve_relative(self._terms(steps), ns)
        whole = [int(w) for w in np.rint(weights * FS)]
        if max(whole) > MAX_FS:
            raise CostModelError("NnlsEstimator: a price is above 1,000 s; are the durations in ns?")
        self.coef_ = dict(zip(PRICES, whole[: len(PRICES)], strict=True))
        self.slopes_ = tuple(whole[len(PRICES) :])
        if not self.coef_["step_fs"] + self.slopes_[0]:
            self.coef_["step_fs"] = 1

    def _predict(self, steps: Matrix) -> Matrix:
        weights = np.array([*self.coef_.values(), *self.slopes_], dtype=np.float64)
        return np.asarray(self._terms(steps) @ weights / FS)

    def compile(self, name: str, source: str = "") -> NnlsCost:
        return NnlsCost(name=name, tile=self.tile, knots=KNOTS, slopes_fs=self.slopes_, source=source, **self.coef_)

    def _terms(self, steps: Matrix) -> Matrix:
        n, total, longest, n_prefill, tokens, pairs = steps.T
        decodes, prefills = n > 0, tokens > 0
        mixed = decodes & prefills
        in_tiles = np.ceil((n + tokens) / self.tile) * self.tile
        curve = [np.clip(in_tiles - a, 0, b - a) for a, b in pairwise((*KNOTS, np.inf))]
        prices = [
            np.ones(len(steps)),
            decodes,
            prefills,
            n,
            n_prefill * prefills,
            pairs * prefills,
            total * decodes,
            longest * decodes,
            n * mixed,
            total * mixed,
            longest * mixed,
        ]
        return np.column_stack([*prices, *curve]).astype(np.float64)
