"""What a run is worth: a summary of its two tables, whichever host or file they came from.

Definitions are those of every report: a percentile is numpy's linear one, and ``None``, never zero, stands where
nothing was measured. A request counts wherever it has the value in question, so those cut off by a horizon count in
TTFT if they got a first token, and in gaps between tokens as far as they came.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from costmodels.energy import EnergyModel, energy_summary
from policies.units import FOREVER_NS, MS, NS
from sim.gaps import last_token_steps, pauses_of, token_spans
from sim.objectives import Objectives
from sim.records import FINISHED, NO_PREEMPTIONS, NULL, REDIRECTED, REJECTED, UNFINISHED, Columns
from sim.replicas import by_replica
from sim.stats import jain, percentiles, weighted_percentile
from traces.schema import IntArray

Summary = dict[str, float | int | None]

BoolArray = NDArray[np.bool_]
FloatArray = NDArray[np.float64]

FAR = FOREVER_NS
"""No objective: later than any time, and a difference from it still fits 64 bits."""


def summarise(
    requests: Columns,
    steps: Columns,
    objectives: Objectives,
    preemptions: Columns = NO_PREEMPTIONS,
    energy: EnergyModel | None = None,
) -> Summary:
    """Return the metrics of a run; times in ms, rates per second, shares from 0 to 1.

    * ``arrived`` = ``finished`` + ``rejected`` + ``redirected`` + ``unfinished``. ``duration_s``: first arrival to last
      finish. ``goodput``: requests that meet every objective (see :func:`met`) per second of it; without objectives
      those are all that finish. ``throughput``, ``output_throughput`` and ``prefill_throughput``: finished requests,
      their output tokens, and their prompt tokens that no cache served, per second.
    * ``slo_attainment``: share of *arrived* requests that meet every objective.
    * ``ttft_*``; ``tpot_mean_ms`` and ``tpot_p50_ms`` over requests of their mean gap; ``tpot_p99_ms``: the P99 over
      requests of each one's own P99 gap (SLOWeave §4.4); ``itl_p99_ms`` and ``itl_max_ms`` over all gaps pooled;
      ``jct_*`` of finished requests.
    * ``lateness_*``: by how much a finished request overshoots the objective that it misses most, 0 when it meets all.
    * ``slowdown_*``: (finished − arrival) ÷ (finished − first scheduled). The time a request would take alone is not in
      the tables, so what other requests add after its start is not counted. ``jain_fairness``: Jain's index of it.
    * ``longest_wait_ms``: arrival to first scheduled; those that still wait count up to the end of the last step.
    * ``utilisation`` (mean over replicas, and over the stages of a pipeline; waiting for blocks from CPU memory does
      not count) and ``queue_mean`` (requests that wait at the start of a step, for as long as it takes, summed over
      replicas): averages over time from the first arrival to the end of the last step.
      ``batch_mean``: decodes and prefills per step.
    * ``hit_rate``: tokens that the prefix cache served ÷ prompt tokens, over requests that have started, as found at
      their first start. ``preemptions``: how often a request lost its blocks. ``kv_blocks_max``: most blocks in use.
    * ``slo_exceptions``: steps that overran a deadline on purpose, counted for each request that was decoding;
      ``aged_chunks``: prefill chunks in such steps.
    * ``late_gap_share``: share of the gaps over D, the request's own TPOT objective or else that of ``objectives``.
    * ``predicted_bias_ms`` and ``predicted_mape`` (a share): mean of prediction − duration, and of its size relative to
      the duration, over steps.
    * With an energy model of a replica: ``energy_j``, ``power_mean_w``, ``energy_per_request_j`` and
      ``energy_per_met_request_j``, see :func:`costmodels.energy.energy_summary`.
    """
    outcome = requests["outcome"]
    finished = outcome == FINISHED
    counts = np.bincount(outcome, minlength=UNFINISHED + 1).tolist()
    done: Columns = {c: requests[c][finished] for c in _OF_FINISHED}
    excess = _excess(requests, objectives)
    n_met = int(np.count_nonzero(_meets(finished, excess)))
    first_arrival = int(requests["arrival_ns"].min()) if len(outcome) else 0
    duration = int(done["finished_ns"].max()) - first_arrival if counts[FINISHED] else 0
    per_second = NS / duration if duration > 0 else None

    return {
        "arrived": len(outcome),
        "finished": counts[FINISHED],
        "rejected": counts[REJECTED],
        "redirected": counts[REDIRECTED],
        "unfinished": counts[UNFINISHED],
        "duration_s": duration / NS if per_second else None,
        "goodput": n_met * per_second if per_second else None,
        "throughput": counts[FINISHED] * per_second if per_second else None,
        "output_throughput": int(done["generated_tokens"].sum()) * per_second if per_second else None,
        "prefill_throughput": int((done["prompt_tokens"] - done["cached_tokens"]).sum()) * per_second
        if per_second and (done["cached_tokens"] != NULL).all()
        else None,
        "slo_attainment": n_met / len(outcome) if len(outcome) else None,
        **_request_times(requests, done),
        **_lateness(excess, finished),
        **_fairness(requests, steps, done),
        **_steps(steps, first_arrival),
        **_memory(requests, steps),
        "slo_exceptions": int(requests["slo_exceptions"].sum()),
        "aged_chunks": int(requests["aged_chunks"].sum()),
        **_gaps(requests, steps, objectives, preemptions),
        **_predictions(steps),
        **_energy(steps, energy, duration, counts[FINISHED], n_met),
    }


_OF_FINISHED = (
    "arrival_ns",
    "first_scheduled_ns",
    "finished_ns",
    "generated_tokens",
    "prompt_tokens",
    "cached_tokens",
    "jct_ns",
)


def met(requests: Columns, objectives: Objectives) -> BoolArray:
    """Return which requests meet every objective, shape (requests,).

    Those that did not finish meet none. A request's own ``slo_ttft_ns`` and ``slo_tpot_ns`` take the place of
    ``objectives.ttft`` and ``objectives.tpot_p99``; one output token meets any TPOT objective. Comparisons are exact:
    a value that equals its objective meets it.
    """
    return _meets(requests["outcome"] == FINISHED, _excess(requests, objectives))


def over_time(requests: Columns, steps: Columns, bins: int) -> Columns:
    """Return time averages in equal bins from the first arrival to the end of the last step.

    Columns of length ``bins``, or 0 for a run without steps: ``start_ns``, ``end_ns``, ``queue`` (requests that wait
    when a step starts, for as long as it takes), ``batch`` (decodes and prefills in the step, 0 between steps) and
    ``utilisation``.

    Raises:
        ValueError: if there is no bin.
    """
    if bins < 1:
        raise ValueError(f"time needs at least 1 bin, not {bins}")
    start, duration = steps["start_ns"], steps["duration_ns"]
    if not len(start):
        edges: IntArray = np.zeros(1, dtype=np.int64)
    else:
        first = int(requests["arrival_ns"].min())
        span = _end(steps) - first
        edges = first + np.array([span * i // bins for i in range(bins + 1)], dtype=np.int64)
    columns: Columns = {"start_ns": edges[:-1], "end_ns": edges[1:]}
    replicas = np.unique(steps["replica"])
    for name, value, share in (
        ("queue", steps["waiting"], 1),
        ("batch", steps["n_decode"] + steps["n_prefill"], 1),
        ("utilisation", steps["busy_ns"] / np.maximum(duration, 1), max(len(replicas), 1)),
    ):
        area = np.zeros(bins if len(start) else 0)
        for replica in replicas.tolist():
            own = steps["replica"] == replica
            area += np.diff(_upto(edges, start[own], duration[own], value[own]))
        columns[name] = area / (np.maximum(np.diff(edges), 1) * share)
    return columns


def _upto(at: IntArray, start: IntArray, duration: IntArray, value: NDArray[np.int64] | FloatArray) -> FloatArray:
    """Return, for each time, the integral up to it of steps that each count ``value`` for as long as they take."""
    area = np.multiply(value, duration, dtype=np.float64)
    if (start[1:] >= (start + duration)[:-1]).all():
        # Between the start and the end of a step the integral grows linearly; elsewhere it stands still.
        knots = np.column_stack([start, start + duration]).ravel()
        sums = np.concatenate([[0.0], np.cumsum(area)])
        steady: FloatArray = np.interp(at, knots, np.column_stack([sums[:-1], sums[1:]]).ravel())
        return steady
    # Batches in a pipeline overlap: those that have ended count whole, those under way in part.
    ended = np.concatenate([[0.0], np.cumsum(area)])[np.searchsorted(start + duration, at, side="right")]
    found = np.empty(len(at))
    for j, t in enumerate(at.tolist()):
        lo, hi = np.searchsorted(start + duration, t, side="right"), np.searchsorted(start, t)
        found[j] = ended[j] + float(np.sum(value[lo:hi] * (t - start[lo:hi])))
    return found


def _meets(finished: BoolArray, excess: FloatArray | None) -> BoolArray:
    result: BoolArray = finished if excess is None else finished & (excess <= 0)
    return result


def _excess(requests: Columns, objectives: Objectives) -> FloatArray | None:
    """Return by how many ns each request overshoots the objective it misses most, at most 0 where it meets all.

    ``None`` where there are no objectives. Meaningless for requests that did not finish.
    """
    parts: list[NDArray[np.int64] | FloatArray] = []
    if (bound := _bound(requests["slo_ttft_ns"], objectives.ttft)) is not None:
        parts.append(requests["ttft_ns"] - bound)
    if (bound := _bound(requests["slo_tpot_ns"], objectives.tpot_p99)) is not None:
        parts.append(np.nan_to_num(_exact_p99(requests["tpot_p99_ns"]) - bound, nan=0.0))
    if objectives.tpot is not None:
        decoding = requests["finished_ns"] - requests["first_token_ns"]
        gaps = np.maximum(requests["generated_tokens"] - 1, 1)
        # No mean exceeds the sum, so an objective beyond all sums is met, and its product might not fit 64 bits.
        bound = min(objectives.tpot, int(decoding.max(initial=0)))
        parts.append((decoding - bound * gaps) / gaps)
    if objectives.itl_max is not None:
        parts.append(requests["itl_max_ns"] - min(objectives.itl_max, FAR - 1))
    if objectives.jct is not None:
        parts.append(requests["jct_ns"] - min(objectives.jct, FAR - 1))
    if not parts:
        return None
    most = parts[0].astype(np.float64)
    for part in parts[1:]:
        np.maximum(most, part, out=most)
    return most


def _exact_p99(p99: FloatArray) -> FloatArray:
    """Undo the rounding of interpolated percentiles of whole nanoseconds.

    The P99 of m gaps lies at position 0.99 (m − 1) of the sorted gaps, so it is a whole number of hundredths of a
    nanosecond. Its float is off by less than half of one as long as it and m times the spread of the gaps stay below
    2**43 ns (20,000 gaps between 0 and 0.4 s). Then rounding to hundredths restores the true value, and comparing it
    with a whole number of nanoseconds is exact.
    """
    hundredths: FloatArray = np.rint(p99 * 100)
    return hundredths / 100


def _bound(own: IntArray, default: int | None) -> IntArray | int | None:
    """Return each request's objective, one number where all share it, ``None`` where nobody has any."""
    has_own = own != NULL
    shared = FAR if default is None else min(default, FAR - 1)
    if has_own.any():
        bound: IntArray = np.where(has_own, own, shared)
        return bound
    return None if default is None else shared


def _request_times(requests: Columns, done: Columns) -> Summary:
    ttft = requests["ttft_ns"]
    mean, p99 = requests["tpot_mean_ns"], requests["tpot_p99_ns"]
    has_gaps = ~np.isnan(mean)
    mean, p99 = mean[has_gaps], p99[has_gaps]
    return {
        **_in_ms("ttft", ttft[ttft != NULL], 50, 90, 99),
        **_in_ms("tpot", mean, 50),
        "tpot_p99_ms": percentiles(p99, [99])[0] / MS if len(p99) else None,
        **_in_ms("jct", done["jct_ns"], 50, 99),
    }


def _in_ms(name: str, values: NDArray[np.int64] | FloatArray, *qs: int) -> Summary:
    keys = [f"{name}_mean_ms", *(f"{name}_p{q}_ms" for q in qs)]
    if not len(values):
        return dict.fromkeys(keys)
    return dict(zip(keys, (v / MS for v in [float(values.mean()), *percentiles(values, qs)]), strict=True))


def _lateness(excess: FloatArray | None, finished: BoolArray) -> Summary:
    late = np.empty(0) if excess is None else np.maximum(excess[finished], 0.0)
    return _in_ms("lateness", late, 99)


def _fairness(requests: Columns, steps: Columns, done: Columns) -> Summary:
    summary: Summary = dict.fromkeys(("slowdown_mean", "slowdown_p99", "longest_wait_ms", "jain_fairness"))
    if len(done["jct_ns"]) and (done["first_scheduled_ns"] != NULL).all():
        slowdown = done["jct_ns"] / (done["finished_ns"] - done["first_scheduled_ns"])
        summary["slowdown_mean"] = float(slowdown.mean())
        summary["slowdown_p99"] = percentiles(slowdown, [99])[0]
        summary["jain_fairness"] = jain(slowdown)
    arrival, scheduled = requests["arrival_ns"], requests["first_scheduled_ns"]
    longest = int(np.where(scheduled != NULL, scheduled - arrival, -1).max(initial=-1))
    if len(steps["start_ns"]):
        waits = (requests["outcome"] == UNFINISHED) & (scheduled == NULL)
        if waits.any():
            longest = max(longest, _end(steps) - int(arrival[waits].min()))
    if longest >= 0:
        summary["longest_wait_ms"] = longest / MS
    return summary


def _steps(steps: Columns, first_arrival: int) -> Summary:
    duration, waiting = steps["duration_ns"], steps["waiting"]
    n = len(duration)
    summary: Summary = {"utilisation": None, "queue_mean": None, "queue_max": None, "batch_mean": None, "steps": n}
    if n:
        span = _end(steps) - first_arrival
        replicas = len(np.unique(steps["replica"]))
        summary["utilisation"] = int(steps["busy_ns"].sum()) / (span * replicas)
        summary["queue_mean"] = float((waiting * duration).sum(dtype=np.float64)) / span
        summary["queue_max"] = int(waiting.max())
        summary["batch_mean"] = int(steps["n_decode"].sum() + steps["n_prefill"].sum()) / n
    return summary


def _energy(steps: Columns, energy: EnergyModel | None, duration: int, finished: int, n_met: int) -> Summary:
    if energy is None:
        return {}
    replicas = max(len(np.unique(steps["replica"])), 1)
    return {**energy_summary(steps, energy, duration, finished, n_met, replicas)}


def _end(steps: Columns) -> int:
    return int((steps["start_ns"] + steps["duration_ns"]).max())


def _memory(requests: Columns, steps: Columns) -> Summary:
    cached, blocks = requests["cached_tokens"], steps["kv_blocks"]
    started = cached != NULL
    prompts = int(requests["prompt_tokens"][started].sum())
    return {
        "hit_rate": int(cached[started].sum()) / prompts if prompts else None,
        "preemptions": int(requests["preemptions"].sum()),
        "kv_blocks_max": int(blocks.max()) if len(blocks) and blocks.max() != NULL else None,
    }


def _gaps(requests: Columns, steps: Columns, objectives: Objectives, preemptions: Columns) -> Summary:
    """Pool the gaps between tokens: each gap between step ends counts once per request with a token at both."""
    if not len(steps["start_ns"]) or not (requests["generated_tokens"] > 1).any():  # a client sees no steps
        return dict.fromkeys(("itl_p99_ms", "itl_max_ms", "late_gap_share"))
    parts = [_pooled_gaps(*part, objectives) for part in by_replica(requests, steps, preemptions)]
    gaps, weights = (np.concatenate(columns) for columns in ([p[0] for p in parts], [p[1] for p in parts]))
    p99 = weighted_percentile(gaps, weights, 99)
    late, bounded = sum(part[2] for part in parts), sum(part[3] for part in parts)
    return {
        "itl_p99_ms": None if p99 is None else p99 / MS,
        "itl_max_ms": int(requests["itl_max_ns"].max()) / MS,
        "late_gap_share": late / bounded if bounded else None,
    }


def _pooled_gaps(
    requests: Columns, steps: Columns, preemptions: Columns, objectives: Objectives
) -> tuple[IntArray, IntArray, int, int]:
    """Return one replica's gaps and how often each counts, how many are late, and how many have an objective."""
    ends = steps["start_ns"] + steps["duration_ns"]
    pauses = pauses_of(preemptions)
    first = np.where(requests["generated_tokens"] > 0, np.searchsorted(ends, requests["first_token_ns"]), NULL)
    spans = token_spans(first, last_token_steps(first, requests["generated_tokens"], pauses), pauses)
    n = len(ends)
    weights = np.cumsum(np.bincount(spans["first"], minlength=n) - np.bincount(spans["last"], minlength=n))[:-1]
    gaps = np.diff(ends)
    jumps = ends[pauses["until"]] - ends[pauses["after"]]
    late = bounded = 0
    if (bound := _bound(requests["slo_tpot_ns"], objectives.deadline_ns)) is not None:
        bounds = np.broadcast_to(bound, first.shape)
        late, bounded = _late(gaps, spans["first"], spans["last"], bounds[spans["request"]])
        own = bounds[pauses["request"]]
        late += int(np.count_nonzero(jumps > own))
        bounded += int(np.count_nonzero(own < FAR))
    return (
        np.concatenate([gaps, jumps]),
        np.concatenate([weights, np.ones(len(jumps), dtype=np.int64)]),
        late,
        bounded,
    )


def _late(gaps: IntArray, first: IntArray, last: IntArray, bounds: IntArray) -> tuple[int, int]:
    """Return how many of the gaps ``first[i]`` to ``last[i] - 1``, over all i, exceed ``bounds[i]``, of how many."""
    late = total = 0
    for d in np.unique(bounds[bounds < FAR]).tolist():
        a, b = first[bounds == d], last[bounds == d]
        start = int(a.min())
        upto = np.concatenate([[0], np.cumsum(gaps[start : int(b.max())] > d)])
        late += int((upto[b - start] - upto[a - start]).sum())
        total += int((b - a).sum())
    return late, total


def _predictions(steps: Columns) -> Summary:
    predicted, duration = steps["predicted_ns"], steps["duration_ns"]
    has = predicted != NULL
    if not has.any():
        return dict.fromkeys(("predicted_bias_ms", "predicted_mape"))
    error = (predicted - duration)[has]
    return {
        "predicted_bias_ms": float(error.mean()) / MS,
        "predicted_mape": float((np.abs(error) / duration[has]).mean()),
    }
