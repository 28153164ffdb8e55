"""A closed form with physical terms, all of them non-negative and hence monotone."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field, fields
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from costmodels.base import CostModel, CostModelError
from costmodels.prefill import FS, MAX_FS

PRICES = (
    "step_fs",
    "decode_fs",
    "prefill_fs",
    "per_decode_fs",
    "per_prefill_fs",
    "pair_fs",
    "context_fs",
    "longest_fs",
    "mixed_decode_fs",
    "mixed_context_fs",
    "mixed_longest_fs",
)

_SAFE = 1 << 62


@dataclass(frozen=True)
class NnlsCost(CostModel):
    """A sum of prices in whole femtoseconds, the same on every machine.

    ``step`` for every step, ``decode`` and ``prefill`` for one that has any, ``per_decode`` and ``per_prefill`` for
    each request, ``pair`` for each query-key pair of prefill attention, ``context`` for each token of context that
    decodes read, ``longest`` for each of the longest; the ``mixed`` prices come on top where a step has both. Tokens
    of the step, decoded and prefilled and rounded up to a multiple of ``tile``, cost what a rising piecewise linear
    curve says: ``slopes_fs[k]`` for each token from ``knots[k]`` to the next, ``knots[0]`` being 0.

    Raises:
        CostModelError: if a price is not a whole number from 0 to ``MAX_FS``, the knots do not rise from 0, or a step
            would take no time.
    """

    name: str = "nnls"
    step_fs: int = 0
    decode_fs: int = 0
    prefill_fs: int = 0
    per_decode_fs: int = 0
    per_prefill_fs: int = 0
    pair_fs: int = 0
    context_fs: int = 0
    longest_fs: int = 0
    mixed_decode_fs: int = 0
    mixed_context_fs: int = 0
    mixed_longest_fs: int = 0
    tile: int = 1
    knots: tuple[int, ...] = (0,)
    slopes_fs: tuple[int, ...] = (0,)
    source: str = ""
    """Where the prices are from."""
    _heights: tuple[int, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for price in PRICES:
            _check(self.name, price, getattr(self, price), 0, MAX_FS)
        _check(self.name, "tile", self.tile, 1, 1 << 20)
        for slope in self.slopes_fs:
            _check(self.name, "a slope", slope, 0, MAX_FS)
        for knot in self.knots:
            _check(self.name, "a knot", knot, 0, 1 << 40)
        rising = all(a < b for a, b in pairwise(self.knots))
        if self.knots[:1] != (0,) or not rising or len(self.knots) != len(self.slopes_fs):
            raise CostModelError(
                f"cost model {self.name}: knots must rise from 0, with a slope each; they are {self.knots} with "
                f"{len(self.slopes_fs)} slopes"
            )
        heights = [0]
        for (a, b), slope in zip(pairwise(self.knots), self.slopes_fs, strict=False):
            heights.append(heights[-1] + (b - a) * slope)
        object.__setattr__(self, "_heights", tuple(heights))
        if not self.step_fs + self.slopes_fs[0]:
            raise CostModelError(f"cost model {self.name}: a step would take no time")

    def step_ns(
        self,
        n_decode: int,
        decode_context: int,
        decode_context_max: int,
        n_prefill: int,
        prefill_tokens: int,
        prefill_pairs: int,
    ) -> int:
        tokens = n_decode + prefill_tokens
        if self.tile > 1:
            tokens += -tokens % self.tile
        k = bisect_right(self.knots, tokens) - 1
        t = self.step_fs + self._heights[k] + self.slopes_fs[k] * (tokens - self.knots[k])
        if prefill_tokens:
            t += self.prefill_fs + self.per_prefill_fs * n_prefill + self.pair_fs * prefill_pairs
            if n_decode:
                t += (
                    self.mixed_decode_fs * n_decode
                    + self.mixed_context_fs * decode_context
                    + self.mixed_longest_fs * decode_context_max
                )
        if n_decode:
            t += (
                self.decode_fs
                + self.per_decode_fs * n_decode
                + self.context_fs * decode_context
                + self.longest_fs * decode_context_max
            )
        return -(-t // FS)

    def max_chunk(
        self,
        n_decode: int,
        decode_context: int,
        decode_context_max: int,
        context: int,
        limit: int,
        budget_ns: int,
    ) -> int:
        if limit < 1:
            return 0
        # What the first token costs beside the curve and its pairs; the rest of the budget is theirs.
        first = self.step_ns(n_decode, decode_context, decode_context_max, 1, 1, context + 1)
        if first > budget_ns:
            return 0
        knots, heights, slopes, tile, pair = self.knots, self._heights, self.slopes_fs, self.tile, self.pair_fs
        left = budget_ns * FS - self.step_fs - self.prefill_fs - self.per_prefill_fs
        if n_decode:
            left -= self.decode_fs + (self.per_decode_fs + self.mixed_decode_fs) * n_decode
            left -= (self.context_fs + self.mixed_context_fs) * decode_context
            left -= (self.longest_fs + self.mixed_longest_fs) * decode_context_max
        lo, hi = 1, limit
        while lo < hi:
            mid = (lo + hi + 1) >> 1
            tokens = n_decode + mid
            tokens += -tokens % tile
            k = bisect_right(knots, tokens) - 1
            curve = heights[k] + slopes[k] * (tokens - knots[k])
            if curve + pair * (mid * context + (mid * (mid + 1) >> 1)) <= left:
                lo = mid
            else:
                hi = mid - 1
        return lo

    def decode_run_ns(
        self, n_decode: int, decode_context: int, decode_context_max: int, steps: int
    ) -> NDArray[np.int64]:
        if not steps:
            return np.empty(0, dtype=np.int64)
        grows = self.context_fs * n_decode + self.longest_fs if n_decode else 0
        tokens = n_decode + -n_decode % self.tile
        k = bisect_right(self.knots, tokens) - 1
        first = self.step_fs + self._heights[k] + self.slopes_fs[k] * (tokens - self.knots[k])
        if n_decode:
            first += self.decode_fs + self.per_decode_fs * n_decode
            first += self.context_fs * decode_context + self.longest_fs * decode_context_max
        if first + grows * steps >= _SAFE:
            return super().decode_run_ns(n_decode, decode_context, decode_context_max, steps)
        return np.asarray(-(-(first + grows * np.arange(steps, dtype=np.int64)) // FS), dtype=np.int64)

    def to_dict(self) -> dict[str, Any]:
        data = {f.name: getattr(self, f.name) for f in fields(self) if f.init}
        return {"kind": "nnls", **data, "knots": list(self.knots), "slopes_fs": list(self.slopes_fs)}


def prefill_context(prefill_tokens: int, prefill_pairs: int) -> int:
    """Return how many tokens had been computed before, were all prefill tokens of one request; rounded down."""
    twice = 2 * prefill_pairs - prefill_tokens * (prefill_tokens + 1)
    return twice // (2 * prefill_tokens) if twice > 0 and prefill_tokens else 0


def _check(name: str, what: str, value: object, least: int, most: int) -> None:
    if type(value) is not int or not least <= value <= most:
        raise CostModelError(
            f"cost model {name}: {what} is {value!r}; it must be a whole number from {least} to {most}"
        )
