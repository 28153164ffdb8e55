"""How well a JCT proxy stands for the true step time, and up to what input length (PrefillOnly §6.3)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from costmodels.base import CostModel
from costmodels.jct import Jct, jct_model, profile, request_ns

LENGTHS = (1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 87_000, 100_000, 150_000, 200_000)
"""Longest inputs of the table; 87,000 is the paper's maximum on A100 with Qwen-32B (Table 2)."""

Times = NDArray[np.int64]

SHORTEST = 1_000

SAMPLE = 1_500
"""Points of the ordering error."""

TOLERATED = 0.05

PAPER_PEARSON = 0.987
"""Uncached tokens against measured JCT on one A100 with Qwen-32B FP8 (PrefillOnly §6.3)."""

# Fractions of 2**64 whose multiples fill the unit square evenly: powers of the plastic number.
_ALPHA = (0xC13FA9A902A6328F, 0x91E10DA5C79E7B1D)


def correlation_table(
    costs: Sequence[CostModel],
    proxies: Sequence[str] = ("tokens", "linear", "attention"),
    lengths: Sequence[int] = LENGTHS,
) -> list[dict[str, Any]]:
    """Return one row per cost model, proxy and longest input.

    ``pearson`` correlates proxy and true time over the profile grid of the paper (multiples of 1,000 tokens, finer
    for the shortest lengths). ``spearman`` and ``ordering_error``, the share of pairs of requests that the proxy puts
    in the wrong order (ties half), are over requests spread evenly over all (n_input, n_cached) with inputs of 1,000
    tokens to the longest: on the grid, uncached tokens tie where real prompts hardly would.
    """
    rows = []
    for cost in costs:
        for proxy in proxies:
            for longest in lengths:
                jct = jct_model(proxy, cost, longest)
                grid, spread = _both(jct, cost, profile(longest)), _both(jct, cost, _spread(longest))
                rows.append(
                    {
                        "cost": cost.name,
                        "proxy": proxy,
                        "longest": longest,
                        "pearson": float(np.corrcoef(*grid)[0, 1]),
                        "spearman": float(np.corrcoef(*map(rankdata, spread))[0, 1]),
                        "ordering_error": _disorder(*spread),
                    }
                )
    return rows


def ordering_error(jct: Jct, cost: CostModel, longest: int) -> float:
    """Return the share of pairs of requests that ``jct`` orders wrongly, ties half, on evenly spread requests."""
    return _disorder(*_both(jct, cost, _spread(longest)))


def _disorder(guessed: Times, true: Times) -> float:
    shorter = true[:, None] < true
    pairs = np.count_nonzero(shorter)
    tied = np.count_nonzero(shorter & (guessed[:, None] == guessed))
    wrong = np.count_nonzero(shorter & (guessed[:, None] > guessed))
    return float((wrong + 0.5 * tied) / pairs) if pairs else 0.0


def trusted_length(cost: CostModel, proxy: str, most: int = 200_000, tolerated: float = TOLERATED) -> int | None:
    """Return the input length, in whole thousands, at which the proxy's ordering error passes ``tolerated``.

    None where it does not up to ``most`` tokens. The error is taken to grow with the length beyond its first crossing.
    """
    thousands = most // 1_000
    low, high = 0, 1
    while not _passes(cost, proxy, high, tolerated):
        if high >= thousands:
            return None
        low, high = high, min(2 * high, thousands)
    while high - low > 1:
        middle = (low + high) // 2
        if _passes(cost, proxy, middle, tolerated):
            high = middle
        else:
            low = middle
    return high * 1_000


def _passes(cost: CostModel, proxy: str, thousands: int, tolerated: float) -> bool:
    longest = thousands * 1_000
    return ordering_error(jct_model(proxy, cost, longest), cost, longest) > tolerated


def _both(jct: Jct, cost: CostModel, pairs: Iterator[tuple[int, int]]) -> tuple[Times, Times]:
    both = [(jct.ns(n, cached), request_ns(cost, n, cached)) for n, cached in pairs]
    guessed, true = np.asarray(both, dtype=np.int64).T
    return guessed, true


def _spread(longest: int) -> Iterator[tuple[int, int]]:
    """Yield requests that fill the triangle 0 <= n_cached < n_input <= longest evenly, inputs below 1,000 left out."""
    found, i = 0, 0
    while found < SAMPLE:
        i += 1
        a, b = ((i * alpha % (1 << 64)) * (longest + 1) >> 64 for alpha in _ALPHA)
        n_input, n_cached = max(a, b), min(a, b)
        if n_input >= min(SHORTEST, longest // 2) and n_cached < n_input:
            found += 1
            yield n_input, n_cached
