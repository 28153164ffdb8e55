"""SLOWeave against the policies that it was not compared with, on public traces and measured kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from costmodels.io import load_cost_model
from experiments.findings.question import Question
from experiments.findings.table import Table, words
from experiments.output import number
from experiments.plotting import WIDE
from experiments.tables import Rows
from policies.units import MS, NS
from sim.metrics import met
from sim.objectives import Objectives
from sim.records import FINISHED
from sim.stats import Interval
from sim.store import StoredRun

if TYPE_CHECKING:
    from matplotlib.figure import Figure

POLICIES = {
    "sloweave": "SLOWeave",
    "fcfs+deadline-slots:slots=4": "SLOWeave, 4 slots",
    "qoserve+qoserve": "QoServe",
    "fcfs+p-pas:high=8192": "P-PAS",
    "sarathi": "Sarathi, 512",
    "vllm-default": "vLLM, 2048",
    "fcfs+token-budget:budget=2048,threshold=512": "vLLM, 2048,\nthreshold 512",
}
"""As they are run, and as they are called in the picture."""

TRACES = {"code": "Azure code", "conv": "Azure conversations", "mooncake": "Mooncake", "ragpulse": "RAGPulse"}
"""By the name in the experiment."""

METRICS = ("goodput", "goodput_by_mean_gap")
EXPERIMENTS = tuple(f"contenders_{trace}_{gpu}" for trace in TRACES for gpu in ("h100", "a100"))
SLOWEAVE, SLOTS, SARATHI = "sloweave", "fcfs+deadline-slots:slots=4", "sarathi"
OTHERS = {
    "qoserve+qoserve": "QoServe",
    "fcfs+p-pas:high=8192": "P-PAS",
    "vllm-default": "vLLM",
    "fcfs+token-budget:budget=2048,threshold=512": "vLLM with a threshold",
}

CLOSE = 0.02
"""Less than the best by this share is close to it."""


def measure(run: StoredRun) -> dict[str, Any]:
    """Return goodput by the mean gap of a request, as vLLM's benchmark has it, in place of its P99 gap."""
    requests = run.requests
    finished = requests["outcome"] == FINISHED
    seconds = (requests["finished_ns"][finished].max() - requests["arrival_ns"].min()) / NS
    given = run.info["resolved"]["objectives"]
    objectives = Objectives(ttft=given["ttft"], tpot=given["tpot_p99"])
    return {"goodput_by_mean_gap": float(met(requests, objectives).sum() / seconds)}


def drawn(table: Table) -> Rows:
    """Return goodput by setting and policy, and how far each is behind the best there, paired by seed."""
    rows: Rows = []
    for experiment in EXPERIMENTS:
        _, trace, gpu = experiment.split("_")
        for rate in table.where(experiment=experiment).values("rate"):
            at = table.where(experiment=experiment, rate=rate)
            setting = {"trace": trace, "gpu": gpu, "rate": rate}
            found: dict[str, dict[str, Any]] = {policy: {**setting, "policy": policy} for policy in POLICIES}
            for metric in METRICS:
                own = {policy: at.where(policy=policy) for policy in POLICIES}
                means = {policy: own[policy].estimate(metric) for policy in POLICIES}
                best = max(POLICIES, key=lambda policy: means[policy].mean or 0.0)
                for policy, row in found.items():
                    row[metric], row[f"{metric}_lo"], row[f"{metric}_hi"] = means[policy]
                    behind = own[best].minus(own[policy], metric)
                    row[f"{metric}_behind"], row[f"{metric}_behind_lo"], row[f"{metric}_behind_hi"] = behind
                    row[f"{metric}_of_best"] = row[metric] / (means[best].mean or 1.0)
            rows += found.values()
    return rows


def draw(rows: Rows, figure: Figure) -> None:
    """Draw a matrix: a row per policy, a column per trace, GPU and rate; bold is not told apart from the best."""
    axis = figure.subplots()
    settings = list(dict.fromkeys((row["trace"], row["gpu"], row["rate"]) for row in rows))
    policies = list(POLICIES)
    at = {(row["trace"], row["gpu"], row["rate"], row["policy"]): row for row in rows}
    share = [[at[*setting, policy]["goodput_of_best"] for setting in settings] for policy in policies]
    image = axis.imshow(share, cmap="Blues", vmin=0, vmax=1.25, aspect="auto")
    for i, policy in enumerate(policies):
        for j, setting in enumerate(settings):
            row = at[*setting, policy]
            half = (row["goodput_hi"] - row["goodput_lo"]) / 2
            axis.text(
                j,
                i,
                f"{_short(row['goodput'])}\n±{_short(half)}",
                ha="center",
                va="center",
                fontsize=5.5,
                weight="normal" if row["goodput_behind_lo"] > 0 else "bold",
                color="white" if share[i][j] > 0.7 else "black",
            )
    axis.set_yticks(range(len(policies)), list(POLICIES.values()), fontsize=8)
    axis.set_xticks(range(len(settings)), [f"{rate:g}" for _, _, rate in settings], fontsize=7)
    axis.set_xlabel("requests/s offered (bold: not told apart from the best)")
    axis.grid(visible=False)
    axis.tick_params(length=0)
    for spine in axis.spines.values():
        spine.set_visible(False)
    for j in range(0, len(settings), 2):
        axis.text(j + 0.5, -0.58, settings[j][1].upper(), ha="center", va="bottom", fontsize=7)
        axis.axvline(j - 0.5, color="white", linewidth=4 if j % 4 == 0 else 1.5)
    for j in range(0, len(settings), 4):
        axis.text(j + 1.5, -0.88, TRACES[settings[j][0]], ha="center", va="bottom", fontsize=8)
    figure.colorbar(
        image,
        ax=axis,
        label="share of the best goodput",
        boundaries=[k / 50 for k in range(51)],
        ticks=[0, 0.5, 1],
        fraction=0.03,
        pad=0.01,
    )


def _short(value: float) -> str:
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def answer(table: Table) -> str:
    """Return the answer."""
    rows = drawn(table)
    settings = len(rows) // len(POLICIES)
    ours, slots, sarathi = (_of(rows, policy) for policy in (SLOWEAVE, SLOTS, SARATHI))
    behind = [row for row in ours if row["goodput_behind_lo"] > 0]
    largest = max(behind, key=lambda row: row["goodput_behind"] / row["goodput"], default=None)
    gap = "" if largest is None else f", by most {_where(largest)}: {_words(largest)} requests/s"
    worst = min(sarathi, key=lambda row: row["goodput_of_best"])
    close = f"within {100 * CLOSE:.0f} % of the best"
    alone = {gpu: _alone_ms(gpu) for gpu in ("h100", "a100")}
    turned_away = max(row["rejected"] for row in table)
    return f"""
        By its own metric, the P99 of each request's gaps, SLOWeave is {close} of seven policies in {_close(ours)} of
        {settings} settings and has {_least(ours)} of it at least; it is told apart from the best in {len(behind)}{gap}.
        With four slots it is {close} in {_close(slots)} and has {_least(slots)} at least. Sarathi's 512 tokens are
        {close} in {_close(sarathi)}, and have {_least(sarathi)} of it {_where(worst)}. The others, by settings {close}
        and the least share of it: {_listed(rows, "goodput")}.

        The metric matters. With the mean of each request's gaps in place of their P99, which vLLM's benchmark calls
        TPOT, the same runs give {_listed(rows, "goodput_by_mean_gap")}; SLOWeave
        {_close(ours, "goodput_by_mean_gap")} and {_least(ours, "goodput_by_mean_gap")}, Sarathi
        {_close(sarathi, "goodput_by_mean_gap")} and {_least(sarathi, "goodput_by_mean_gap")}. Likely reasons: QoServe
        lets what early tokens were early by be used up later, and where a budget is large single steps are long; 2,048
        tokens of a prompt alone take {alone["h100"]:.0f} ms on the H100 and {alone["a100"]:.0f} ms on the A100.

        The objectives are 50 ms, and 2 s for the first token (Mooncake 5 s); only SLOWeave and QoServe are told them.
        Budgets are published defaults, but 8,192 at most for P-PAS, and a threshold of 512; tuned ones are in
        [costmodels.md](costmodels.md). Arrivals are Poisson, at about 0.6 and 0.9 of what `vllm-default` serves when
        all is there at once, and prefixes are cached in 24,576 blocks. Requests of more than 16,384 tokens,
        {turned_away:.0f} of Mooncake's 300, are turned away, for no longer ones were measured."""


def _alone_ms(gpu: str) -> float:
    return load_cost_model(f"{gpu}-llama3.1-8b").step_ns(0, 0, 0, 1, 2048, 2048 * 2049 // 2) / MS


def _of(rows: Rows, policy: str) -> Rows:
    return [row for row in rows if row["policy"] == policy]


def _close(rows: Rows, metric: str = "goodput") -> int:
    return sum(row[f"{metric}_of_best"] >= 1 - CLOSE for row in rows)


def _least(rows: Rows, metric: str = "goodput") -> str:
    return f"{number(100 * min(row[f'{metric}_of_best'] for row in rows))} %"


def _listed(rows: Rows, metric: str) -> str:
    own = {policy: _of(rows, policy) for policy in OTHERS}
    return ", ".join(f"{called} {_close(own[p], metric)} and {_least(own[p], metric)}" for p, called in OTHERS.items())


def _where(row: dict[str, Any]) -> str:
    return f"on {TRACES[row['trace']]} at {row['rate']:g} requests/s on {row['gpu'].upper()}"


def _words(row: dict[str, Any]) -> str:
    return words(Interval(row["goodput_behind"], row["goodput_behind_lo"], row["goodput_behind_hi"]))


QUESTION = Question(
    name="contenders",
    place=70,
    asks="How does SLOWeave do against QoServe, P-PAS, Sarathi and vLLM on public traces?",
    metrics=("goodput", "slo_attainment", "ttft_p99_ms", "tpot_p99_ms", "late_gap_share", "rejected", "preemptions"),
    drawn=drawn,
    draw=draw,
    answer=answer,
    size=(WIDE, 3.6),
    experiments=EXPERIMENTS,
    measure=measure,
)
