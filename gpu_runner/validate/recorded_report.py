"""The sections of a validation against a public run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from costmodels.kernels_csv import CsvKernels
from gpu_runner.validate.ends import FloatArray, Row, compare
from gpu_runner.validate.ends_report import verdict
from gpu_runner.validate.pictures import cdf_picture, error_picture, series_picture, steps_picture
from gpu_runner.validate.prediction import Prediction
from gpu_runner.validate.recorded import RecordedRun
from gpu_runner.validate.sections import Grid, Picture, Section, ends_grid, misses, steps_section
from gpu_runner.validate.step_times import StepErrors
from gpu_runner.validate.tolerances import STATISTICS, TIMES, Tolerances
from policies.units import MS, NS
from sim.records import NULL, Columns
from traces.schema import IntArray

COMPARED = tuple(f"{time}_{statistic}" for time in TIMES for statistic in STATISTICS if time != "itl")

FEWEST_DECODES = 2
"""A second that ends with fewer running requests is too much of a mixture."""

DEPTHS = {1: "depth 1 (synchronous)", 2: "depth 2 (asynchronous)"}


def first_seconds_section(recorded: RecordedRun, kernels: CsvKernels, tolerances: Tolerances) -> Section | None:
    """Return level L1: kernels against seconds in which everybody only decodes and nobody waits; None without any.

    The time of a step is the time-averaged number of running requests over the tokens per second. A preempted request
    would prefill unseen, so nobody may be waiting.
    """
    s = recorded.seconds
    if s is None:
        return None
    running = _mean_running(recorded, s["t"])
    calm = (s["prompt_throughput"] == 0) & (s["gen_throughput"] > 0) & (running > 0) & (s["running"] >= FEWEST_DECODES)
    calm[1:] &= (s["waiting"][1:] == 0) & (s["waiting"][:-1] == 0)
    at = np.flatnonzero(calm[1:]) + 1
    if not len(at):
        return None
    running = running[at]
    pool = (recorded.config.blocks - 1) * recorded.config.block_size / 100
    held = pool * (s["kv_cache_pct"][at] + s["kv_cache_pct"][at - 1]) / 2
    context = held / ((s["running"][at] + s["running"][at - 1]) / 2)
    n = np.rint(running).astype(np.int64)
    total = np.rint(n * context).astype(np.int64)
    none = 0 * n
    features = np.stack([n, total, np.ceil(context).astype(np.int64), none, none, none], axis=1)
    predicted = kernels.duration_ns(features) / MS
    measured = 1000 * running / s["gen_throughput"][at]
    text = (
        "The run tells throughputs second by second and no single steps. In these seconds nothing but decodes ran: "
        "what a step took is the running requests over the tokens per second, beside what the kernel tables say for as "
        "many decodes with as much context.",
    )
    return steps_section(
        StepErrors.of(predicted, measured),
        tolerances,
        "kernel tables against seconds of decoding alone",
        text=text,
        pictures=[steps_picture(predicted, measured, tolerances.of("step"))],
    )


def _mean_running(recorded: RecordedRun, ends: FloatArray) -> FloatArray:
    """Return how many requests ran on average in the seconds that end so, from when each was served."""
    start, finish = recorded.scheduled_ns / NS, recorded.finished_ns / NS
    overlap = np.minimum(finish, ends[:, None]) - np.maximum(start, ends[:, None] - 1)
    return np.asarray(np.maximum(overlap, 0.0).sum(axis=1))


def judged_section(recorded: RecordedRun, plain: Prediction, fitted: Prediction, tolerances: Tolerances) -> Section:
    """Return level L3, which is judged without the constant: nothing of it was tuned."""
    without, with_host = (_rows(recorded, p, tolerances) for p in (plain, fitted))
    title = _title(recorded, plain)
    passed, summary = verdict(without)
    caption = (
        f"With {fitted.host_ns / 1000:+,.0f} µs added to every step, the one constant that is fitted to this run: to "
        "when its last token came"
    )
    return Section(
        "L3",
        title,
        passed,
        f"Without any tuning: {summary}",
        tables=[
            ends_grid(without, "Kernel times alone, nothing tuned (this is what is judged)"),
            ends_grid(with_host, caption),
            _stages_grid(recorded, plain),
        ],
        pictures=[
            cdf_picture([recorded.sample], [plain.sample]),
            error_picture(without, {"with the fitted constant": with_host}, label="kernel times alone"),
            *_course(recorded, plain),
        ],
        text=_notes(recorded, plain, fitted),
        misses=misses(without, f"L3 {title}"),
        data={
            **_data(plain, without),
            "host_ns": fitted.host_ns,
            "figures_with_host": [r.to_dict() for r in with_host],
        },
    )


def other_section(recorded: RecordedRun, other: Prediction, tolerances: Tolerances) -> Section:
    """Return the same at the depth that is not judged, for comparison."""
    rows = _rows(recorded, other, tolerances)
    _, summary = verdict(rows)
    return Section(
        "L3",
        _title(recorded, other),
        None,
        f"For comparison: {summary}",
        tables=[ends_grid(rows)],
        data=_data(other, rows),
    )


def _title(recorded: RecordedRun, prediction: Prediction) -> str:
    return f"{recorded.folder.name}, pipeline {DEPTHS[prediction.pipeline_depth]}"


def _data(prediction: Prediction, rows: Sequence[Row]) -> dict[str, Any]:
    return {
        "pipeline_depth": prediction.pipeline_depth,
        "figures": [r.to_dict() for r in rows],
        "preemptions": int(prediction.tables.requests["preemptions"].sum()),
        "steps": len(prediction.tables.steps["start_ns"]),
    }


def _rows(recorded: RecordedRun, prediction: Prediction, tolerances: Tolerances) -> list[Row]:
    return compare([recorded.sample.figures], [prediction.sample.figures], tolerances, COMPARED)


def _stages_grid(recorded: RecordedRun, prediction: Prediction) -> Grid:
    """Return where a request's time goes, on average and in the median."""
    requests, arrival = prediction.tables.requests, recorded.trace.arrival_ns
    decided = first_decided_ns(prediction)
    stages: list[tuple[str, IntArray, IntArray]] = [
        ("arrival to scheduled", recorded.scheduled_ns - arrival, decided - arrival),
        (
            "scheduled to first token",
            recorded.first_token_ns - recorded.scheduled_ns,
            requests["first_token_ns"] - decided,
        ),
        (
            "first to last token",
            recorded.finished_ns - recorded.first_token_ns,
            requests["finished_ns"] - requests["first_token_ns"],
        ),
    ]
    rows = []
    for name, real, ours in stages:
        pairs = [(f(real) / NS, f(ours) / NS) for f in (np.mean, np.median)]
        rows.append([name, *(f"{v:.3g} s" for pair in pairs for v in pair)])
    columns = ["stage", "mean, measured", "simulated", "median, measured", "simulated"]
    return Grid(columns, rows, caption="Where a request's time goes")


def first_decided_ns(prediction: Prediction) -> IntArray:
    """Return when each request's first step was decided, which vLLM calls scheduled; -1 for those never started."""
    chunks, steps = prediction.tables.chunks, prediction.tables.steps
    decided = steps.get("decided_ns", steps["start_ns"])
    found = np.full(len(prediction.tables.requests["arrival_ns"]), NULL, dtype=np.int64)
    # Of several assignments the last counts, which is the first chunk.
    found[chunks["request"][::-1]] = decided[chunks["step"][::-1]]
    return found


def _course(recorded: RecordedRun, prediction: Prediction) -> list[Picture]:
    s = recorded.seconds
    if s is None or not len(s["t"]):
        return []
    steps = prediction.tables.steps
    t = s["t"]
    at = np.minimum(np.searchsorted(steps["start_ns"] / NS, t), len(steps["start_ns"]) - 1)
    ends = (steps["start_ns"] + steps["duration_ns"]) / NS
    panels = {
        "running": ((t, s["running"]), (t, (steps["n_decode"] + steps["n_prefill"])[at].astype(float))),
        "waiting": ((t, s["waiting"]), (t, steps["waiting"][at].astype(float))),
        "tokens per second\n(mean of 5 s)": ((t, _smooth(s["gen_throughput"])), (t, _smooth(_tokens(steps, ends, t)))),
    }
    caption = (
        "The run second by second: requests in the batch, requests in the queue (preempted ones among them), and "
        "output tokens. The simulation was given arrivals and lengths only."
    )
    return [series_picture(panels, "course", caption)]


def _tokens(steps: Columns, ends: FloatArray, t: FloatArray) -> FloatArray:
    upto = np.concatenate([[0], np.cumsum(steps["n_decode"])])
    return np.asarray(np.diff(upto[np.searchsorted(ends, np.concatenate([[t[0] - 1], t]))]).astype(float))


def _smooth(values: FloatArray, over: int = 5) -> FloatArray:
    over = min(over, len(values))
    weights = np.convolve(np.ones(len(values)), np.ones(over), "same")
    return np.asarray(np.convolve(values, np.ones(over), "same") / weights)


def _notes(recorded: RecordedRun, plain: Prediction, fitted: Prediction) -> list[str]:
    c = recorded.config
    notes = [
        f"The engine: vLLM {c.version}, {c.model}, {c.blocks:,} KV blocks of {c.block_size} tokens of which one is "
        f"never given out, at most {c.budget:,} tokens and {c.max_num_seqs} requests per step, prefix caching "
        f"{'on' if c.prefix_cache else 'off'}. The simulator had these, the kernel times, and each request's arrival, "
        "prompt and output length; what prompts have in common was not recorded, so they share nothing.",
        f"In the simulation {int(plain.tables.requests['preemptions'].sum())} preemptions happened in "
        f"{len(plain.tables.steps['start_ns']):,} steps. There is one measured run, so the engine's own spread is not "
        "known.",
    ]
    if fitted.host_ns < 0:
        notes.append(
            "The fitted constant is negative: there is no host time left to add. The kernels were measured one by "
            "one; in the engine some are fused and replayed as CUDA graphs, which takes a little less than their sum."
        )
    return notes
