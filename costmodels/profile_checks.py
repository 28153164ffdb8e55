"""What can be wrong with the rows of a profile table, and what is merely odd about them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

SHORTEST_NS = 10_000
"""No step of a language model is shorter; durations below are in another unit."""

TYPICAL_NS = 100_000
"""Half of all steps take longer."""

GAP = 20.0
"""Durations of a grid of shapes lie denser than this factor, unless their units are mixed."""

FEW = 0.05
"""Share of rows beyond a gap that are outliers; more are another unit."""

OUTLIER = 5.0
"""An outlier takes this many times what its repeats, or a shape with more of everything, took."""

MOST_SHAPES = 8000
"""Shapes that are compared with one another; of more, evenly spaced ones."""


@dataclass(frozen=True)
class Suspects:
    """What a profile's reader should know, and which rows it is about."""

    warnings: tuple[str, ...]
    outlier: NDArray[np.bool_]
    non_monotone: int


def check_rows(frame: pd.DataFrame, setting: list[str], features: list[str]) -> str | None:
    """Return what is wrong with the rows of a typed table, in one sentence; None if nothing is."""
    if frame.empty:
        return "the table has no rows; a fit needs steps of several shapes"
    for column in setting:
        values = frame[column].unique()
        if len(values) > 1:
            return (
                f"{column} is both {values[0]!r} and {values[1]!r}; a table holds one setting, so write one file for "
                "each"
            )
    return (
        _lowest(frame, [*features, "repeat", *(c for c in ("host_ns", "energy_mj") if c in frame.columns)])
        or _durations(frame["duration_ns"].to_numpy())
        or _contradictions(frame)
        or _duplicates(frame, [*features, "repeat"])
        or _one_shape(frame, features)
    )


def _lowest(frame: pd.DataFrame, columns: list[str]) -> str | None:
    for column in columns:
        values = frame[column].to_numpy()
        row = int(np.argmin(values))
        if values[row] < 0:
            return f"{column} of row {row} is {values[row]}; it must not be negative"
    return None


def _durations(duration: NDArray[Any]) -> str | None:
    row = int(np.argmin(duration))
    if duration[row] < 1:
        return f"duration_ns of row {row} is {duration[row]}; a step takes at least 1 ns"
    short = int(np.count_nonzero(duration < SHORTEST_NS))
    if short:
        return (
            f"duration_ns of row {row} is {duration[row]}, and {short} of {len(duration)} rows are below 10 µs; "
            "durations must be in ns, these look like µs or ms"
        )
    if np.median(duration) < TYPICAL_NS:
        return f"half of the steps take less than {int(np.median(duration))} ns; durations must be in ns, not in µs"
    return _mixed(np.sort(duration))


def _mixed(rising: NDArray[Any]) -> str | None:
    gaps = rising[1:] / rising[:-1]
    for at in np.flatnonzero(gaps > GAP).tolist():
        beyond = min(at + 1, len(rising) - at - 1)
        if beyond > 1 and beyond > FEW * len(rising):
            return (
                f"{at + 1} rows take up to {rising[at]} ns and the other {len(rising) - at - 1} at least "
                f"{rising[at + 1]} ns, with none between; the units look mixed, all must be ns"
            )
    return None


def _contradictions(frame: pd.DataFrame) -> str | None:
    n, total, longest = (frame[c].to_numpy() for c in ("n_decode", "decode_context", "decode_context_max"))
    m, tokens, pairs = (frame[c].to_numpy() for c in ("n_prefill", "prefill_tokens", "prefill_pairs"))
    rules = (
        ((n + m) > 0, "it neither decodes nor prefills"),
        ((n > 0) | ((total == 0) & (longest == 0)), "it has context of decodes but decodes nothing"),
        ((m > 0) | ((tokens == 0) & (pairs == 0)), "it has prefill tokens or pairs but no prefill"),
        (longest <= total, "decode_context_max is more than decode_context, the sum"),
        (total <= longest.astype(float) * n, "decode_context is more than n_decode times decode_context_max"),
        (m <= tokens, "it has more prefills than prefill tokens"),
        (tokens <= pairs, "it has fewer prefill pairs than prefill tokens"),
    )
    for holds, says in rules:
        bad = np.flatnonzero(~holds)
        if len(bad):
            return f"row {bad[0]} contradicts itself: {says}"
    return None


def _duplicates(frame: pd.DataFrame, key: list[str]) -> str | None:
    again = np.flatnonzero(frame.duplicated(key).to_numpy())
    if not len(again):
        return None
    row = frame[key].iloc[again[0]]
    first = int(np.flatnonzero((frame[key] == row).all(axis=1).to_numpy())[0])
    return (
        f"rows {first} and {again[0]} are the same shape and repeat ({len(again)} such rows); number the repeats of a "
        "shape 0, 1, ..."
    )


def _one_shape(frame: pd.DataFrame, features: list[str]) -> str | None:
    if len(frame[features].drop_duplicates()) > 1:
        return None
    shape = ", ".join(f"{c} = {frame[c].iloc[0]}" for c in features)
    return f"all {len(frame)} rows are one shape ({shape}); a fit needs several"


def find_suspects(frame: pd.DataFrame, features: list[str]) -> Suspects:
    """Return what is odd about a table that :func:`check_rows` passed."""
    shapes = frame.groupby(features, sort=True)["duration_ns"]
    shape = np.asarray(shapes.ngroup(), dtype=np.int64)
    least = shapes.transform("min").to_numpy(dtype=np.float64)
    median = shapes.median()
    times = median.to_numpy(dtype=np.float64)
    sample = np.unique(np.linspace(0, len(times) - 1, min(len(times), MOST_SHAPES)).astype(np.int64))
    more, less = _neighbours(median.index.to_frame(index=False).to_numpy(dtype=np.int64)[sample], times[sample])
    above, below = np.full(len(times), np.inf), np.zeros(len(times))
    above[sample], below[sample] = more, less

    duration = frame["duration_ns"].to_numpy(dtype=np.float64)
    outlier = duration > OUTLIER * np.minimum(least, above[shape])
    falls = np.flatnonzero(below > times)
    warnings = [
        f"{column} is {frame[column].iloc[0]} in every row; nothing can be learnt of it"
        for column in features
        if frame[column].nunique() == 1
    ]
    if outlier.any():
        row = int(np.argmax(np.where(outlier, duration, 0)))
        warnings.append(
            f"{int(outlier.sum())} of {len(frame)} rows take more than {OUTLIER:g} times what comparable steps took; "
            f"the longest is row {row} with {duration[row] / 1e9:.3g} s (a compilation?)"
        )
    if len(falls):
        worst = float(np.max(1 - times[falls] / below[falls]))
        warnings.append(
            f"{len(falls)} of {len(times)} shapes take less time than one with no more of anything, "
            f"by {worst:.1%} at most"
        )
    return Suspects(tuple(warnings), outlier, len(falls))


def _neighbours(shapes: NDArray[np.int64], times: NDArray[np.float64]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return, for each shape, the least time of those with no less, and the most time of those with no more."""
    more, less = np.full(len(times), np.inf), np.zeros(len(times))
    columns = [np.ascontiguousarray(c) for c in shapes.T]
    for i in range(len(times)):
        above = columns[0] >= columns[0][i]
        below = columns[0] <= columns[0][i]
        for column in columns[1:]:
            above &= column >= column[i]
            below &= column <= column[i]
        above[i] = below[i] = False
        more[i] = times[above].min(initial=np.inf)
        less[i] = times[below].max(initial=0.0)
    return more, less
