"""One tenant floods the server: what the others get under orderings that know tenants, or lengths."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from experiments.findings.by_tenant import by_tenant
from experiments.findings.lines import band, in_words
from experiments.findings.question import Question
from experiments.findings.table import Table, words
from experiments.output import number
from experiments.plotting import BLUE, GREEN, ORANGE, PURPLE, SKY, WIDE
from experiments.tables import Rows
from sim.stats import jain
from sim.store import StoredRun

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PLAIN, FAIR, WEIGHTED = "sloweave", "fair+deadline-fill", "fair:weights=interactive:1|batch:3+deadline-fill"
SHORTEST, AGED = "srjf-static+deadline-fill", "srjf-calibrated:lam=500+deadline-fill"
STYLES = {
    PLAIN: ("first come first served", BLUE, "o", "-"),
    FAIR: ("fair", GREEN, "s", "-"),
    WEIGHTED: ("fair, the flood's weight 3", SKY, "^", "--"),
    SHORTEST: ("shortest prefill first", ORANGE, "D", "-"),
    AGED: ("shortest first, λ = 500", PURPLE, "v", "--"),
}


def measured(run: StoredRun) -> dict[str, Any]:
    """Return attainment and P99 TTFT by tenant."""
    return {k: v for k, v in by_tenant(run).items() if k.startswith(("attainment", "ttft_p99"))}


def flooded(table: Table) -> Table:
    """Return the rows with both tenants' rates, what each gets, and Jain's index of that.

    A tenant gets ``good_T``, its requests per second of arrivals that meet their objectives: goodput would count the
    time in which the flood's backlog is worked off. The index is that of ``good_T`` relative to what the tenant is due:
    what it asks for, or an equal part of what is served and the other leaves. What is served is the throughput of first
    come first served under the largest flood.
    """
    rows = []
    for row in table:
        rate, share = (float(v) for v in re.findall(r"=([0-9.]+)", str(row["workload"])))
        asked = {"interactive": round(rate * share, 3), "batch": round(rate * (1 - share), 3)}
        good = {f"good_{tenant}": part * row[f"attainment_{tenant}"] for tenant, part in asked.items()}
        rows.append(row | {"quiet": asked["interactive"], "flood": asked["batch"]} | good)
    most = max(row["flood"] for row in rows)
    served = Table(rows).where(flood=most, policy=PLAIN).estimate("throughput").mean or 0.0
    for row in rows:
        quiet = min(row["quiet"], max(served / 2, served - row["flood"]))
        due = {"interactive": quiet, "batch": min(row["flood"], served - quiet)}
        row["good"] = row["good_interactive"] + row["good_batch"]
        row["jain"] = jain([row[f"good_{tenant}"] / part for tenant, part in due.items()])
    return Table(rows)


DRAWN = ("ttft_p99_interactive_ms", "ttft_p99_batch_ms", "good_interactive", "good_batch", "good", "jain")


def drawn(table: Table) -> Rows:
    """Return TTFT, what meets its objectives and Jain's index by the flood's rate and policy."""
    return flooded(table).means(("flood", "policy"), DRAWN)


def draw(rows: Rows, figure: Figure) -> None:
    """Draw the quiet tenant's P99 TTFT, what both get, and Jain's index, over the flood."""
    axes = figure.subplots(1, 4)
    panels = (
        ("ttft_p99_interactive_ms", "P99 TTFT, quiet tenant (s)", 1e-3),
        ("good_interactive", "objectives met, quiet (req/s)", 1.0),
        ("good_batch", "objectives met, flood (req/s)", 1.0),
        ("jain", "Jain's index", 1.0),
    )
    for axis, (metric, label, times) in zip(axes, panels, strict=True):
        for policy, (name, colour, marker, dashes) in STYLES.items():
            own = [row for row in rows if row["policy"] == policy]
            band(axis, own, "flood", metric, colour, name, times=times, marker=marker, linestyle=dashes)
        axis.set_ylabel(label)
        axis.set_xlabel("flood (requests/s)")
        axis.set_ylim(bottom=0)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3)


def answer(table: Table) -> str:
    """Return the answer."""
    runs = flooded(table)
    floods = runs.values("flood")
    most = runs.where(flood=max(floods))
    quiet = most.values("quiet")[0]

    def at(policy: str, metric: str, times: float = 1.0) -> str:
        return words(most.where(policy=policy).estimate(metric), times=times)

    def against(a: str, metric: str, b: str = PLAIN) -> str:
        pairs = ((runs.where(flood=f, policy=a), runs.where(flood=f, policy=b)) for f in floods)
        return in_words((ours.minus(theirs, metric) for ours, theirs in pairs), "floods")

    head = f"""
        Two tenants send `mixed` requests with equal objectives (TTFT 1 s, D = 25 ms), one {quiet:g} requests/s and the
        other a flood. Beside a flood of {max(floods):g} the quiet one's P99 TTFT is
        {at(FAIR, "ttft_p99_interactive_ms", 1e-3)} s under `fair`, {at(WEIGHTED, "ttft_p99_interactive_ms", 1e-3)} s
        when the flood has three times its weight, {at(PLAIN, "ttft_p99_interactive_ms", 1e-3)} s first come first
        served, and {at(SHORTEST, "ttft_p99_interactive_ms", 1e-3)} s with the shortest prefill first, all with
        `deadline-fill`. The table has that flood: requests of each tenant that meet their objectives, per second of
        arrivals, and Jain's index of them relative to what each is due (what it asks for, or an equal part of what is
        served and the other leaves)."""
    lines = ["| ordering | quiet | flood | both | Jain's index |", "| --- | --- | --- | --- | --- |"]
    for policy, (name, *_) in STYLES.items():
        cells = [at(policy, metric) for metric in ("good_interactive", "good_batch", "good", "jain")]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    indices = [most.where(policy=policy).estimate("jain").mean or 0.0 for policy in STYLES]
    shortest, fair = (most.where(policy=policy) for policy in (SHORTEST, FAIR))
    detail = f"""
        Over the {len(floods)} floods, what the quiet tenant gets is {against(FAIR, "good_interactive")} under `fair`
        than first come first served, what the flood gets {against(FAIR, "good_batch")}. The shortest prefill first
        (`srjf-static`) knows no tenants: for the quiet one it is {against(SHORTEST, "good_interactive")}, for the flood
        {against(SHORTEST, "good_batch")}. Under the largest flood it brings both together
        {words(shortest.minus(fair, "good"), signed=True)} requests/s against `fair`, and the quiet tenant
        {words(shortest.minus(fair, "good_interactive"), signed=True)}; a likely reason is that long prompts wait,
        whosever they are. Aged by λ = 500 (`srjf-calibrated`), the quiet tenant's part changes by
        {words(most.where(policy=AGED).minus(shortest, "good_interactive"), signed=True)}.

        Jain's index lies between {number(min(indices))} and {number(max(indices))} under the largest flood; it says
        how uneven the parts are, not whose is short. And fairness is between tenants only: under `fair`
        {at(FAIR, "attainment_batch", 100)} % of the flood's own requests meet their objectives,
        {at(PLAIN, "attainment_batch", 100)} % first come first served."""
    return "\n\n".join([head, "\n".join(lines), detail])


QUESTION = Question(
    name="tenants",
    place=110,
    asks="One tenant floods the server: who protects the others?",
    metrics=("throughput", "goodput", "longest_wait_ms"),
    drawn=drawn,
    draw=draw,
    answer=answer,
    size=(WIDE, 3.0),
    measure=measured,
)
