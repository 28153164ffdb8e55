"""Short prefill-only requests: several per step, or one by one."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from costmodels.io import load_cost_model
from experiments.findings.question import Question
from experiments.findings.table import Table, words
from experiments.output import number
from experiments.plotting import BLUE, GREEN, ORANGE, WIDE
from experiments.tables import Rows
from sim.stats import Interval

if TYPE_CHECKING:
    from matplotlib.figure import Figure

GPUS = {"l4": "L4", "h100": "H100"}
MODEL = {"l4": "prefill:llm=llama-3.1-8b,gpu=l4", "h100": "prefill:llm=llama-3.1-8b,gpu=h100-sxm"}
ONE = "fcfs+full"
BATCHED = {
    "fcfs+token-budget:budget=2048": ("2,048, in chunks", GREEN),
    "fcfs+token-budget:budget=8192": ("8,192", ORANGE),
    "fcfs+token-budget:budget=32768": ("32,768", BLUE),
}
METRICS = {"throughput": "throughput", "mean_jct": "jct_mean_ms", "p99_jct": "jct_p99_ms"}
BETTER = {"throughput": 1, "mean_jct": -1, "p99_jct": -1}


def _tokens(workload: str) -> int:
    """Return the middle of a workload's prompt lengths."""
    low, high = re.findall(r"clip=(\d+)-(\d+)", workload)[0]
    return (int(low) + int(high)) // 2


def _is_at_once(workload: str) -> bool:
    return "all-at-once" in workload


def drawn(table: Table) -> Rows:
    """Return, by GPU, budget and prompt length, throughput all at once and JCT at 80 % load, against one by one."""
    rows = []
    for gpu in GPUS:
        alone = table.where(experiment=f"batching_prefill_only_{gpu}", policy=ONE)
        for policy, (budget, _) in BATCHED.items():
            chunked = "_chunked" if budget.endswith("chunks") else ""
            several = table.where(experiment=f"batching_prefill_only_{gpu}{chunked}", policy=policy)
            for metric, column in METRICS.items():
                for workload in several.values("workload"):
                    if _is_at_once(workload) != (metric == "throughput"):
                        continue
                    ours, theirs = several.where(workload=workload), alone.where(workload=workload)
                    gain = ours.minus(theirs, column)
                    one = theirs.estimate(column).mean or 0.0
                    rows.append(
                        {
                            "gpu": gpu,
                            "budget": budget,
                            "metric": metric,
                            "tokens": _tokens(workload),
                            "one_by_one": one,
                            "gain_percent": 100 * (gain.mean or 0.0) / one,
                            "gain_percent_lo": 100 * (gain.lo or 0.0) / one,
                            "gain_percent_hi": 100 * (gain.hi or 0.0) / one,
                        }
                    )
    return rows


def draw(rows: Rows, figure: Figure) -> None:
    """Draw a row per GPU and a panel per metric: the change against one by one over the prompt length."""
    grid = figure.subplots(len(GPUS), len(METRICS), sharex=True)
    titles = {
        "throughput": "Throughput, all at once",
        "mean_jct": "Mean JCT, 80 % load",
        "p99_jct": "P99 JCT, 80 % load",
    }
    for axes, (gpu, name) in zip(grid, GPUS.items(), strict=True):
        for axis, metric in zip(axes, METRICS, strict=True):
            for budget, colour in BATCHED.values():
                own = [r for r in rows if (r["gpu"], r["budget"], r["metric"]) == (gpu, budget, metric)]
                x = [row["tokens"] for row in own]
                axis.plot(x, [row["gain_percent"] for row in own], "o-", color=colour, markersize=3, label=budget)
                lo, hi = ([row[f"gain_percent_{end}"] for row in own] for end in ("lo", "hi"))
                axis.fill_between(x, lo, hi, color=colour, alpha=0.2, linewidth=0)
            axis.axhline(0, color="0.4", linewidth=0.8)
            axis.set_xscale("log", base=2)
            axis.set_xticks([128, 512, 2048, 16384], ["128", "512", "2k", "16k"])
            axis.set_yscale("symlog", linthresh=10)
            ticks = [0, 10, 50, 200] if metric == "throughput" else [-50, -10, 0, 10, 50]
            axis.set_yticks(ticks, [f"{tick:+d}" if tick else "0" for tick in ticks])
            axis.minorticks_off()
            axis.tick_params(labelsize=7)
        axes[0].set_ylabel(f"{name}: change against\none by one (%)", fontsize=8)
    for axis, title in zip(grid[0], titles.values(), strict=True):
        axis.set_title(title, fontsize=9)
    for axis in grid[-1]:
        axis.set_xlabel("prompt tokens (within 25 %)", fontsize=8)
    handles, labels = grid[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, title="token budget of a step")


def _fixed(gpu: str) -> str:
    """Return the tokens that take as long to compute as the weights to read, and the host's time per step."""
    cost = load_cost_model(MODEL[gpu]).to_dict()
    return (
        f"{round(cost['weights_fs'] / cost['token_fs'])} tokens, and the host takes {cost['host_fs'] / 10**12:.1f} ms"
    )


def answer(table: Table) -> str:
    """Return the answer."""
    rows = drawn(table)

    def lengths(gpu: str, metric: str, better: bool) -> str:
        """Return the lengths at which batching is better, or worse, by intervals that exclude zero."""
        sign = BETTER[metric] * (1 if better else -1)
        own = [r for r in rows if (r["gpu"], r["budget"], r["metric"]) == (gpu, "8,192", metric)]
        told = [r["tokens"] for r in own if min(sign * r["gain_percent_lo"], sign * r["gain_percent_hi"]) > 0]
        every = [r["tokens"] for r in own]
        if not told:
            return "at no length"
        if told == every[: len(told)]:
            return f"up to {told[-1]:,} tokens"
        return f"from {told[0]:,}" if told == every[-len(told) :] else f"at {', '.join(map(str, told))}"

    def change(gpu: str, metric: str, tokens: int, budget: str = "8,192") -> str:
        [row] = [r for r in rows if (r["gpu"], r["budget"], r["metric"], r["tokens"]) == (gpu, budget, metric, tokens)]
        gain = Interval(row["gain_percent"], row["gain_percent_lo"], row["gain_percent_hi"])
        return f"{words(gain, signed=True)} %"

    both = [r for r in rows if r["metric"] == "mean_jct" and r["tokens"] >= 2048]
    worse = sum(row["gain_percent_lo"] > 0 for row in both)
    return f"""
        It depends on the prompt's length: with up to 8,192 tokens per step against one request per step, at 80 % of the
        load that the latter can serve, mean JCT is lower {lengths("l4", "mean_jct", True)} on an L4 and
        {lengths("h100", "mean_jct", True)} on an H100, and higher {lengths("l4", "mean_jct", False)} and
        {lengths("h100", "mean_jct", False)}, by intervals that exclude zero; the crossing lies between. P99 JCT is
        lower {lengths("l4", "p99_jct", True)} and {lengths("h100", "p99_jct", True)}, higher
        {lengths("l4", "p99_jct", False)} and {lengths("h100", "p99_jct", False)}.

        At 128 tokens batching changes throughput, with all requests at hand, by {change("l4", "throughput", 128)} on an
        L4 and {change("h100", "throughput", 128)} on an H100, and mean JCT by {change("l4", "mean_jct", 128)} and
        {change("h100", "mean_jct", 128)}; at 1,024, throughput by {change("l4", "throughput", 1024)} and
        {change("h100", "throughput", 1024)}, mean JCT by {change("l4", "mean_jct", 1024)} and
        {change("h100", "mean_jct", 1024)}. What a step costs whatever is in it is shared: reading the weights takes as
        long as computing {_fixed("l4")} per step on an L4; on an H100 it is {_fixed("h100")}. What is not
        shared everybody in the step waits for: from 2,048 tokens on mean JCT is higher in {worse} of {len(both)}
        settings, where PrefillOnly's rule of one request per step is the better one. In chunks of 2,048, whose
        attention is dearer, throughput at 16,384 tokens changes by
        {change("l4", "throughput", 16384, "2,048, in chunks")} and
        {change("h100", "throughput", 16384, "2,048, in chunks")}.

        Llama-3.1-8B by data sheet and efficiencies, first come first served, no shared prefixes, memory without bounds,
        lengths within 25 % of those named. A budget of 32,768 differs from 8,192 in mean JCT by at most
        {number(_furthest(rows))} percentage points. Nearer to saturation, which was not run, throughput should count
        for more."""


def _furthest(rows: Rows) -> float:
    """Return by how much the two larger budgets differ at most, in percentage points of mean JCT."""
    by = {(r["gpu"], r["tokens"], r["budget"]): r["gain_percent"] for r in rows if r["metric"] == "mean_jct"}
    return max(abs(float(by[gpu, n, "32,768"] - by[gpu, n, "8,192"])) for gpu, n, budget in by if budget == "8,192")


QUESTION = Question(
    name="batching_prefill_only",
    place=120,
    asks="Batching short prefill-only requests, or one by one?",
    metrics=("throughput", "jct_mean_ms", "jct_p99_ms", "batch_mean", "utilisation"),
    drawn=drawn,
    draw=draw,
    answer=answer,
    size=(WIDE, 4.6),
    experiments=tuple(f"batching_prefill_only_{gpu}{kind}" for gpu in GPUS for kind in ("", "_chunked")),
)
