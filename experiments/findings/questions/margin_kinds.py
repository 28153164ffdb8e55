"""Kinds of margin under drift: how much slower or noisier a machine may become before each fails."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from costmodels.io import load_card
from experiments.findings.question import Question
from experiments.findings.table import Table, words
from experiments.plotting import BLUE, ORANGE, PURPLE, RED, SKY, WIDE
from experiments.tables import Rows
from sim.stats import Interval

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PROFILED = "erring:of=h100-llama3.1-8b,noise=2%"
SLOWER = {0: PROFILED} | {s: f"erring:of=h100-llama3.1-8b,bias={s}%,noise=2%" for s in (5, 10, 20, 30)}
NOISIER = {2: PROFILED} | {s: f"erring:of=h100-llama3.1-8b,noise={s}%" for s in (5, 10)}
DRIFTS = {"slower": SLOWER, "noisier": NOISIER}

ENOUGH = 0.9
"""A margin survives a drift with this share of the goodput of a policy that knows each step."""


class Kind(NamedTuple):
    """A margin: its name, colour and marker."""

    title: str
    colour: str
    line: str


KINDS = {
    "sloweave": Kind("none", "0.4", "s-"),
    "sloweave:margin=1": Kind("1 ms", RED, "s-"),
    "sloweave:margin=10%": Kind("10 %", ORANGE, "s-"),
    "sloweave:margin=p99": Kind("p99 table", PURPLE, "^--"),
    "sloweave:margin=c99": Kind("c99", SKY, "v--"),
    "fcfs+guarded:window=1000": Kind("guarded, 1000 steps", BLUE, "o-"),
}


def drawn(table: Table) -> Rows:
    """Return goodput by drift and margin, and that of a policy that knows each step."""
    rows = []
    for drift, machines in DRIFTS.items():
        for size, machine in machines.items():
            at = table.where(cost_model=machine)
            known = at.where(experiment="margin_kinds_known")
            for policy in (None, *KINDS):
                own = known if policy is None else at.where(experiment="margin_kinds", policy=policy)
                goodput, lost = own.estimate("goodput"), known.minus(own, "goodput")
                rows.append(
                    {
                        "drift": drift,
                        "percent": size,
                        "margin": "known" if policy is None else KINDS[policy].title,
                        "goodput": goodput.mean,
                        "goodput_lo": goodput.lo,
                        "goodput_hi": goodput.hi,
                        "share_of_known": own.over(known, "goodput"),
                        "lost": lost.mean,
                        "lost_lo": lost.lo,
                        "lost_hi": lost.hi,
                        "late_gaps_percent": 100 * (own.estimate("late_gap_share").mean or 0.0),
                    }
                )
    return rows


def draw(rows: Rows, figure: Figure) -> None:
    """Draw a panel per drift: goodput over its size, a line per kind of margin."""
    axes = figure.subplots(1, 2, sharey=True)
    labels = {"slower": "steps longer than in the profile (%)", "noisier": "noise of the steps, σ (%)"}
    kinds = {"known": Kind("every step known", "black", "--"), **{k.title: k for k in KINDS.values()}}
    for axis, (drift, label) in zip(axes, labels.items(), strict=True):
        for margin, kind in kinds.items():
            own = [row for row in rows if (row["drift"], row["margin"]) == (drift, margin)]
            x = [row["percent"] for row in own]
            y = [row["goodput"] for row in own]
            axis.plot(x, y, kind.line, color=kind.colour, markersize=4, label=kind.title)
            lo, hi = ([row[end] for row in own] for end in ("goodput_lo", "goodput_hi"))
            axis.fill_between(x, lo, hi, color=kind.colour, alpha=0.12, linewidth=0)
        axis.set_xlabel(label)
        axis.set_title(f"A {drift} machine", fontsize=10)
    axes[0].set_ylabel("goodput (requests/s)")
    axes[0].set_ylim(bottom=0)
    handles, names = axes[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=4, title="margin")


def _survived(rows: Rows, drift: str, margin: str) -> str:
    """Return the largest drift up to which a margin always has enough goodput, of the policy's that knows each step."""
    last = "none"
    for row in (row for row in rows if (row["drift"], row["margin"]) == (drift, margin)):
        if row["share_of_known"] < ENOUGH:
            break
        last = f"{row['percent']} %"
    return last


def _listed(names: list[str]) -> str:
    """Return how many there are, and which."""
    return f"{len(names)} ({', '.join(names)})" if names else "none"


def answer(table: Table) -> str:
    """Return the answer."""
    rows = drawn(table)

    def at(drift: str, percent: int, margin: str, what: str = "lost") -> str:
        [row] = [row for row in rows if (row["drift"], row["percent"], row["margin"]) == (drift, percent, margin)]
        return words(Interval(row[what], row[f"{what}_lo"], row[f"{what}_hi"]))

    titles = [kind.title for kind in KINDS.values()]
    guard = titles[-1]
    others = [row for row in rows if row["margin"] in titles[:-1]]
    survivors = [title for title in titles if _survived(rows, "slower", title) == "30 %"]
    past = [row for row in others if row["drift"] == "slower" and row["percent"] >= 10]
    lines = "\n".join(
        f"| {title} | {at('slower', 0, title, 'goodput')} | {_survived(rows, 'slower', title)} | "
        f"{_survived(rows, 'noisier', title)} | {at('slower', 10, title, 'goodput')} | "
        f"{at('slower', 30, title, 'goodput')} | {at('noisier', 10, title, 'goodput')} |"
        for title in ("known", *titles)
    )
    covers = load_card("h100-llama3.1-8b")["fit"]["p99_margins"]["margin"]
    return f"""
        With steps 30 % longer than in the profile, {_listed(survivors)} of {len(titles)} kinds of margin still
        {"has" if len(survivors) == 1 else "have"} {100 * ENOUGH:.0f} % of the goodput of a policy that knows what each
        step will take, which is what surviving means here. `guarded` loses {at("slower", 30, guard)} requests/s of
        {at("slower", 30, "known", "goodput")} to it, no margin {at("slower", 30, "none")}. From 10 % on,
        {sum(row["share_of_known"] < ENOUGH for row in past)} of {len(past)} settings with another margin or none do not
        survive. What each does (slower by 0, 5, 10, 20 or 30 %; noise of 2, 5 or 10 %), and goodput in requests/s:

| margin | profiled | slower up to | noise up to | 10 % slower | 30 % slower | noise of 10 % |
|---|---|---|---|---|---|---|
{lines}

        Fixed and calibrated margins cover what they are large enough for, and little beyond: `c99` is
        {100 * covers:.1f} % of a prediction here, calibrated on steps composed for this model, and knows nothing of
        another machine's noise or speed. A guard follows what steps take; at 10 % slower it loses
        {at("slower", 10, guard)} requests/s, at noise of 10 % {at("noisier", 10, guard)}. Even on the machine as
        profiled, with noise of 2 % about the model, `sloweave` without a margin loses {at("slower", 0, "none")}
        requests/s and with 1 ms {at("slower", 0, "1 ms")}: filled steps end on the deadline, and noise makes half of
        those late. The drift is there from the start of a run; [margins.md](margins.md) has one that sets in
        while it lasts. Llama-3.1-8B on an H100, `mixed` at 14 requests/s, 25 ms per token."""


QUESTION = Question(
    name="margin_kinds",
    place=60,
    asks="How much drift does each kind of margin survive?",
    metrics=("goodput", "slo_attainment", "ttft_p99_ms", "tpot_p99_ms", "late_gap_share", "predicted_bias_ms"),
    drawn=drawn,
    draw=draw,
    answer=answer,
    size=(WIDE, 3.4),
    experiments=("margin_kinds", "margin_kinds_known"),
)
