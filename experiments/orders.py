"""Random pairs of steps of which one has no less of anything: does a cost model keep their order?"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from costmodels.base import CostModel
from costmodels.profile import FEATURES

PAIRS = 100_000

BEYOND = 1.5
"""Steps are drawn up to this multiple of what a model was fitted to."""


def ordered_pairs(
    within: tuple[int, ...], pairs: int = PAIRS, seed: int = 0, *, several: bool = False
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return two arrays of features, shape (pairs, 6) each, the second with no less of anything in every row.

    Steps are what an engine can meet: a prefill's tokens bring their query-key pairs with them. Half of the pairs
    differ by little in one quantity, the others by anything in several.

    Args:
        within: the largest features of a profile.
        pairs: how many.
        seed: of the draws.
        several: whether steps may have several prefills, all alike, the larger more of them; one at most by default,
            which is what a policy searches over for the largest chunk.
    """
    rng = np.random.default_rng(seed)
    n, _, longest, m, tokens, made = (max(int(BEYOND * v), 1) for v in within)
    m = max(m, 8) if several else 1
    before = max(made // max(tokens, 1), longest)

    def draw(most: int) -> NDArray[np.int64]:
        return np.minimum(np.exp(rng.uniform(0, np.log(most + 1), pairs)), most).astype(np.int64)

    few = [draw(v) for v in (n, longest, longest, m, tokens, before)]
    few[0][rng.random(pairs) < 0.15] = 0
    few[3][rng.random(pairs) < 0.25] = 0
    few[3][few[0] + few[3] == 0] = 1
    more = [
        v + draw(most) * (rng.random(pairs) < 0.4)
        for v, most in zip(few, (n, longest, longest, m, tokens, before), strict=True)
    ]
    # One quantity that grows by one, or by a little: where trees and tables step down if they do.
    small, which = rng.random(pairs) < 0.5, rng.integers(0, len(few), pairs)
    step = rng.choice((1, 1, 2, 15, 16, 64), pairs)
    for k, (less, greater) in enumerate(zip(few, more, strict=True)):
        greater[small] = less[small] + (step * (which == k))[small]
    if not several:
        more[3] = np.minimum(more[3], 1)
    return _features(few), _features(more)


def _features(natural: list[NDArray[np.int64]]) -> NDArray[np.int64]:
    """Return features of decodes of a mean context and one longer, and of prefills that are alike."""
    n, context, extra, m, chunk, before = natural
    made = m * (chunk * before + chunk * (chunk + 1) // 2)
    longest = np.where(n > 1, context + extra, context)
    return np.stack([n, n * context + np.where(n > 1, extra, 0), longest * (n > 0), m, m * chunk, made], axis=1)


def count_falls(
    model: CostModel, within: tuple[int, ...], pairs: int = PAIRS, seed: int = 0, *, several: bool = False
) -> int:
    """Return in how many random pairs the step with more work is predicted to be shorter; see :func:`ordered_pairs`."""
    less, more = ordered_pairs(within, pairs, seed, several=several)
    return sum(a > b for a, b in zip(_times(model, less), _times(model, more), strict=True))


def _times(model: CostModel, steps: NDArray[np.int64]) -> list[int]:
    return [model.step_ns(*row) for row in steps.tolist()]


def largest(model: Any) -> tuple[int, ...]:
    """Return the largest features that a model was fitted to; those of a common server where it does not say."""
    within = tuple(getattr(model, "within", ()) or ())
    return within if len(within) == len(FEATURES) else (512, 1 << 19, 16_384, 16, 8_192, 1 << 27)
