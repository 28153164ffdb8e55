"""Whether bursts and shared prefixes change which policy is best."""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING, Any

from experiments.findings.question import Question
from experiments.findings.table import Table, words
from experiments.plotting import BLUE, GREEN, ORANGE, RED, SKY, WIDE
from experiments.tables import Rows

if TYPE_CHECKING:
    from matplotlib.figure import Figure, SubFigure

BURSTS, SHARING = "sharing_and_bursts_bursts", "sharing_and_bursts_sharing"
METRIC = {BURSTS: "goodput", SHARING: "jct_mean_ms"}
LABELS = {
    BURSTS: ("goodput (requests/s)", "burstiness (1: Poisson; less: bursts)"),
    SHARING: ("mean latency (s)", "requests that share a prefix"),
}

SLOTS = "fcfs+deadline-slots:slots=4"
LINES = {
    BURSTS: {
        "fcfs+full": ("full", "0.3", "s"),
        "fcfs+fixed:chunk=1024": ("chunks of 1,024", ORANGE, "^"),
        "vllm-default": ("vllm-default", RED, "D"),
        "sloweave": ("sloweave", BLUE, "o"),
        SLOTS: ("sloweave, 4 slots", SKY, "v"),
    },
    SHARING: {
        "fcfs+full": ("fcfs", "0.3", "s"),
        "srjf-static+full": ("srjf-static", ORANGE, "^"),
        "lpm+full": ("lpm", RED, "D"),
        "hrrn+full": ("hrrn", GREEN, "o"),
        "srjf-calibrated:lam=0+full": ("calibrated, λ = 0", SKY, "v"),
        "srjf-calibrated:lam=500+full": ("calibrated, λ = 500", BLUE, "P"),
    },
}
"""What each policy is called, its colour and its mark."""


CLOSE = 0.02
"""Worse than the best by this share is close to it."""


def drawn(table: Table) -> Rows:
    """Return the metric of each part by panel (workload or rate), place on the axis and policy."""
    rows: Rows = []
    for part, metric in METRIC.items():
        for panel, at, runs in _settings(table, part):
            for policy in LINES[part]:
                mean, lo, hi = runs.where(policy=policy).estimate(metric)
                row = {"part": part, "panel": panel, "at": at, "policy": policy, "metric": metric}
                rows.append(row | {"mean": mean, "lo": lo, "hi": hi})
    return rows


def _settings(table: Table, part: str) -> list[tuple[str, float, Table]]:
    """Return panel, place on the axis, and runs of each setting."""
    own = table.where(experiment=part)
    found = []
    for rate in own.values("rate"):
        for workload in own.values("workload"):
            name, _, parameters = workload.partition(":")
            given = dict(entry.split("=") for entry in parameters.split(","))
            panel, at = (name, given["burstiness"]) if part == BURSTS else (f"{rate:g} requests/s", given[PER_USER])
            found.append((panel, float(at), own.where(rate=rate, workload=workload)))
    return found


PER_USER = "requests_per_user"


def draw(rows: Rows, figure: Figure) -> None:
    """Draw goodput over burstiness above, mean latency over sharing below."""
    halves: Any = figure.subfigures(2, 1)
    for part, half in zip(METRIC, halves, strict=True):
        _draw_part([row for row in rows if row["part"] == part], half, part)


def _draw_part(rows: Rows, figure: SubFigure, part: str) -> None:
    panels = list(dict.fromkeys(row["panel"] for row in rows))
    scale = 1 if part == BURSTS else 1000
    axes = figure.subplots(1, len(panels))
    for axis, panel in zip(axes, panels, strict=True):
        for policy, (called, colour, mark) in LINES[part].items():
            own = [row for row in rows if (row["panel"], row["policy"]) == (panel, policy)]
            x = [row["at"] for row in own]
            axis.plot(x, [row["mean"] / scale for row in own], marker=mark, color=colour, label=called)
            lo, hi = ([row[end] / scale for row in own] for end in ("lo", "hi"))
            axis.fill_between(x, lo, hi, color=colour, alpha=0.2, linewidth=0)
        axis.set_xscale("log")
        axis.set_xticks(x, [f"{at:g}" for at in x])
        if part == BURSTS:
            axis.set_ylim(bottom=0)
        else:
            axis.set_yscale("log")
            ticks = [
                t
                for t in (5, 10, 20, 50, 100, 200, 500, 1000)
                if t < 1.2 * max(row["mean"] / scale for row in rows if row["panel"] == panel)
            ]
            axis.set_yticks(ticks, [f"{tick:,}" for tick in ticks])
        axis.minorticks_off()
        axis.set_title(panel)
        axis.set_xlabel(LABELS[part][1])
    axes[0].set_ylabel(LABELS[part][0])
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside right center")


def answer(table: Table) -> str:
    """Return the answer."""
    settings = {part: _settings(table, part) for part in METRIC}
    panels = {part: list(dict.fromkeys(panel for panel, _, _ in settings[part])) for part in METRIC}
    turned = {(part, panel): _turned(settings[part], part, panel) for part in METRIC for panel in panels[part]}
    pairs = {part: len(list(combinations(LINES[part], 2))) for part in METRIC}
    bursts = " and ".join(f"{turned[BURSTS, panel]} of {pairs[BURSTS]} pairs on `{panel}`" for panel in panels[BURSTS])
    sharing = " and ".join(
        f"{turned[SHARING, panel]} of {pairs[SHARING]} pairs of policies at {panel}" for panel in panels[SHARING]
    )
    return f"""
        Shared prefixes turn round the order of {sharing}, told apart one way in one setting and the other way in
        another; bursts that of {bursts}. Within {100 * CLOSE:.0f} % of the best policy at every burstiness:
        {_always(settings, BURSTS)}; at every number of requests that share: {_always(settings, SHARING)}.

        Bursts, from a shape of 3 (more even than Poisson arrivals) to 0.1, at the workloads' own rates. `vllm-default`
        less `sloweave` on `chat` is {_less(settings, BURSTS, "chat", 3, "vllm-default", "sloweave")} requests/s at 3
        and {_less(settings, BURSTS, "chat", 0.1, "vllm-default", "sloweave")} at 0.1, on `mixed`
        {_less(settings, BURSTS, "mixed", 3, "vllm-default", "sloweave")} and
        {_less(settings, BURSTS, "mixed", 0.1, "vllm-default", "sloweave")}. Four slots less one are on `mixed`
        {_less(settings, BURSTS, "mixed", 3, SLOTS, "sloweave")} and
        {_less(settings, BURSTS, "mixed", 0.1, SLOTS, "sloweave")}. A likely reason: after a burst many requests decode
        at once, and a budget of 2,048 tokens, which beside few of them fits before a deadline of 25 ms, does not then.
        Bursty runs differ so much by seed that a difference has to be large to be told.

        Sharing, mean latency. λ = 0 less `lpm` at 0.8 requests/s is
        {_less(settings, SHARING, RUSH, 1, GREEDY, LPM)} s where nothing is shared,
        {_less(settings, SHARING, RUSH, 25, GREEDY, LPM)} s where 25 requests share a prefix and
        {_less(settings, SHARING, RUSH, 100, GREEDY, LPM)} s where 100 do: without sharing the prefix says nothing and
        length is all there is to go by. `hrrn` goes by both; less `lpm` it is
        {_less(settings, SHARING, RUSH, 1, HRRN, LPM)}, {_less(settings, SHARING, RUSH, 25, HRRN, LPM)} and
        {_less(settings, SHARING, RUSH, 100, HRRN, LPM)} s. The rate is the same for all, so that who shares more is
        less loaded too: an L4 prefills 0.24 requests/s where nothing is cached. All runs are 500 requests."""


LPM, HRRN, GREEDY = "lpm+full", "hrrn+full", "srjf-calibrated:lam=0+full"
RUSH = "0.8 requests/s"


def _difference(runs: Table, part: str, one: str, other: str) -> Any:
    return runs.where(policy=one).minus(runs.where(policy=other), METRIC[part])


def _turned(settings: list[tuple[str, float, Table]], part: str, panel: str) -> int:
    """Return how many pairs are told apart one way somewhere in a panel, and the other way elsewhere."""
    count = 0
    for one, other in combinations(LINES[part], 2):
        found = [_difference(runs, part, one, other) for at, _, runs in settings if at == panel]
        count += any(d.excludes_zero and d.lo > 0 for d in found) and any(d.excludes_zero and d.hi < 0 for d in found)
    return count


def _always(settings: dict[str, list[tuple[str, float, Table]]], part: str) -> str:
    """Return the policies whose mean is close to the best one's in every setting."""
    always = list(LINES[part])
    for _, _, runs in settings[part]:
        means = {policy: runs.where(policy=policy).estimate(METRIC[part]).mean or 0.0 for policy in LINES[part]}
        if part == BURSTS:
            always = [policy for policy in always if means[policy] >= (1 - CLOSE) * max(means.values())]
        else:
            always = [policy for policy in always if means[policy] <= (1 + CLOSE) * min(means.values())]
    return ", ".join(LINES[part][policy][0] for policy in always) or "none"


def _less(
    settings: dict[str, list[tuple[str, float, Table]]], part: str, panel: str, at: float, one: str, other: str
) -> str:
    [runs] = [runs for name, place, runs in settings[part] if (name, place) == (panel, at)]
    return words(_difference(runs, part, one, other), signed=True, times=1 if part == BURSTS else 1e-3)


QUESTION = Question(
    name="sharing_and_bursts",
    place=90,
    asks="Do bursts or shared prefixes change which policy is best?",
    metrics=("goodput", "slo_attainment", "ttft_p99_ms", "tpot_p99_ms", "jct_mean_ms", "jct_p99_ms", "hit_rate"),
    drawn=drawn,
    draw=draw,
    answer=answer,
    size=(WIDE, 5.0),
    experiments=(BURSTS, SHARING),
)
