"""Output analysis: intervals across seeds, paired comparisons and rankings, warm-up, batch means.

Values are per seed, or per batch of one long run; requests are never pooled as if they were independent. ``None`` in
a sample stands for a seed in which nothing was measured, and is left out.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sim.records import Columns

FloatArray = NDArray[np.float64]

BATCH = 5
"""Observations per batch of MSER-5."""

MIN_BATCHES = 10
"""With fewer batches MSER-5 is not asked."""

LONG_WARMUP = 0.2
"""Share of a run that its warm-up may take without a warning."""

LAG1_LIMIT = 0.2
"""Autocorrelation below which batch means pass as independent."""


class Interval(NamedTuple):
    """A mean and its confidence interval."""

    mean: float | None
    """``None`` where nothing was measured."""
    lo: float | None
    """``None``, as is ``hi``, for fewer than two values."""
    hi: float | None

    @property
    def excludes_zero(self) -> bool:
        """Whether there is an interval and it lies on one side of zero."""
        return self.lo is not None and self.hi is not None and (self.lo > 0 or self.hi < 0)


class Paired(NamedTuple):
    """Two policies compared on the same seeds."""

    difference: Interval
    """Of ``a - b``."""
    variance_reduction: float | None
    """``(var a + var b) / var(a - b)``: how many times as many seeds independent runs would need for an interval
    of this width; ``None`` for fewer than two pairs or a difference that does not vary."""
    significant: bool
    """The interval excludes zero."""


class Warmup(NamedTuple):
    """What MSER-5 says about a series."""

    start: int | None
    """Observations to leave out at the start; ``None`` for a series too short to tell or not stationary."""
    stationary: bool
    """False where the series still drifts in its second half."""


class BatchMeans(NamedTuple):
    """The mean of one long run, from the means of its batches."""

    interval: Interval
    lag1: float | None
    """Lag-1 autocorrelation of the batch means; ``None`` for fewer than three, or where they do not vary."""

    @property
    def independent(self) -> bool:
        """Whether the batches are long enough for the interval to be believed."""
        return self.lag1 is not None and self.lag1 < LAG1_LIMIT


def t_interval(values: Iterable[float | None], confidence: float = 0.95) -> Interval:
    """Return the mean of independent values and Student's interval; equal values have one of zero width.

    Raises:
        ValueError: if the confidence is not between 0 and 1.
    """
    sample = _measured(values)
    return _student(sample, confidence, 1 / max(len(sample), 1))


def reproduction_interval(
    ours_per_seed: Iterable[float | None], paper_seeds: int = 5, confidence: float = 0.95
) -> Interval:
    """Return where another study's mean over ``paper_seeds`` seeds should lie, given our values per seed.

    It is our mean ± t·s·√(1/paper_seeds + 1/n): the prediction interval of a mean of values spread like ours.

    Raises:
        ValueError: if the confidence is not between 0 and 1, or the other study has no seeds.
    """
    if paper_seeds < 1:
        raise ValueError(f"a mean is taken over at least 1 seed, not {paper_seeds}")
    sample = _measured(ours_per_seed)
    return _student(sample, confidence, 1 / paper_seeds + 1 / max(len(sample), 1))


def paired(a: Sequence[float | None], b: Sequence[float | None], confidence: float = 0.95) -> Paired:
    """Compare two policies on common random numbers: ``a[i]`` and ``b[i]`` are of the same seed.

    Raises:
        ValueError: if the samples differ in length, or the confidence is not between 0 and 1.
    """
    x, y = _pairs(a, b)
    difference = t_interval((x - y).tolist(), confidence)
    reduction = None
    if len(x) > 1 and (spread := float(np.var(x - y, ddof=1))) > 0:
        reduction = float(np.var(x, ddof=1) + np.var(y, ddof=1)) / spread
    return Paired(difference, reduction, difference.excludes_zero)


def p_value(a: Sequence[float | None], b: Sequence[float | None]) -> float:
    """Return the two-sided p-value of the paired t-test; 1 for fewer than two pairs.

    Raises:
        ValueError: if the samples differ in length.
    """
    x, y = _pairs(a, b)
    d = x - y
    if len(d) < 2:
        return 1.0
    if d.min() == d.max():
        return 0.0 if d[0] else 1.0
    t = float(d.mean()) / float(np.std(d, ddof=1) / np.sqrt(len(d)))
    from scipy import special

    return float(2 * special.stdtr(len(d) - 1, -abs(t)))


def holm(p_values: Sequence[float]) -> list[float]:
    """Return the p-values adjusted for how many they are (Holm 1979), in the given order."""
    p = np.asarray(p_values, dtype=np.float64)
    order = np.argsort(p, kind="stable")
    factor = np.arange(len(p), 0, -1)
    adjusted = np.empty_like(p)
    adjusted[order] = np.minimum(np.maximum.accumulate(p[order] * factor), 1.0)
    result: list[float] = adjusted.tolist()
    return result


def ranking(
    per_seed: Mapping[str, Sequence[float | None]], higher_is_better: bool = True, confidence: float = 0.95
) -> list[list[str]]:
    """Group policies by value, the best group first; those within a group are not told apart.

    Two policies are tied unless their paired interval, Holm-corrected over all pairs, excludes zero. A group ends
    only where everything before differs from everything after, so each printed order of two policies is supported
    by their own comparison. Policies without any value are left out.

    Raises:
        ValueError: if the samples differ in length, or the confidence is not between 0 and 1.
    """
    _check_confidence(confidence)
    means = {name: t_interval(values).mean for name, values in per_seed.items()}
    measured = {name: mean for name, mean in means.items() if mean is not None}
    names = sorted(measured, key=lambda name: measured[name], reverse=higher_is_better)
    pairs = list(combinations(range(len(names)), 2))
    adjusted = holm([p_value(per_seed[names[i]], per_seed[names[j]]) for i, j in pairs])
    reach = list(range(len(names)))
    for (i, j), p in zip(pairs, adjusted, strict=True):
        if p >= 1 - confidence:
            reach[i] = max(reach[i], j)
    groups: list[list[str]] = []
    last = -1
    for i, name in enumerate(names):
        if i > last:
            groups.append([])
        groups[-1].append(name)
        last = max(last, reach[i])
    return groups


def pooled_ratio(numerator: FloatArray, denominator: FloatArray, axis: int = -1) -> FloatArray:
    """Return the ratio of sums over seeds: a :func:`bootstrap_interval` statistic for attainment and goodput."""
    ratio: FloatArray = numerator.sum(axis=axis) / denominator.sum(axis=axis)
    return ratio


def bootstrap_interval(
    per_seed: Sequence[float | None] | ArrayLike,
    statistic: Callable[..., Any] = np.mean,
    *,
    confidence: float = 0.95,
    resamples: int = 9999,
    seed: int = 0,
) -> Interval:
    """Return a statistic and its BCa interval from resampling whole seeds.

    Requests of one seed depend on each other, so the seed is what is drawn. Below some ten seeds the interval is
    narrower than it says; :func:`t_interval` is the better one there.

    Args:
        per_seed: one value per seed, or shape (seeds, k) of counts, like met and arrived requests.
        statistic: takes k arrays and ``axis``, reduces that axis; for counts see :func:`pooled_ratio`.
        confidence: of the interval.
        resamples: how often to draw.
        seed: of the draws, so that equal values have equal intervals.

    Returns:
        An interval of zero width where all seeds are equal; a percentile interval where BCa is not defined.

    Raises:
        ValueError: if the confidence is not between 0 and 1.
    """
    _check_confidence(confidence)
    rows = _rows(per_seed)
    if not len(rows):
        return Interval(None, None, None)
    columns = tuple(rows.T)
    with np.errstate(all="ignore"):
        estimate = float(statistic(*columns, axis=-1))
    if not np.isfinite(estimate):
        return Interval(None, None, None)
    if len(rows) < 2:
        return Interval(estimate, None, None)
    if np.all(rows == rows[0]):
        return Interval(estimate, estimate, estimate)
    # scipy.stats takes half a second to import, which the command line should not pay for.
    from scipy import stats

    for method in ("BCa", "percentile"):
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            lo, hi = stats.bootstrap(
                columns,
                statistic,
                paired=len(columns) > 1,
                vectorized=True,
                n_resamples=resamples,
                confidence_level=confidence,
                method=method,
                random_state=np.random.default_rng(seed),
            ).confidence_interval
        if np.isfinite(lo) and np.isfinite(hi):
            return Interval(estimate, float(lo), float(hi))
    return Interval(estimate, None, None)


def mser5(values: ArrayLike) -> Warmup:
    """Find the warm-up of a series by the marginal standard error rule on batch means of 5 (White 1997).

    Of ``n`` batch means the first ``d`` are left out, ``d ≤ n/2`` being the one that minimises
    Σ_{i>d}(Y_i − Ȳ_d)² / (n − d)². A minimum at ``n/2`` means that the series still drifts.
    """
    series = np.asarray(values, dtype=np.float64)
    n = len(series) // BATCH
    if n < MIN_BATCHES:
        return Warmup(None, True)
    y = series[: n * BATCH].reshape(n, BATCH).mean(axis=1)
    # Sums of squares lose no digits about the median, and a constant series leaves exact zeros.
    y -= np.median(y)
    left = np.arange(n, 0, -1)
    total, squares = np.cumsum(y[::-1])[::-1], np.cumsum(y[::-1] ** 2)[::-1]
    error = np.maximum(squares - total**2 / left, 0.0) / left.astype(np.float64) ** 2
    d = int(np.argmin(error[: n // 2 + 1]))
    return Warmup(None, False) if d == n // 2 else Warmup(d * BATCH, True)


def warmup_warning(requests: Columns) -> str | None:
    """Return a sentence where TTFT, in order of arrival, drifts or starts with a long warm-up; else ``None``."""
    ttft = requests["ttft_ns"]
    ttft = ttft[ttft >= 0]
    start, stationary = mser5(ttft)
    if not stationary:
        return (
            f"the run is not stationary: by MSER-5, TTFT still drifts in the second half of its {len(ttft)} requests, "
            "so means and percentiles depend on the length of the trace"
        )
    if start is not None and start > LONG_WARMUP * len(ttft):
        return (
            f"the first {start} of {len(ttft)} requests are warm-up by MSER-5 on TTFT; they are counted in every number"
        )
    return None


def batch_means(values: ArrayLike, batches: int = 20, confidence: float = 0.95) -> BatchMeans:
    """Return the mean of one long stationary series with an interval from its batch means.

    Batches are equally long; what is over at the start is left out. Fewer values than batches have no interval.

    Raises:
        ValueError: if there are fewer than two batches, or the confidence is not between 0 and 1.
    """
    if batches < 2:
        raise ValueError(f"batch means need at least 2 batches, not {batches}")
    series = np.asarray(values, dtype=np.float64)
    size = len(series) // batches
    if not size:
        return BatchMeans(Interval(float(series.mean()) if len(series) else None, None, None), None)
    means = series[len(series) - size * batches :].reshape(batches, size).mean(axis=1)
    centred = means - means.mean()
    spread = float(centred @ centred)
    lag1 = None
    if batches > 2 and means.min() < means.max():
        lag1 = float(centred[1:] @ centred[:-1]) / spread
    return BatchMeans(t_interval(means.tolist(), confidence), lag1)


def jain(values: ArrayLike) -> float | None:
    """Return Jain's fairness index (Σx)²/(n·Σx²), from 1/n to 1 (all equal); ``None`` without a positive value."""
    x = np.asarray(values, dtype=np.float64)
    squares = float(np.square(x).sum())
    return float(x.sum()) ** 2 / (len(x) * squares) if squares > 0 else None


def percentiles(values: NDArray[Any], qs: Sequence[float]) -> list[float]:
    """Return ``np.percentile(values, qs)`` to the last bit, at a tenth of its cost for some thousand values.

    ``values`` must not be empty nor hold NaN; ``qs`` are in percent.
    """
    ordered = np.sort(values)
    top = len(ordered) - 1
    result = []
    for q in qs:
        position = q / 100 * top
        low = int(position)
        result.append(_interpolate(ordered[low].item(), ordered[min(low + 1, top)].item(), position - low))
    return result


def weighted_percentile(values: NDArray[Any], weights: NDArray[np.int64], q: float) -> float | None:
    """Return numpy's linear percentile of the sample that holds ``values[i]`` ``weights[i]`` times.

    ``None`` where the weights add up to 0.
    """
    order = np.argsort(values)
    upto = np.cumsum(weights[order])
    total = int(upto[-1]) if len(upto) else 0
    if not total:
        return None
    position = q / 100 * (total - 1)
    low = int(position)
    at = np.searchsorted(upto, [low, min(low + 1, total - 1)], side="right")
    lower, upper = values[order[at]].tolist()
    return _interpolate(lower, upper, position - low)


def _interpolate(lower: float, upper: float, weight: float) -> float:
    """Interpolate in numpy's order of operations."""
    difference = upper - lower
    return float(upper - difference * (1 - weight) if weight >= 0.5 else lower + difference * weight)


def _check_confidence(confidence: float) -> None:
    if not 0 < confidence < 1:
        raise ValueError(f"a confidence lies between 0 and 1, not at {confidence}")


def _student(sample: FloatArray, confidence: float, scale: float) -> Interval:
    """Return mean ± t·s·√scale."""
    _check_confidence(confidence)
    n = len(sample)
    if not n:
        return Interval(None, None, None)
    if n > 1 and sample.min() == sample.max():
        return Interval(*[float(sample[0])] * 3)
    mean = float(sample.mean())
    if n < 2:
        return Interval(mean, None, None)
    # Not at the top: processes that simulate never need it, and it takes a third of their start.
    from scipy import special

    half = float(special.stdtrit(n - 1, (1 + confidence) / 2) * np.std(sample, ddof=1) * np.sqrt(scale))
    return Interval(mean, mean - half, mean + half)


def _measured(values: Iterable[float | None]) -> FloatArray:
    return np.array([v for v in values if v is not None], dtype=np.float64)


def _pairs(a: Sequence[float | None], b: Sequence[float | None]) -> tuple[FloatArray, FloatArray]:
    if len(a) != len(b):
        raise ValueError(f"a paired comparison needs the same seeds on both sides, not {len(a)} and {len(b)} of them")
    kept = [(x, y) for x, y in zip(a, b, strict=True) if x is not None and y is not None]
    pairs = np.array(kept, dtype=np.float64).reshape(-1, 2)
    return pairs[:, 0], pairs[:, 1]


def _rows(per_seed: Sequence[float | None] | ArrayLike) -> FloatArray:
    """Return shape (seeds, k) without the seeds in which something was not measured."""
    rows = np.array(per_seed, dtype=np.float64)
    if rows.ndim == 1:
        rows = rows[:, None]
    return rows[~np.isnan(rows).any(axis=1)]
