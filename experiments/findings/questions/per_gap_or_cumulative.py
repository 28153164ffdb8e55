"""Deadlines per gap or cumulative, judged by both definitions of lateness."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from experiments.findings.by_tenant import objectives_of, seconds
from experiments.findings.lines import counted, in_words
from experiments.findings.question import Question
from experiments.findings.table import Table, words
from experiments.plotting import BLUE, GREEN, ORANGE, WIDE
from experiments.tables import Rows
from sim.metrics import met
from sim.stats import Interval
from sim.store import StoredRun

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PAIRS = {
    "deadline-fill": ("fcfs+deadline-sum", "sloweave"),
    "qoserve": ("fcfs+qoserve", "fcfs+qoserve:per_gap=true"),
}
"""Cumulative, then per gap, by what finds the chunk."""

LATENESS = {
    "goodput": ("P99 gap of a request", BLUE, "o"),
    "goodput_mean": ("its mean gap", GREEN, "s"),
    "goodput_due": ("every token from its TTFT objective on", ORANGE, "^"),
}
"""What has to be within D for a request to count, besides its TTFT; the summary's goodput goes by the first."""


def measured(run: StoredRun) -> dict[str, Any]:
    """Return goodput by mean gap, and by tokens that are due k times D after the end of the TTFT objective."""
    requests, objectives, duration = run.requests, objectives_of(run), seconds(run)
    if not duration or objectives.ttft is None or objectives.tpot_p99 is None:
        raise ValueError("lateness needs requests that finish, and objectives")
    in_mean = met(requests, replace(objectives, tpot_p99=None, tpot=objectives.tpot_p99))
    # Without preemptions a request gets a token in each step from its first on.
    ends = run.steps["start_ns"] + run.steps["duration_ns"]
    first = np.searchsorted(ends, requests["first_token_ns"])
    on_time = met(requests, replace(objectives, tpot_p99=None))
    for i in np.flatnonzero(on_time).tolist():
        k = np.arange(1, int(requests["generated_tokens"][i]))
        start = max(int(requests["first_token_ns"][i]), int(requests["arrival_ns"][i]) + objectives.ttft)
        on_time[i] = bool((ends[first[i] + k] <= start + k * objectives.tpot_p99).all())
    return {
        "goodput_mean": int(np.count_nonzero(in_mean)) / duration,
        "goodput_due": int(np.count_nonzero(on_time)) / duration,
    }


def gains(table: Table, chunking: str, metric: str) -> dict[tuple[str, float], Interval]:
    """Return what cumulative deadlines gain over those per gap, by workload and D."""
    cumulative, per_gap = PAIRS[chunking]
    return {
        (w, d): table.where(workload=w, tpot=d, policy=cumulative).minus(
            table.where(workload=w, tpot=d, policy=per_gap), metric
        )
        for w in table.values("workload")
        for d in table.values("tpot")
    }


def drawn(table: Table) -> Rows:
    """Return the goodput gained by cumulative deadlines, by what finds the chunk, lateness, workload and D."""
    return [
        {
            "chunking": chunking,
            "lateness": metric,
            "workload": workload,
            "tpot_ms": tpot,
            "per_gap": table.where(workload=workload, tpot=tpot, policy=PAIRS[chunking][1]).estimate(metric).mean,
            "gain": gain.mean,
            "gain_lo": gain.lo,
            "gain_hi": gain.hi,
        }
        for chunking in PAIRS
        for metric in LATENESS
        for (workload, tpot), gain in gains(table, chunking, metric).items()
    ]


def draw(rows: Rows, figure: Figure) -> None:
    """Draw a row per chunking and a column per workload: the gain by each definition of lateness, over D."""
    workloads = list(dict.fromkeys(row["workload"] for row in rows))
    axes = figure.subplots(len(PAIRS), len(workloads), sharex=True, sharey=True)
    for line, chunking in zip(axes, PAIRS, strict=True):
        for axis, workload in zip(line, workloads, strict=True):
            for at, (metric, (label, colour, marker)) in enumerate(LATENESS.items()):
                own = [
                    row
                    for row in rows
                    if (row["chunking"], row["workload"], row["lateness"]) == (chunking, workload, metric)
                ]
                x = [k + 0.2 * (at - 1) for k in range(len(own))]
                gain = np.array([row["gain"] for row in own])
                below = gain - [row["gain_lo"] for row in own]
                above = np.array([row["gain_hi"] for row in own]) - gain
                axis.errorbar(x, gain, yerr=(below, above), fmt=marker, color=colour, label=label)
                axis.set_xticks(range(len(own)), [f"{row['tpot_ms']}" for row in own])
            axis.axhline(0, color="0.4", linewidth=0.8)
            axis.set_title(f"{chunking}, {workload}")
        line[0].set_ylabel("goodput gained by cumul-\native deadlines (req/s)")
    for axis in axes[-1]:
        axis.set_xlabel("D (ms)")
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, title="what has to be within D")


def answer(table: Table) -> str:
    """Return the answer."""
    settings = len(gains(table, "qoserve", "goodput"))
    # Where no gap is longer than D under cumulative deadlines, nothing tells the two apart.
    alike = sum(all(row["late_gap_share"] == 0 for row in at) for at in _cumulative(table))
    mixed = table.where(workload="mixed", tpot=10)
    added, per_gap = (mixed.where(policy=policy) for policy in PAIRS["deadline-fill"])

    def change(metric: str, times: float = 1.0) -> str:
        return words(added.minus(per_gap, metric), signed=True, times=times)

    def both(metric: str) -> str:
        return f"{words(added.estimate(metric))} against {words(per_gap.estimate(metric))}"

    def better(metric: str) -> str:
        return in_words(gains(table, "deadline-fill", metric).values())

    head = f"""
        Filling cumulative deadlines in place of deadlines per gap, goodput is {better("goodput")} if the P99 of a
        request's gaps has to be within D, {better("goodput_mean")} if their mean has to, and {better("goodput_due")} if
        every token has to come in time when counted from the TTFT objective on. The table has the same counts, higher /
        lower, also for `qoserve`'s chunks with and without deadlines that add up; the settings are three workloads at
        the paper's rates with D of 10, 25 and 50 ms."""
    lines = [f"| within D | {' | '.join(f'`{chunking}`' for chunking in PAIRS)} |", "| --- | --- | --- |"]
    for metric, (label, _, _) in LATENESS.items():
        counts = [counted(gains(table, chunking, metric).values()) for chunking in PAIRS]
        lines.append(f"| {label} | {' | '.join(counts)} |")
    example = f"""
        On `mixed` with D = 10 ms filling cumulative deadlines has {both("goodput")} requests/s by P99 gaps,
        {both("goodput_mean")} by mean gaps, and {both("goodput_due")} where the k-th next token is due k times D after
        the first token or the end of the TTFT objective, whichever is later, which is what the policy aims at. P99 TTFT
        changes by {change("ttft_p99_ms")} ms and {words(added.estimate("late_gap_share"), times=100)} % of the gaps are
        longer than D. A likely reason: an early first token leaves time until the end of the TTFT objective, and
        long steps use it up, so that who reads from the first token on sees gaps, and a mean gap, over D.

        In {alike} of {settings * len(PAIRS)} cases of a setting and a chunking no gap is longer than D even with
        cumulative deadlines: the objective is so loose that the choice does not matter for P99 gaps. The two chunkings
        differ in more than deadlines (`qoserve` has a grid, a margin of 20 % and several prefills per step); each is
        compared with itself only."""
    return "\n\n".join([head, "\n".join(lines), example])


def _cumulative(table: Table) -> list[Table]:
    """Return the runs with cumulative deadlines, by chunking, workload and D."""
    return [
        table.where(policy=policy, workload=workload, tpot=tpot)
        for policy, _ in PAIRS.values()
        for workload in table.values("workload")
        for tpot in table.values("tpot")
    ]


QUESTION = Question(
    name="per_gap_or_cumulative",
    place=50,
    asks="Deadlines per gap, or cumulative?",
    metrics=("goodput", "ttft_p99_ms", "tpot_p99_ms", "late_gap_share"),
    drawn=drawn,
    draw=draw,
    answer=answer,
    size=(WIDE, 4.6),
    measure=measured,
)
