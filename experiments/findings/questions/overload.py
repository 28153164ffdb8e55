"""More requests than can be served: admission control, aging and orderings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from experiments.findings.by_tenant import by_tenant
from experiments.findings.lines import band, in_words
from experiments.findings.question import Question
from experiments.findings.table import Table, words
from experiments.plotting import BLUE, GREEN, ORANGE, PURPLE, RED, SKY, WIDE
from experiments.tables import Rows
from sim.store import StoredRun

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PLAIN = "sloweave"
LIMIT, SATURATION = "sloweave+queue-limit:limit=40", "sloweave+decode-saturation"
AGING, EDF = "sloweave:age=500,overrun=25", "edf+deadline-fill"
EDF_LIMIT, QOSERVE = "edf+deadline-fill+queue-limit:limit=40", "qoserve+deadline-fill"
STYLES = {
    PLAIN: ("sloweave", BLUE, "o", "-"),
    LIMIT: ("+ queue limit", SKY, "s", "-"),
    SATURATION: ("+ decode saturation", "0.35", "x", ":"),
    AGING: ("+ aging", RED, "v", "-"),
    EDF: ("edf", GREEN, "^", "--"),
    EDF_LIMIT: ("edf + queue limit", ORANGE, "P", "--"),
    QOSERVE: ("qoserve ordering", PURPLE, "D", "--"),
}
LONG_LIMIT, STRICT = "sloweave+queue-limit:limit=12", "sloweave+decode-saturation:fraction=0.7"
OF_DECODES = {
    PLAIN: STYLES[PLAIN],
    LONG_LIMIT: STYLES[LIMIT],
    SATURATION: STYLES[SATURATION],
    STRICT: ("+ decode saturation 0.7", "black", "*", ":"),
}
MIXED, DECODES, AT_ONCE = "overload", "overload_decodes", "overload_capacity"


def measured(run: StoredRun) -> dict[str, Any]:
    """Return goodput by class."""
    return {name: value for name, value in by_tenant(run).items() if name.startswith("goodput_")}


def loaded(table: Table) -> Table:
    """Return the runs with a rate, with ``load``, in multiples of what is served at once, and rejections as a share."""
    workloads = table.where(experiment=AT_ONCE).values("trace")
    served = {
        experiment: table.where(experiment=AT_ONCE, trace=trace).estimate("throughput").mean
        for experiment, trace in zip((MIXED, DECODES), workloads, strict=True)
    }
    return Table(
        [
            row | {"load": row["rate"] / served[row["experiment"]], "rejections": row["rejected"] / row["arrived"]}
            for row in table
            if row["experiment"] != AT_ONCE
        ]
    )


PLAIN_LIMIT = 40

DRAWN = ("goodput", "goodput_interactive", "goodput_batch", "longest_wait_ms", "ttft_p99_ms", "rejections")


def drawn(table: Table) -> Rows:
    """Return goodput, waits and rejections by experiment, load and policy."""
    return loaded(table).means(("experiment", "rate", "load", "policy"), DRAWN)


def draw(rows: Rows, figure: Figure) -> None:
    """Draw goodput, rejections, P99 TTFT and the longest wait over load, and the first two for long answers."""
    axes = figure.subplots(2, 3)
    panels = (
        (MIXED, STYLES, "goodput", "goodput (requests/s)", 1.0),
        (MIXED, STYLES, "ttft_p99_ms", "P99 TTFT (s)", 1e-3),
        (DECODES, OF_DECODES, "goodput", "goodput (requests/s)", 1.0),
        (MIXED, STYLES, "rejections", "rejected (%)", 100.0),
        (MIXED, STYLES, "longest_wait_ms", "longest wait (s)", 1e-3),
        (DECODES, OF_DECODES, "rejections", "rejected (%)", 100.0),
    )
    for axis, (experiment, styles, metric, label, times) in zip(axes.flat, panels, strict=True):
        for policy, (name, colour, marker, dashes) in styles.items():
            own = [row for row in rows if (row["experiment"], row["policy"]) == (experiment, policy)]
            band(axis, own, "load", metric, colour, name, times=times, marker=marker, linestyle=dashes)
        axis.set_ylabel(label)
        axis.set_ylim(bottom=0)
        axis.set_xlabel("offered ÷ served at once")
    axes[0][0].set_title("mixed")
    axes[0][1].set_title("mixed")
    axes[0][2].set_title("long answers")
    pairs = dict(zip(*(reversed(axes[0][0].get_legend_handles_labels())), strict=True))
    handles, labels = axes[0][2].get_legend_handles_labels()
    pairs |= {label: handle for handle, label in zip(handles, labels, strict=True) if label not in pairs}
    figure.legend(list(pairs.values()), list(pairs), loc="outside lower center", ncols=4)


def answer(table: Table) -> str:
    """Return the answer."""
    runs = loaded(table)
    mixed, decodes = runs.where(experiment=MIXED), runs.where(experiment=DECODES)
    rates = mixed.values("rate")
    twice = mixed.where(rate=rates[-1])

    def at(policy: str, metric: str, times: float = 1.0) -> str:
        return words(twice.where(policy=policy).estimate(metric), times=times)

    def against(a: str, b: str, metric: str) -> str:
        pairs = ((mixed.where(rate=r, policy=a), mixed.where(rate=r, policy=b)) for r in rates)
        return in_words((ours.minus(theirs, metric) for ours, theirs in pairs), "loads")

    aged = twice.where(policy=AGING).minus(twice.where(policy=PLAIN), "longest_wait_ms")
    best = max(STYLES, key=lambda policy: twice.where(policy=policy).estimate("goodput").mean or 0.0)
    turned_away = sum(row["rejected"] for row in runs if row["policy"] == SATURATION)
    saturated = [row for row in runs if row["policy"] == SATURATION]
    served = table.where(experiment=AT_ONCE, trace=table.where(experiment=AT_ONCE).values("trace")[0])
    heavy = decodes.where(rate=decodes.values("rate")[-1])
    long_plain, long_limit, strict = (heavy.where(policy=p) for p in (PLAIN, LONG_LIMIT, STRICT))
    return f"""
        On `mixed` with D = 25 ms, half of the requests with a TTFT objective of 0.5 s and half of 2 s, at twice what
        can be served `{best}` has the most goodput: {at(best, "goodput")} requests/s, where `sloweave` has
        {at(PLAIN, "goodput")} of the {words(served.estimate("throughput"))} that it serves when all requests are there
        at once. Turning arrivals away when {PLAIN_LIMIT} wait, about what is served in half a second, gives
        {at(LIMIT, "goodput")} with first come first served and {at(EDF_LIMIT, "goodput")} with `edf`, rejects
        {at(LIMIT, "rejections", 100)} % and {at(EDF_LIMIT, "rejections", 100)} %, and keeps the longest wait at
        {at(LIMIT, "longest_wait_ms", 1e-3)} s and {at(EDF_LIMIT, "longest_wait_ms", 1e-3)} s, against
        {at(PLAIN, "longest_wait_ms", 1e-3)} s for `sloweave`. Goodput with the limit is
        {against(LIMIT, PLAIN, "goodput")} under first come first served, and {against(EDF_LIMIT, EDF, "goodput")} under
        `edf`.

        Of orders alone, `edf` has goodput that is {against(EDF, PLAIN, "goodput")} than in order of arrival; `qoserve`,
        which also lets short prompts pass long ones, {against(QOSERVE, PLAIN, "goodput")}, at twice the load
        {at(QOSERVE, "goodput")} requests/s with a longest wait of {at(QOSERVE, "longest_wait_ms", 1e-3)} s and a P99
        TTFT of {at(QOSERVE, "ttft_p99_ms", 1e-3)} s. With aging, by which a prefill that has waited 0.5 s may end a
        step 25 ms late, goodput is {against(AGING, PLAIN, "goodput")}, at twice the load {at(AGING, "goodput")}
        requests/s with a P99 TPOT of {at(AGING, "tpot_p99_ms")} ms, while the longest wait changes by
        {words(aged, signed=True, times=1e-3)} s. A likely reason is that under lasting overload every prefill has aged.

        `decode-saturation` with its default of 0.9 turned away {turned_away:,} requests in {len(saturated)} runs, with
        answers six times as long too. A likely reason is that filling deadlines holds the number of decodes below that
        by itself, for little prefill fits beside many decodes. At 0.7, with the long answers and twice the load, it
        has {words(strict.estimate("goodput"))} requests/s, where `sloweave` alone has
        {words(long_plain.estimate("goodput"))} and a queue limit of half a second's requests
        {words(long_limit.estimate("goodput"))}. Goodput also counts the time in which a backlog is worked off after the
        last of 1,000 arrivals; under a longer overload, queues that nothing limits grow longer."""


QUESTION = Question(
    name="overload",
    place=40,
    asks="More requests than can be served: turn away, age, or reorder?",
    metrics=(
        "arrived",
        "rejected",
        "throughput",
        "goodput",
        "longest_wait_ms",
        "ttft_p99_ms",
        "tpot_p99_ms",
        "slo_exceptions",
    ),
    drawn=drawn,
    draw=draw,
    answer=answer,
    size=(WIDE, 4.6),
    experiments=(MIXED, DECODES, AT_ONCE),
    measure=measured,
)
