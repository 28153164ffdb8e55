"""PrefillOnly's calibrated ordering with SLOWeave's deadline-filling chunks, which neither paper combines."""

from __future__ import annotations

from typing import TYPE_CHECKING

from experiments.findings.question import Question
from experiments.findings.table import Table, words
from experiments.plotting import BLUE, GREEN, ORANGE, WIDE
from experiments.tables import Rows
from sim.stats import Interval

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ORDERINGS = {
    "fcfs": "fcfs",
    "srjf-static": "static",
    "srjf-calibrated:lam=0": "λ = 0",
    "srjf-calibrated:lam=500": "λ = 500",
    "srjf-calibrated:lam=6500": "λ = 6500",
}
CALIBRATED = list(ORDERINGS)[2:]
FILL, FIXED = "deadline-fill", "fixed:chunk=512"
CHUNKS = {
    "whole": ("whole prompts", ORANGE, "s"),
    FIXED: ("512 tokens", GREEN, "^"),
    FILL: ("filling", BLUE, "o"),
}
"""What chunks are called, their colour and their mark."""

MOONCAKE, RAGPULSE = "calibrated_filling_mooncake", "calibrated_filling_ragpulse"
TRACES = {
    MOONCAKE: ("Mooncake", "fixed:chunk=8192"),
    RAGPULSE: ("RAGPulse", "full"),
}
"""By experiment, what the trace is called, and the chunking that leaves prompts whole."""

METRICS = ("goodput", "ttft_mean_ms", "ttft_p99_ms", "hit_rate", "late_gap_share")
SHOWN = {"goodput": "goodput (requests/s)", "ttft_mean_ms": "mean TTFT (s)", "ttft_p99_ms": "P99 TTFT (s)"}


def drawn(table: Table) -> Rows:
    """Return means by trace, rate, ordering and chunking, and differences to fcfs with the same chunking."""
    rows: Rows = []
    for experiment, (_, whole) in TRACES.items():
        for rate in table.where(experiment=experiment).values("rate"):
            at = table.where(experiment=experiment, rate=rate)
            for ordering in ORDERINGS:
                for chunks in CHUNKS:
                    chunking = whole if chunks == "whole" else chunks
                    own, fcfs = (at.where(policy=f"{order}+{chunking}") for order in (ordering, "fcfs"))
                    row = {"experiment": experiment, "rate": rate, "ordering": ordering, "chunks": chunks}
                    for metric in METRICS:
                        row[metric], row[f"{metric}_lo"], row[f"{metric}_hi"] = own.estimate(metric)
                        change = own.minus(fcfs, metric)
                        row[f"{metric}_change"], row[f"{metric}_change_lo"], row[f"{metric}_change_hi"] = change
                    rows.append(row)
    return rows


def draw(rows: Rows, figure: Figure) -> None:
    """Draw each trace at its higher rate: goodput and TTFT over the ordering, by chunks."""
    axes = figure.subplots(len(TRACES), len(SHOWN), sharex=True)
    for line, (experiment, (called, _)) in zip(axes, TRACES.items(), strict=True):
        rate = max(row["rate"] for row in rows if row["experiment"] == experiment)
        for axis, (metric, label) in zip(line, SHOWN.items(), strict=True):
            for shift, (chunks, (name, colour, mark)) in zip((-0.15, 0, 0.15), CHUNKS.items(), strict=True):
                own = [r for r in rows if (r["experiment"], r["rate"], r["chunks"]) == (experiment, rate, chunks)]
                x = [at + shift for at in range(len(own))]
                scale = 1000 if metric.endswith("_ms") else 1
                middle = [row[metric] / scale for row in own]
                low = [(row[metric] - row[f"{metric}_lo"]) / scale for row in own]
                high = [(row[f"{metric}_hi"] - row[metric]) / scale for row in own]
                axis.errorbar(x, middle, [low, high], fmt=mark, color=colour, label=name)
            axis.set_ylim(bottom=0)
            axis.set_ylabel(label)
            axis.set_xticks(range(len(ORDERINGS)), list(ORDERINGS.values()), rotation=35, ha="right", fontsize=8)
        line[1].set_title(f"{called}, {rate:g} requests/s")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, title="chunks")


def answer(table: Table) -> str:
    """Return the answer."""
    rows = drawn(table)
    filled = [row for row in rows if row["chunks"] == FILL and row["ordering"] in CALIBRATED]
    static = [_static(table, experiment, rate, "ttft_mean_ms") for experiment, rate in _settings(rows)]
    hits = [_static(table, experiment, rate, "hit_rate") for experiment, rate in _settings(rows)]
    served = [row["hit_rate"] for row in rows]
    return f"""
        With deadline-filling chunks, calibrated ordering in place of `fcfs` makes mean TTFT shorter in
        {_count(filled, "ttft_mean_ms", -1)} of {len(filled)} settings and longer in
        {_count(filled, "ttft_mean_ms", 1)}; P99 TTFT is shorter in {_count(filled, "ttft_p99_ms", -1)} and longer in
        {_count(filled, "ttft_p99_ms", 1)}, goodput higher in {_count(filled, "goodput", 1)} and lower in
        {_count(filled, "goodput", -1)}, by intervals that exclude zero. {_example(rows, MOONCAKE)}
        {_example(rows, RAGPULSE)}

        What the chunks change: under λ = 6500 at the higher rates, filling in place of whole prompts gives
        {_gain(table, MOONCAKE, "whole")} requests/s of goodput on Mooncake and {_gain(table, RAGPULSE, "whole")} on
        RAGPulse, in place of chunks of 512 tokens {_gain(table, MOONCAKE, FIXED)} and {_gain(table, RAGPULSE, FIXED)}.
        With any ordering {max(_late(rows, FILL)):.2g} % of the gaps or fewer are late when filled,
        {min(_late(rows, "whole")):.2g} % or more with whole prompts. What an ordering saves depends on the
        chunks: λ = 0 changes mean TTFT on RAGPulse by {_saved(rows, FIXED)} ms with chunks of 512 tokens, by
        {_saved(rows, "whole")} ms with whole prompts and by {_saved(rows, FILL)} ms with filled ones; the less waiting
        there is, the less is to be saved.

        Calibration itself, reading the cache again while requests wait, changes mean TTFT against `srjf-static` with
        filled chunks in {sum(i.excludes_zero for i in static)} of {len(static)} settings, and the hit rate in
        {sum(i.excludes_zero for i in hits)}. The cache serves {100 * min(served):.1f} to {100 * max(served):.1f} % of
        prompts whatever the ordering; where more is shared it may be otherwise. Runs are 400 requests of each trace in
        their order, with Poisson arrivals at about 0.7 and 1.0 of what `vllm-default` serves when all is there at once,
        on an H100 (Llama-3.1-8B, 16,384 KV blocks), with objectives of 50 ms and of 5 s (RAGPulse 2 s) for the first
        token. Of Mooncake, requests of more than 16,384 tokens are turned away, and whole prompts are at most 8,192
        tokens per step, for no longer ones were measured. λ = 6500 is PrefillOnly's 500 times how much faster an H100
        prefills than an L4."""


def _settings(rows: Rows) -> list[tuple[str, float]]:
    return list(dict.fromkeys((row["experiment"], row["rate"]) for row in rows))


def _static(table: Table, experiment: str, rate: float, metric: str) -> Interval:
    at = table.where(experiment=experiment, rate=rate)
    return at.where(policy=f"{CALIBRATED[0]}+{FILL}").minus(at.where(policy=f"srjf-static+{FILL}"), metric)


def _count(rows: Rows, metric: str, sign: int) -> int:
    lo, hi = f"{metric}_change_lo", f"{metric}_change_hi"
    return sum(row[lo] > 0 if sign > 0 else row[hi] < 0 for row in rows)


def _at(rows: Rows, experiment: str, ordering: str, chunks: str) -> dict[str, float]:
    own = [row for row in rows if (row["experiment"], row["ordering"], row["chunks"]) == (experiment, ordering, chunks)]
    return max(own, key=lambda row: row["rate"])


def _change(row: dict[str, float], metric: str) -> str:
    return words(Interval(*(row[f"{metric}_change{end}"] for end in ("", "_lo", "_hi"))), signed=True)


def _example(rows: Rows, experiment: str) -> str:
    fcfs, none, much = (_at(rows, experiment, order, FILL) for order in ("fcfs", CALIBRATED[0], CALIBRATED[-1]))
    return (
        f"On {TRACES[experiment][0]} at {fcfs['rate']:g} requests/s `fcfs` has a mean of {fcfs['ttft_mean_ms']:.0f} ms "
        f"and a P99 of {fcfs['ttft_p99_ms']:,.0f} ms; λ = 6500 changes them by {_change(much, 'ttft_mean_ms')} and "
        f"{_change(much, 'ttft_p99_ms')} ms, λ = 0 by {_change(none, 'ttft_mean_ms')} and "
        f"{_change(none, 'ttft_p99_ms')} ms."
    )


def _gain(table: Table, experiment: str, chunks: str) -> str:
    own = table.where(experiment=experiment)
    at = own.where(rate=max(own.values("rate")))
    others = TRACES[experiment][1] if chunks == "whole" else chunks
    filled, other = (at.where(policy=f"{CALIBRATED[-1]}+{chunking}") for chunking in (FILL, others))
    return words(filled.minus(other, "goodput"), signed=True)


def _late(rows: Rows, chunks: str) -> list[float]:
    return [100 * row["late_gap_share"] for row in rows if row["chunks"] == chunks]


def _saved(rows: Rows, chunks: str) -> str:
    return _change(_at(rows, RAGPULSE, CALIBRATED[0], chunks), "ttft_mean_ms")


QUESTION = Question(
    name="calibrated_filling",
    place=10,
    asks="What does calibrated ordering add to deadline-filling chunks?",
    metrics=(*METRICS, "slo_attainment", "rejected"),
    drawn=drawn,
    draw=draw,
    answer=answer,
    size=(WIDE, 4.4),
    experiments=tuple(TRACES),
)
