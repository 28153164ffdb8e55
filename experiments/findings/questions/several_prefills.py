"""One prefill per step or several: what the rule of SLOWeave §3.2 costs, and where."""

from __future__ import annotations

from typing import TYPE_CHECKING

from experiments.findings.lines import band
from experiments.findings.question import Question
from experiments.findings.table import Table, words
from experiments.plotting import BLUE, GREEN, ORANGE
from experiments.tables import Rows

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ONE = "sloweave"
SLOTS = {2: "fcfs+deadline-slots:slots=2", 4: "fcfs+deadline-slots:slots=4", 16: "fcfs+deadline-slots:slots=16"}
COLOURS = {2: BLUE, 4: GREEN, 16: ORANGE}


def drawn(table: Table) -> Rows:
    """Return the gain in goodput over one prefill per step, paired by seed, by workload, objective and slots."""
    rows = []
    for workload in table.values("workload"):
        for tpot in table.values("tpot"):
            at = table.where(workload=workload, tpot=tpot)
            one = at.where(policy=ONE)
            for slots, policy in SLOTS.items():
                gain = at.where(policy=policy).minus(one, "goodput")
                rows.append(
                    {
                        "workload": workload,
                        "tpot_ms": tpot,
                        "slots": slots,
                        "goodput_of_one": one.estimate("goodput").mean,
                        "gain": gain.mean,
                        "gain_lo": gain.lo,
                        "gain_hi": gain.hi,
                    }
                )
    return rows


def draw(rows: Rows, figure: Figure) -> None:
    """Draw a panel per workload: the gain over the objective, a line per number of slots."""
    workloads = list(dict.fromkeys(row["workload"] for row in rows))
    axes = figure.subplots(1, len(workloads))
    for axis, workload in zip(axes, workloads, strict=True):
        for slots, colour in COLOURS.items():
            own = [row for row in rows if (row["workload"], row["slots"]) == (workload, slots)]
            band(axis, own, "tpot_ms", "gain", colour, f"up to {slots}")
        axis.axhline(0, color="0.4", linewidth=0.8)
        axis.set_title(workload)
        axis.set_xlabel("TPOT objective (ms)")
    axes[0].set_ylabel("goodput gained over one\nprefill per step (requests/s)")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, title="prefills per step")


def answer(table: Table) -> str:
    """Return the answer."""
    rows = drawn(table)
    told = [row for row in rows if row["gain_lo"] > 0]
    worse = [row for row in rows if row["gain_hi"] < 0]
    mixed = table.where(workload="mixed", tpot=25)
    one, four = mixed.where(policy=ONE), mixed.where(policy=SLOTS[4])
    ttft = four.minus(one, "ttft_p99_ms")
    full = mixed.where(policy=SLOTS[16]).minus(four, "goodput")
    return f"""
        With several prefills in a step, each filled before the next, goodput is higher in {len(told)} of {len(rows)}
        settings and lower in {len(worse)}, by intervals that exclude zero. On `mixed` at 25 ms one prefill per step has
        {words(one.estimate("goodput"))} requests/s and up to four {words(four.estimate("goodput"))},
        {words(four.minus(one, "goodput"), signed=True)} more; P99 TTFT changes by {words(ttft, signed=True)} ms. From
        four to sixteen it is {words(full, signed=True)} more.

        The step of `sloweave` ends with its prompt: where prompts are shorter than what fits before the deadline, the
        rest of the room is left empty, although the base time of the step is paid."""


QUESTION = Question(
    name="several_prefills",
    place=20,
    asks="Several prefills per step, or one?",
    metrics=("goodput", "slo_attainment", "ttft_p99_ms", "tpot_p99_ms"),
    drawn=drawn,
    draw=draw,
    answer=answer,
)
