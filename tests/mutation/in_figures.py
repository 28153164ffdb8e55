"""Mistakes in metrics and statistics."""

from tests.mutation.mutant import CLOCK, DENOMINATOR, Mutant

METRICS, STATS, OBJECTIVES, WINDOW = "sim/metrics.py", "sim/stats.py", "sim/objectives.py", "sim/window.py"

MUTANTS = [
    Mutant(
        METRICS,
        'gaps = np.maximum(requests["generated_tokens"] - 1, 1)',
        'gaps = np.maximum(requests["generated_tokens"], 1)',
        "one gap less than tokens",
        DENOMINATOR,
    ),
    Mutant(
        METRICS, "finished & (excess <= 0)", "finished & (excess < 0)", "a value that equals its objective meets it"
    ),
    Mutant(
        METRICS,
        "result: BoolArray = finished if excess is None else",
        "result: BoolArray = finished | True if excess is None else",
        "who did not finish met nothing",
    ),
    Mutant(
        METRICS,
        "n_met / len(outcome) if len(outcome)",
        "n_met / max(counts[FINISHED], 1) if len(outcome)",
        "attainment is of all that arrived",
    ),
    Mutant(
        METRICS,
        'int(done["finished_ns"].max()) - first_arrival if',
        'int(done["finished_ns"].max()) if',
        "a run lasts from its first arrival",
        CLOCK,
    ),
    Mutant(
        METRICS,
        '(done["prompt_tokens"] - done["cached_tokens"]).sum()',
        '(done["prompt_tokens"]).sum()',
        "tokens that a cache served are no prefill",
    ),
    Mutant(
        METRICS, "np.maximum(most, part, out=most)", "np.minimum(most, part, out=most)", "every objective must be met"
    ),
    Mutant(
        METRICS,
        "bound: IntArray = np.where(has_own, own, shared)",
        "bound: IntArray = np.where(has_own, shared, own)",
        "a request's own objective takes the run's place",
    ),
    Mutant(
        METRICS,
        "hundredths: FloatArray = np.rint(p99 * 100)",
        "hundredths: FloatArray = np.floor(p99 * 100)",
        "a float P99 is compared as the fraction it stands for",
    ),
    Mutant(METRICS, "- bound, nan=0.0))", "- bound, nan=1.0))", "one output token meets any TPOT objective"),
    Mutant(METRICS, "*percentiles(values, qs)]", "*percentiles(values, qs[::-1])]", "a percentile has its own name"),
    Mutant(METRICS, "percentiles(p99, [99])[0] / MS", "percentiles(p99, [50])[0] / MS", "P99 over requests"),
    Mutant(METRICS, "np.maximum(excess[finished], 0.0)", "excess[finished]", "who is early is not late"),
    Mutant(
        METRICS,
        'done["jct_ns"] / (done["finished_ns"] - done["first_scheduled_ns"])',
        'done["jct_ns"] / (done["finished_ns"] - done["arrival_ns"])',
        "slowdown compares with the time from the start",
        CLOCK,
    ),
    Mutant(
        METRICS,
        "_end(steps) - int(arrival[waits].min())",
        "_end(steps) - int(arrival[waits].max())",
        "the longest wait is the earliest arrival's",
    ),
    Mutant(METRICS, "/ (span * replicas)", "/ span", "utilisation is a mean over replicas"),
    Mutant(
        METRICS,
        "(waiting * duration).sum(dtype=np.float64)) / span",
        "(waiting * duration).sum(dtype=np.float64)) / int(duration.sum())",
        "the queue is averaged over all time",
    ),
    Mutant(METRICS, "    started = cached != NULL\n", "    started = cached > 0\n", "misses count in the hit rate"),
    Mutant(
        METRICS,
        'bincount(spans["last"], minlength=n))[:-1]',
        'bincount(spans["last"], minlength=n) * 0)[:-1]',
        "gaps after a request's last token are not its",
    ),
    Mutant(METRICS, "late += int(np.count_nonzero(jumps > own))", "late += 0", "a preemption's gap can be late"),
    Mutant(
        METRICS, "gaps[start : int(b.max())] > d)", "gaps[start : int(b.max())] >= d)", "a gap of just D is in time"
    ),
    Mutant(
        METRICS,
        "error = (predicted - duration)[has]",
        "error = (duration - predicted)[has]",
        "bias is prediction less duration",
    ),
    Mutant(
        METRICS, "np.abs(error) / duration[has]", "np.abs(error) / predicted[has]", "MAPE is relative to the duration"
    ),
    Mutant(METRICS, "(t - start[lo:hi])", "(t - start[lo:hi] + 1)", "overlapping batches count as far as they came"),
    Mutant(METRICS, "span * i // bins", "span * i // (bins + 1)", "bins cover the whole run"),
    Mutant(
        STATS,
        "return self.lag1 is not None and self.lag1 < LAG1_LIMIT",
        "return self.lag1 is not None and self.lag1 > LAG1_LIMIT",
        "batches that depend on each other are told",
    ),
    Mutant(
        STATS,
        "(self.lo > 0 or self.hi < 0)",
        "(self.lo > 0 or self.hi > 0)",
        "an interval on one side of zero excludes it",
    ),
    Mutant(
        STATS,
        "special.stdtrit(n - 1, (1 + confidence) / 2)",
        "special.stdtrit(n, (1 + confidence) / 2)",
        "Student's t has n - 1 degrees of freedom",
    ),
    Mutant(
        STATS,
        "special.stdtrit(n - 1, (1 + confidence) / 2)",
        "special.stdtrit(n - 1, confidence)",
        "an interval has two sides",
    ),
    Mutant(
        STATS,
        "np.std(sample, ddof=1) * np.sqrt(scale)",
        "np.std(sample) * np.sqrt(scale)",
        "the sample's deviation has n - 1",
    ),
    Mutant(STATS, "1 / paper_seeds + 1 / max(len(sample), 1)", "1 / paper_seeds", "our own mean is uncertain too"),
    Mutant(
        STATS,
        "float(np.var(x, ddof=1) + np.var(y, ddof=1)) / spread",
        "float(np.var(x, ddof=1)) / spread",
        "independent runs add both variances",
    ),
    Mutant(
        STATS,
        "float(2 * special.stdtr(len(d) - 1, -abs(t)))",
        "float(special.stdtr(len(d) - 1, -abs(t)))",
        "the p-value has two sides",
    ),
    Mutant(
        STATS,
        "np.minimum(np.maximum.accumulate(p[order] * factor), 1.0)",
        "np.minimum(p[order] * factor, 1.0)",
        "Holm's p-values do not fall",
    ),
    Mutant(
        STATS,
        "factor = np.arange(len(p), 0, -1)",
        "factor = np.arange(len(p) - 1, -1, -1)",
        "Holm corrects by n, then n - 1",
    ),
    Mutant(STATS, "if p >= 1 - confidence:", "if p >= confidence:", "a tie is a p-value above the level"),
    Mutant(STATS, "last = max(last, reach[i])", "last = reach[i]", "a group ends where all pairs across it differ"),
    Mutant(
        STATS,
        "d = int(np.argmin(error[: n // 2 + 1]))",
        "d = int(np.argmin(error[: n // 2]))",
        "a minimum at half the series is drift",
    ),
    Mutant(STATS, "left.astype(np.float64) ** 2", "left.astype(np.float64)", "MSER divides by (n - d) squared"),
    Mutant(STATS, "Warmup(d * BATCH, True)", "Warmup(d, True)", "a warm-up is counted in observations"),
    Mutant(
        STATS,
        "float(centred[1:] @ centred[:-1]) / spread",
        "float(centred[1:] @ centred[1:]) / spread",
        "lag 1 compares neighbours",
    ),
    Mutant(
        STATS,
        "series[len(series) - size * batches :]",
        "series[: size * batches]",
        "what is over is left out at the start",
    ),
    Mutant(STATS, "/ (len(x) * squares) if squares > 0", "/ squares if squares > 0", "Jain's index is at most 1"),
    Mutant(
        STATS, "position = q / 100 * top\n", "position = q / 100 * (top + 1)\n", "percentiles are numpy's linear ones"
    ),
    Mutant(
        STATS,
        "position = q / 100 * (total - 1)",
        "position = q / 100 * total",
        "a weighted percentile is that of the sample",
    ),
    Mutant(STATS, "if weight >= 0.5 else", "if weight > 0.5 else", "percentiles are numpy's to the last bit"),
    Mutant(
        STATS,
        "if n > 1 and sample.min() == sample.max():",
        "if n > 1 and sample[0] == sample[-1]:",
        "only equal values have an interval of zero width",
    ),
    Mutant(
        STATS,
        "return rows[~np.isnan(rows).any(axis=1)]",
        "return np.nan_to_num(rows)",
        "what was not measured is no zero",
    ),
    Mutant(
        STATS, "[v for v in values if v is not None]", "[v or 0.0 for v in values]", "what was not measured is no zero"
    ),
    Mutant(
        STATS,
        "numerator.sum(axis=axis) / denominator.sum(axis=axis)",
        "(numerator / denominator).mean(axis=axis)",
        "a pooled ratio is of sums",
    ),
    Mutant(
        OBJECTIVES,
        "(self.tpot_p99, self.itl_max, self.tpot)",
        "(self.tpot, self.itl_max, self.tpot_p99)",
        "a policy's deadline is the P99 objective",
    ),
    Mutant(WINDOW, "inside = arrival >= begin_ns", "inside = arrival > begin_ns", "a window includes its begin"),
    Mutant(WINDOW, "inside &= arrival < end_ns", "inside &= arrival <= end_ns", "a window excludes its end"),
    Mutant(
        WINDOW, 'chosen["request"] = place[chosen["request"]]\n', "pass\n", "preemptions name the rows that are left"
    ),
]
