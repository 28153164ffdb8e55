"""Which TTFT objectives SLOWeave matters for, against the best static chunk and the best shared budget."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from experiments.findings.by_tenant import objectives_of, seconds
from experiments.findings.lines import band, signs
from experiments.findings.question import Question
from experiments.findings.table import Table, words
from experiments.plotting import BLUE, GREEN, ORANGE, RED, WIDE
from experiments.tables import Rows
from policies.units import MS
from sim.metrics import met
from sim.stats import Interval
from sim.store import StoredRun

if TYPE_CHECKING:
    from matplotlib.figure import Figure

OURS = {"sloweave": "sloweave", "slots": "fcfs+deadline-slots:slots=16"}
RIVALS = {"static": "fcfs+f", "budget": "fcfs+token-budget"}
"""How the names of the rivals begin; the best is chosen in hindsight for each rate and objective."""

COMPARED = {
    ("sloweave", "static"): ("sloweave over the best static chunk", BLUE, "o"),
    ("sloweave", "budget"): ("sloweave over the best shared budget", RED, "s"),
    ("slots", "static"): ("several prefills over the best static chunk", GREEN, "^"),
    ("slots", "budget"): ("several prefills over the best shared budget", ORANGE, "D"),
}

ENOUGH = 0.05
"""Least relative difference that matters."""

TTFT_MS = (50, 100, 200, 500, 1000, 2000, 5000, 10000)


def measured(run: StoredRun) -> dict[str, Any]:
    """Return goodput under each TTFT objective, in ms."""
    objectives, duration = objectives_of(run), seconds(run)
    return {
        f"goodput_{ms}": int(np.count_nonzero(met(run.requests, replace(objectives, ttft=ms * MS)))) / duration
        for ms in TTFT_MS
    }


def best(table: Table, rivals: str, metric: str) -> Table:
    """Return the runs of the rival with the largest mean."""
    names = [name for name in table.values("policy") if name.startswith(RIVALS[rivals])]
    runs = [table.where(policy=name) for name in names]
    return max(runs, key=lambda own: own.estimate(metric).mean or 0.0)


def drawn(table: Table) -> Rows:
    """Return ratios of goodput with intervals of the paired difference, relative to the rival's mean."""
    rows = []
    for rate in table.values("rate"):
        at = table.where(rate=rate)
        for ours, rivals in COMPARED:
            for ms in TTFT_MS:
                metric = f"goodput_{ms}"
                rival, own = best(at, rivals, metric), at.where(policy=OURS[ours])
                theirs, gain = rival.estimate(metric).mean or 0.0, own.minus(rival, metric)
                ratio = [1 + v / theirs if theirs and v is not None else None for v in gain]
                rows.append(
                    {
                        "rate": rate,
                        "ours": ours,
                        "rivals": rivals,
                        "ttft_ms": ms,
                        "best": rival.values("policy")[0],
                        "goodput_of_best": theirs,
                        "goodput": own.estimate(metric).mean,
                        **dict(zip(("ratio", "ratio_lo", "ratio_hi"), ratio, strict=True)),
                    }
                )
    return rows


def draw(rows: Rows, figure: Figure) -> None:
    """Draw a panel per rate: the ratios over the TTFT objective."""
    rates = list(dict.fromkeys(row["rate"] for row in rows))
    axes = figure.subplots(1, len(rates), sharey=True)
    for axis, rate in zip(axes, rates, strict=True):
        for (ours, rivals), (label, colour, marker) in COMPARED.items():
            own = [row for row in rows if (row["rate"], row["ours"], row["rivals"]) == (rate, ours, rivals)]
            band(axis, own, "ttft_ms", "ratio", colour, label, marker=marker)
        axis.axhline(1, color="0.4", linewidth=0.8)
        axis.set_xscale("log")
        axis.set_yscale("log")
        axis.set_yticks([0.25, 0.5, 1, 2, 4, 8], ["0.25", "0.5", "1", "2", "4", "8"])
        axis.minorticks_off()
        axis.set_ylim(0.2, 16)
        axis.set_title(f"{rate} requests/s")
        axis.set_xlabel("TTFT objective (ms)")
    axes[0].set_ylabel("ratio of goodput")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2)


def objectives_in_words(objectives: list[int]) -> str:
    """Return ``50 to 500 ms``, or those that are no such run one by one, or ``none``."""
    if not objectives:
        return "none"
    at = [TTFT_MS.index(ms) for ms in objectives]
    if len(at) > 1 and at == list(range(at[0], at[-1] + 1)):
        return f"{objectives[0]:,} to {objectives[-1]:,} ms"
    return f"{', '.join(f'{ms:,}' for ms in objectives)} ms"


def answer(table: Table) -> str:
    """Return the answer."""
    rows = drawn(table)
    rates = table.values("rate")

    def of(rate: float, ours: str, rivals: str) -> Rows:
        return [row for row in rows if (row["rate"], row["ours"], row["rivals"]) == (rate, ours, rivals)]

    def more(found: Rows) -> str:
        return objectives_in_words(
            [
                r["ttft_ms"]
                for r in found
                if r["ratio_lo"] is not None and r["ratio_lo"] > 1 and r["ratio"] >= 1 + ENOUGH
            ]
        )

    def less(found: Rows) -> str:
        return objectives_in_words(
            [
                r["ttft_ms"]
                for r in found
                if r["ratio_hi"] is not None and r["ratio_hi"] < 1 and r["ratio"] <= 1 - ENOUGH
            ]
        )

    def at(rate: float, ours: str, rivals: str, ms: int) -> str:
        (row,) = (row for row in of(rate, ours, rivals) if row["ttft_ms"] == ms)
        return words(Interval(row["ratio"], row["ratio_lo"], row["ratio_hi"]))

    low, over = rates[0], rates[-1]
    head = f"""
        On `mixed` with D = 25 ms and {over} requests/s, more than can be served, `sloweave` gains over the best static
        chunk with TTFT objectives of: {more(of(over, "sloweave", "static"))}; over the best shared budget:
        {more(of(over, "sloweave", "budget"))}. At {low} requests/s: {more(of(low, "sloweave", "static"))}, and
        {more(of(low, "sloweave", "budget"))}. The table has all, of {len(TTFT_MS)} objectives between {TTFT_MS[0]} ms
        and {TTFT_MS[-1] / 1000:g} s; a gain or loss is a goodput that is told apart and differs by
        {100 * ENOUGH:g} % or more. The rival, of four static chunks or four shared budgets, is chosen in hindsight for
        each rate and objective."""
    lines = [
        "| requests/s | gain over static | loss to static | gain over budgets | loss to budgets |",
        "| --- | --- | --- | --- | --- |",
    ]
    for rate in rates:
        static, budget = of(rate, "sloweave", "static"), of(rate, "sloweave", "budget")
        lines.append(f"| {rate} | {more(static)} | {less(static)} | {more(budget)} | {less(budget)} |")
    many = [row for row in rows if row["ours"] == "slots" and row["rivals"] == "budget"]
    ahead, behind = signs(
        Interval(r["ratio"] - 1, r["ratio_lo"] - 1, r["ratio_hi"] - 1) for r in many if r["ratio_lo"] is not None
    )
    detail = f"""
        At {over} requests/s and an objective of 1 s, the paper's, the ratio of goodput over the best
        static chunk is {at(over, "sloweave", "static", 1000)} and over the best shared budget
        {at(over, "sloweave", "budget", 1000)}; at 100 ms {at(over, "sloweave", "static", 100)} and
        {at(over, "sloweave", "budget", 100)}; at 10 s {at(over, "sloweave", "static", 10000)} and
        {at(over, "sloweave", "budget", 10000)}. At {low} requests/s and 1 s it is
        {at(low, "sloweave", "static", 1000)} and {at(low, "sloweave", "budget", 1000)}.

        Budgets serve several prefills per step. With up to 16 that share the room before the deadline, goodput is
        higher than the best budget's in {ahead} of {len(many)} combinations of rate and objective and lower in
        {behind}; at {over} requests/s and 100 ms the ratio is {at(over, "slots", "budget", 100)}. The best budget was
        {_budgets(rows)}, depending on rate and objective. Intervals are of paired differences, relative to the rival's
        mean."""
    return "\n\n".join([head, "\n".join(lines), detail])


def _budgets(rows: Rows) -> str:
    """Return the budgets that were the best for some rate and objective, in words."""
    best = {row["best"].rpartition("=")[2] for row in rows if row["rivals"] == "budget"}
    return " or ".join(sorted(best, key=int))


QUESTION = Question(
    name="ttft_objective",
    place=100,
    asks="What must the TTFT objective be for SLOWeave to matter?",
    metrics=("ttft_p99_ms", "tpot_p99_ms"),
    drawn=drawn,
    draw=draw,
    answer=answer,
    size=(WIDE, 3.0),
    measure=measured,
)
