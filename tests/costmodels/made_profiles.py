"""Profiles whose truth is known, and measures of how well a model keeps to them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from costmodels import CostModel
from costmodels.estimator import StepEstimator
from costmodels.kernels import step_grid
from costmodels.nnls import prefill_context

Array = NDArray[np.float64]

GRID = step_grid(
    decodes=(0, 1, 4, 16, 64), contexts=(64, 512, 4096), chunks=(0, 16, 128, 512, 2048), prefill_contexts=(0, 512, 4096)
)


def made(noise: float = 0.0, repeats: int = 1, seed: int = 0) -> tuple[Array, Array, NDArray[np.int64]]:
    """Return features, durations in ns and shapes: weights read once hide the first 200 tokens; log-normal noise."""
    steps = np.repeat(GRID.astype(float), repeats, axis=0)
    n, total, _, m, tokens, pairs = steps.T
    ns = 1e6 + 60e3 * np.maximum(n + tokens, 200) + 40 * total + 2 * pairs + 3e5 * m + 1e4 * n
    rng = np.random.default_rng(seed)
    return steps, ns * np.exp(noise * rng.standard_normal(len(ns))), np.repeat(np.arange(len(GRID)), repeats)


def relative_errors(estimator: StepEstimator, steps: Array, ns: Array) -> Array:
    return np.asarray(np.abs(estimator.predict(steps) / ns - 1))


def violations(model: CostModel, pairs: int, seed: int = 0) -> int:
    """Count random pairs of steps of which the larger takes less time.

    The larger step has no less of anything, contexts of its prefill included.
    """
    rng = np.random.default_rng(seed)
    columns = []
    for _ in range(2):
        n = np.where(rng.random(pairs) < 0.1, 0, rng.integers(0, 300, pairs))
        tokens = np.where((rng.random(pairs) < 0.2) & (n > 0), 0, rng.integers(1, 4096, pairs))
        longest = np.where(n > 0, np.exp(rng.uniform(0, 9.7, pairs)).astype(int), 0)
        total = np.where(n > 0, longest + ((n - 1) * longest * rng.random(pairs)).astype(int), 0)
        columns.append((n, total, longest, tokens, np.exp(rng.uniform(0, 9.7, pairs)).astype(int) - 1))
    few, more = np.array(columns, dtype=np.int64)
    # Half of the pairs are near neighbours, where rounding would show.
    more = few + np.where(rng.random(pairs) < 0.5, rng.integers(0, 3, few.shape), more)
    return sum(a > b for a, b in zip(_times(model, few), _times(model, more), strict=True))


def _times(model: CostModel, steps: NDArray[np.int64]) -> Iterator[int]:
    """Yield what steps take, of decodes, their contexts and longest, and one prefill's tokens and context."""
    n, total, longest, tokens, before = steps
    pairs = tokens * before + tokens * (tokens + 1) // 2
    for some, made, context in zip(tokens[:100].tolist(), pairs.tolist(), before.tolist(), strict=False):
        assert prefill_context(some, made) == (context if some else 0)
    features = np.array([n, total * (n > 0), longest * (n > 0), tokens > 0, tokens, pairs])
    return itertools.starmap(model.step_ns, features.T.tolist())
