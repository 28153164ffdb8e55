"""Who waits for how long when requests with a cached prefix go first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from experiments.findings.question import Question
from experiments.findings.table import Table, words
from experiments.output import number
from experiments.plotting import BLUE, GREEN, ORANGE, PURPLE, RED, SKY, WIDE
from experiments.tables import Rows
from policies.units import NS
from sim.stats import Interval, t_interval
from sim.store import StoredRun

if TYPE_CHECKING:
    from matplotlib.figure import Figure


FCFS, PREFILLONLY = "fcfs+full", "srjf-calibrated:lam=500+full"
LPM, HRRN = "lpm+full", "hrrn+full"
GREEDY, LAST = "srjf-calibrated:lam=0+full", "srjf-calibrated:lam=5000+full"

POLICIES = {
    FCFS: ("0.3", "s-", "fcfs"),
    LPM: (RED, "o-", "lpm"),
    "k-lpm:k=4+full": (ORANGE, "o-", "k-lpm, k = 4"),
    "dfs-weight+full": (PURPLE, "o-", "dfs-weight"),
    HRRN: (GREEN, "o-", "hrrn"),
    GREEDY: (SKY, "^-", "calibrated, λ = 0"),
    PREFILLONLY: (BLUE, "^-", "calibrated, λ = 500"),
    LAST: (BLUE, "v:", "calibrated, λ = 5000"),
}
"""Colour and line, and what it is called in the picture."""

MODES = {
    "prefix_starvation_requests": "20 users all the time",
    "prefix_starvation_spread": "users who come and go, 4 at a time",
}

RATIOS = {"miss_over_hit": ("wait_miss_s", "wait_hit_s"), "long_over_short": ("wait_long_s", "wait_short_s")}
"""Of mean waits in a run."""

SHOWN = {
    "wait_longest_s": "longest wait (s)",
    "miss_over_hit": "mean wait, prefix not cached\n÷ prefix cached",
    "long_over_short": "mean wait, long profile\n÷ short profile",
}

KEPT = 0.9
"""Who serves less than this share of the rate falls behind."""

KEYS = ("experiment", "rate", "policy")
METRICS = (
    "wait_mean_s",
    "wait_p99_s",
    "wait_p999_s",
    "wait_longest_s",
    "wait_miss_s",
    "wait_hit_s",
    "wait_long_s",
    "wait_short_s",
    "misses",
    "hit_rate",
    "throughput",
)


def measure(run: StoredRun) -> dict[str, Any]:
    """Return waits in seconds: of all, of those who found half of their prompt cached or not, of long and short."""
    requests = run.requests
    wait = (requests["first_scheduled_ns"] - requests["arrival_ns"]) / NS
    prompt = requests["prompt_tokens"]
    hit = 2 * requests["cached_tokens"] >= prompt
    long = prompt > np.median(prompt)
    return {
        "wait_mean_s": float(wait.mean()),
        "wait_p99_s": float(np.percentile(wait, 99)),
        "wait_p999_s": float(np.percentile(wait, 99.9)),
        "wait_longest_s": float(wait.max()),
        "misses": float(1 - hit.mean()),
        "wait_hit_s": float(wait[hit].mean()) if hit.any() else None,
        "wait_miss_s": float(wait[~hit].mean()),
        "wait_long_s": float(wait[long].mean()),
        "wait_short_s": float(wait[~long].mean()),
    }


def drawn(table: Table) -> Rows:
    """Return waits by way of arriving, rate and policy, and the ratios of mean waits, taken in each run."""
    rows = table.means(KEYS, METRICS)
    for row in rows:
        own = table.where(**{key: row[key] for key in KEYS})
        fcfs = table.where(experiment=row["experiment"], rate=row["rate"], policy=FCFS)
        longer = own.minus(fcfs, "wait_longest_s")
        row["longer_s"], row["longer_s_lo"], row["longer_s_hi"] = longer
        for ratio, (above, below) in RATIOS.items():
            values = [run[above] / run[below] if run[below] else None for run in own]
            row[ratio], row[f"{ratio}_lo"], row[f"{ratio}_hi"] = t_interval(values)
    return rows


def draw(rows: Rows, figure: Figure) -> None:
    """Draw longest waits and both ratios over the rate, a line of panels for each way of arriving."""
    axes = figure.subplots(len(MODES), len(SHOWN), sharex=True)
    for line, (experiment, mode) in zip(axes, MODES.items(), strict=True):
        for axis, (metric, label) in zip(line, SHOWN.items(), strict=True):
            for policy, (colour, style, called) in POLICIES.items():
                own = [row for row in rows if (row["experiment"], row["policy"]) == (experiment, policy)]
                own = [row for row in own if row[metric] is not None]
                middle = [row[metric] for row in own]
                error = [[row[metric] - max(row[f"{metric}_lo"], row[metric] / 10) for row in own]]
                error.append([row[f"{metric}_hi"] - row[metric] for row in own])
                # Side by side, for their intervals to be seen.
                rates = [row["rate"] * 1.03 ** (list(POLICIES).index(policy) - 3.5) for row in own]
                axis.errorbar(rates, middle, error, fmt=style, color=colour, label=called, elinewidth=0.8, capsize=0)
            axis.set_xscale("log")
            axis.set_yscale("log")
            if metric in RATIOS:
                axis.axhline(1, color="0.4", linewidth=0.8)
                ticks = [0.2, 0.5, 1, 2, 5, 10, 20] if metric == "long_over_short" else [0.2, 0.5, 1, 2]
                axis.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
            axis.set_xticks(own_rates := sorted({row["rate"] for row in rows}), [f"{rate:g}" for rate in own_rates])
            axis.minorticks_off()
            axis.set_ylabel(label, fontsize=8)
        line[1].set_title(mode)
    for axis in axes[-1]:
        axis.set_xlabel("requests/s")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4)


def answer(table: Table) -> str:
    """Return the answer."""
    rows = drawn(table)
    others = [row for row in rows if row["policy"] != FCFS]
    longer = [row for row in others if row["longer_s_lo"] > 0]
    shorter = [row for row in others if row["longer_s_hi"] < 0]
    late = [row for row in rows if row["throughput"] < KEPT * row["rate"]]
    greedy = max((row for row in rows if row["policy"] == GREEDY), key=lambda row: row["long_over_short"])
    same = {"experiment": greedy["experiment"], "rate": greedy["rate"]}
    at = {row["policy"]: row for row in rows if {key: row[key] for key in same} == same}
    here = table.where(**same)
    saved = here.where(policy=PREFILLONLY).minus(here.where(policy=GREEDY), "wait_longest_s")
    return f"""
        Calibrated SRJF with λ = 0 makes long profiles wait up to {_most(rows, [GREEDY], "long_over_short")} times as
        long as short ones; no policy makes requests without a cached prefix wait more than
        {_most(rows, list(POLICIES), "miss_over_hit")} times as long as those with one (means by rate). Against `fcfs`
        at the same rate, the longest wait is shorter in {len(shorter)} of {len(others)} comparisons with policies that
        look at prefixes or length, and longer in {len(longer)}{_named(longer)}. Those without a cached prefix wait
        {_range(rows, LPM, "miss_over_hit")} times as long as those with one under `lpm` and
        {_range(rows, HRRN, "miss_over_hit")} times under `hrrn`; long profiles
        {_range(rows, LPM, "long_over_short")} and {_range(rows, HRRN, "long_over_short")} times as long as short ones.

        λ = 0 is at its worst with {MODES[greedy["experiment"]]} at {greedy["rate"]:g} requests/s: the longer half of
        the profiles waits {_ratio(greedy, "long_over_short")} times as long as the shorter. Requests without a cached
        prefix wait {_ratio(greedy, "miss_over_hit")} times as long as those with one there, likely because most of the
        latter have waited until all shorter users were served. λ = 500 changes the longest wait,
        {number(greedy["wait_longest_s"])} s, by {words(saved, signed=True)} s. λ = 5000 has
        {number(at[LAST]["wait_longest_s"])} s and `fcfs` {number(at[FCFS]["wait_longest_s"])} s, for who goes by age
        finds less in the cache: it serves {_percent(at[GREEDY])} of the prompts with λ = 0,
        {_percent(at[PREFILLONLY])} with 500, {_percent(at[LAST])} with 5000, {_percent(at[FCFS])} with `fcfs` and
        {_percent(at[LPM])} with `lpm`.

        `lpm` can only starve others while one user's requests keep coming as fast as they are served from the cache;
        these workloads have no such user, and among those without a cached prefix the oldest is next. Runs are 500
        requests on one L4 (Llama-3.1-8B, hybrid prefilling, room for two or three profiles). In {len(late)} of
        {len(rows)} settings less than {100 * KEPT:.0f} % of the rate is served, so waits grow with the length of the
        run there."""


def _range(rows: Rows, policy: str, ratio: str) -> str:
    values = [row[ratio] for row in rows if row["policy"] == policy]
    return f"{number(min(values))} to {number(max(values))}"


def _most(rows: Rows, policies: list[str], ratio: str) -> str:
    return number(max(row[ratio] for row in rows if row["policy"] in policies))


def _ratio(row: dict[str, Any], ratio: str) -> str:
    return words(Interval(row[ratio], row[f"{ratio}_lo"], row[f"{ratio}_hi"]))


def _percent(row: dict[str, Any]) -> str:
    return f"{100 * row['hit_rate']:.0f} %"


def _named(rows: Rows) -> str:
    if not rows:
        return ""
    where = [f"{POLICIES[r['policy']][2]}, {MODES[r['experiment']]}, {r['rate']:g} requests/s" for r in rows]
    return f" ({'; '.join(where)})"


QUESTION = Question(
    name="prefix_starvation",
    place=80,
    asks="When does prefix-aware ordering starve whom?",
    metrics=("hit_rate", "throughput", "utilisation"),
    drawn=drawn,
    draw=draw,
    answer=answer,
    size=(WIDE, 4.8),
    experiments=tuple(MODES),
    measure=measure,
)
