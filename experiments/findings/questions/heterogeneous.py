"""Interactive beside batch requests: one D for all, or each its own."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from experiments.findings.by_tenant import by_tenant
from experiments.findings.lines import band, counted, in_words, signs
from experiments.findings.question import Question
from experiments.findings.table import Table, words
from experiments.output import number
from experiments.plotting import BLUE, GREEN, ORANGE, PURPLE, RED, SKY, WIDE
from experiments.tables import Rows

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LOOSE, TIGHT, OWN = "sloweave:tpot=50", "sloweave:tpot=10", "sloweave"
EDF, FAIR, LANES, SHARED = "edf+deadline-fill", "fair+deadline-fill", "two-lane+deadline-fill", "vllm-default"
STYLES = {
    LOOSE: ("D = 50 ms for all", ORANGE, "s", "-"),
    TIGHT: ("D = 10 ms for all", RED, "v", "-"),
    OWN: ("each its own D", BLUE, "o", "-"),
    EDF: ("own D, edf", GREEN, "^", "--"),
    FAIR: ("own D, fair", PURPLE, "D", "--"),
    LANES: ("own D, two-lane", SKY, "x", "--"),
    SHARED: ("shared budget of 2048", "0.35", "P", ":"),
}
CLASSES = {"interactive": "interactive: 10 ms, TTFT 0.5 s", "batch": "batch: 50 ms, TTFT 2 s"}


def with_shares(table: Table) -> Table:
    """Return the rows with the share of interactive requests, read from their workload."""
    found = []
    for row in table:
        share = re.search(r"interactive_share=([0-9.]+)", str(row["workload"]))
        assert share is not None
        found.append(row | {"share": float(share[1])})
    return Table(found)


def drawn(table: Table) -> Rows:
    """Return attainment, goodput, mean gap and P99 TTFT by class, by rate, share and policy."""
    names = [
        *(f"{what}_{c}" for c in CLASSES for what in ("attainment", "goodput")),
        *(f"{what}_{c}_ms" for c in CLASSES for what in ("tpot_mean", "ttft_p99")),
        "goodput",
    ]
    return with_shares(table).means(("rate", "share", "policy"), names)


def draw(rows: Rows, figure: Figure) -> None:
    """Draw a row per class and a column per rate: the share of its requests that meet their objectives."""
    rates = list(dict.fromkeys(row["rate"] for row in rows))
    axes = figure.subplots(len(CLASSES), len(rates), sharex=True, sharey=True, squeeze=False)
    for line, (tenant, title) in zip(axes, CLASSES.items(), strict=True):
        for axis, rate in zip(line, rates, strict=True):
            for policy, (label, colour, marker, dashes) in STYLES.items():
                own = [
                    {**row, "percent": 100 * row["share"]}
                    for row in rows
                    if (row["rate"], row["policy"]) == (rate, policy)
                ]
                name = f"attainment_{tenant}"
                band(axis, own, "percent", name, colour, label, times=100, marker=marker, linestyle=dashes)
            axis.set_title(f"{title}\n{rate} requests/s" if tenant == "interactive" else title, fontsize=8.5)
            axis.set_ylim(-4, 104)
        line[0].set_ylabel("objectives met (%)")
    for axis in axes[-1]:
        axis.set_xlabel("requests that are interactive (%)")
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4)


def answer(table: Table) -> str:
    """Return the answer."""
    table = with_shares(table)
    settings = [(rate, share) for rate in table.values("rate") for share in table.values("share")]

    def at(policy: str, setting: tuple[float, float]) -> Table:
        return table.where(policy=policy, rate=setting[0], share=setting[1])

    def against(a: str, b: str, metric: str) -> str:
        return in_words(at(a, s).minus(at(b, s), metric) for s in settings)

    few = min(table.values("share"))
    busy, over = table.values("rate")[1:]

    def mean(policy: str, rate: float, metric: str) -> str:
        return words(at(policy, (rate, few)).estimate(metric))

    def change(a: str, b: str, rate: float, metric: str, times: float = 1.0) -> str:
        return words(at(a, (rate, few)).minus(at(b, (rate, few)), metric), signed=True, times=times)

    def met(rows: Table, tenant: str) -> str:
        return words(rows.estimate(f"attainment_{tenant}"), times=100)

    same = sum(at(OWN, s).minus(at(TIGHT, s), f"attainment_{c}").mean == 0 for s in settings for c in CLASSES)
    largest = max(abs(at(OWN, s).minus(at(TIGHT, s), "goodput").mean or 0.0) for s in settings)
    most = max(table.values("share"))
    crowded = {p: at(p, (over, most)) for p in (OWN, EDF, FAIR)}
    longer, better = (
        signs(at(OWN, s).minus(at(LOOSE, s), metric) for s in settings)
        for metric in ("ttft_p99_batch_ms", "attainment_batch")
    )
    cost = f"""
        One tight decode shortens the step of all that decode beside it. On `mixed`, with the paper's cost model and
        each request's own D in place of 50 ms for all, the batch's P99 TTFT is higher in {longer[0]} of
        {len(settings)} combinations of rate and share, and the share of the batch that meets its objectives is lower in
        {better[1]}. With {100 * few:g} % interactive requests
        at {busy} requests/s the mean gap of batch requests is {mean(OWN, busy, "tpot_mean_batch_ms")} ms with own
        objectives, {mean(TIGHT, busy, "tpot_mean_batch_ms")} ms with D = 10 ms for all and
        {mean(LOOSE, busy, "tpot_mean_batch_ms")} ms with 50 ms. Against 50 ms for all, own objectives change the
        batch's P99 TTFT there by {change(OWN, LOOSE, busy, "ttft_p99_batch_ms")} ms, and its goodput by
        {change(OWN, LOOSE, busy, "goodput_batch")} requests/s, which also counts how much later the last request
        finishes; at {over} requests/s, more than can be served, by {change(OWN, LOOSE, over, "ttft_p99_batch_ms")} ms
        and {change(OWN, LOOSE, over, "goodput_batch")} requests/s. Goodput of interactive requests is
        {against(OWN, LOOSE, "goodput_interactive")}, and that of both {against(OWN, LOOSE, "goodput")}."""
    own = f"""
        A D of each request's own against 10 ms for all: goodput of both classes together is
        {against(OWN, TIGHT, "goodput")}, by {number(largest)} requests/s where they differ most, and in {same} of
        {len(settings) * len(CLASSES)} cases of a class in a setting the same share meets its objectives. A likely
        reason is that there is nearly always an interactive request that decodes, and the earliest deadline is then its
        own."""
    order = f"""
        The table counts, for other orders with the same deadlines, the settings in which goodput is told apart from
        that of first come first served, better / worse. With {100 * most:g} % interactive requests
        at {over} requests/s {met(crowded[EDF], "batch")} % of the batch meet their objectives with `edf` and
        {met(crowded[OWN], "batch")} % without; of the interactive requests {met(crowded[FAIR], "interactive")} % do
        with `fair`, which gives both tenants equal shares, and {met(crowded[OWN], "interactive")} % without."""
    shared = f"""
        Under a shared budget of 2048 tokens {met(at(SHARED, (busy, few)), "interactive")} % of the interactive requests
        and {met(at(SHARED, (busy, few)), "batch")} % of the batch meet their objectives at {busy} requests/s with
        {100 * few:g} % interactive requests."""
    lines = [f"| of {len(settings)} settings | interactive | batch | both |", "| --- | --- | --- | --- |"]
    for policy in (EDF, FAIR, LANES):
        counts = [
            counted(at(policy, s).minus(at(OWN, s), metric) for s in settings)
            for metric in ("goodput_interactive", "goodput_batch", "goodput")
        ]
        lines.append(f"| `{policy}` | {' | '.join(counts)} |")
    return "\n\n".join([cost, own, order, "\n".join(lines), shared])


QUESTION = Question(
    name="heterogeneous",
    place=30,
    asks="10 ms interactive beside 50 ms batch: what does one tight decode cost the others?",
    metrics=("goodput",),
    drawn=drawn,
    draw=draw,
    answer=answer,
    size=(WIDE, 4.6),
    measure=by_tenant,
)
