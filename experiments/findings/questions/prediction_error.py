"""What prediction error costs each policy: bias, noise, and misjudged requests."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from experiments.findings.question import Question
from experiments.findings.table import Table, words
from experiments.output import number
from experiments.plotting import BLUE, GREEN, ORANGE, PURPLE, RED, SKY, WIDE
from experiments.tables import Rows
from sim.stats import Interval

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RIGHT = "sloweave-paper"
BIASES = {share: f"erring:of={RIGHT},bias={share}%" for share in (-20, -10, -5)} | {0: RIGHT}
BIASES |= {share: f"erring:of={RIGHT},bias={share}%" for share in (10, 20)}
NOISES = {f"erring:of={RIGHT},noise={share}%": share for share in (5, 10, 20)}
SIGMAS = (0.25, 0.5, 1, 2)
WIDE_SUM, SUM = "ttft:1000,tpot:25", "ttft:1000,tpot:10"


class Line(NamedTuple):
    """A policy: the ending of its files, its colour and its name."""

    kind: str
    colour: str
    title: str


FILLING = {
    "sloweave": Line("", BLUE, "sloweave"),
    "sloweave:margin=15%": Line("", GREEN, "sloweave, margin 15 %"),
    "fcfs+guarded:window=1000": Line("", ORANGE, "guarded"),
    "fcfs+deadline-sum": Line("_sum", RED, "deadline-sum, 10 ms"),
    "fcfs+qoserve": Line("_sum", PURPLE, "qoserve, 10 ms"),
}
ORDERING = {
    "erring-srjf+deadline-fill": Line("", BLUE, "srjf"),
    "erring-srjf:lam=30000+deadline-fill": Line("", SKY, "srjf, λ = 30,000"),
    "erring-qoserve+deadline-fill": Line("", PURPLE, "qoserve"),
}


def drawn(table: Table) -> Rows:
    """Return the goodput that each error costs a policy, against the same policy with perfect predictions."""
    rows = []

    def add(error: str, policy: str, size: float, wrong: Table, perfect: Table) -> None:
        lost = perfect.minus(wrong, "goodput")
        rows.append(
            {
                "error": error,
                "policy": policy,
                "size": size,
                "perfect": perfect.estimate("goodput").mean,
                "lost": lost.mean,
                "lost_lo": lost.lo,
                "lost_hi": lost.hi,
            }
        )

    for policy, line in FILLING.items():
        own = table.where(policy=policy)
        bias, noise, known = (
            own.where(experiment=f"prediction_error_{error}{line.kind}") for error in ("bias", "noise", "known")
        )
        bias = bias.where(slo=SUM) if line.kind else bias
        for share, believed in BIASES.items():
            add("bias", policy, share, bias.where(policy_cost_model=believed), bias.where(policy_cost_model=RIGHT))
        for charged in noise.values("cost_model"):
            add("noise", policy, NOISES[charged], noise.where(cost_model=charged), known.where(cost_model=charged))
    for policy in ORDERING:
        own = table.where(experiment="prediction_error_rank", policy=policy)
        for sigma in SIGMAS:
            add("rank", policy, sigma, own.where(**{"policy.sigma": sigma}), own.where(**{"policy.sigma": 0}))
    return rows


def draw(rows: Rows, figure: Figure) -> None:
    """Draw a panel per kind of error: goodput lost over its size, a line per policy."""
    axes = figure.subplots(1, 3)
    panels = (
        ("bias", "Bias of the prediction", "predicted - true step time (%)", FILLING),
        ("noise", "Noise of the machine", "steps about the prediction, σ (%)", FILLING),
        ("rank", "Misjudged requests", "work that is ranked by, σ of its log", ORDERING),
    )
    for axis, (error, title, label, lines) in zip(axes, panels, strict=True):
        for policy, line in lines.items():
            own = [row for row in rows if (row["error"], row["policy"]) == (error, policy)]
            x = [row["size"] for row in own]
            axis.plot(x, [row["lost"] for row in own], "o-", color=line.colour, label=line.title)
            lo, hi = ([row[end] for row in own] for end in ("lost_lo", "lost_hi"))
            axis.fill_between(x, lo, hi, color=line.colour, alpha=0.2, linewidth=0)
        axis.axhline(0, color="0.4", linewidth=0.8)
        axis.set_title(title, fontsize=9)
        axis.set_xlabel(label, fontsize=8)
    axes[0].set_ylabel("goodput lost against perfect\npredictions (requests/s)")
    axes[2].legend(fontsize=7, title="ordering", title_fontsize=7)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, title="chunking")


def _alike(table: Table) -> str:
    """Return how many runs with wrong predictions equal, in every metric, the ones with right ones."""
    runs = table.where(experiment="prediction_error_bias_sum", slo=WIDE_SUM)
    right = {
        (row["policy"], row["seed"]): [row[metric] for metric in METRICS] for row in runs.where(policy_cost_model=RIGHT)
    }
    wrong = [row for row in runs if row["policy_cost_model"] != RIGHT]
    alike = sum([row[metric] for metric in METRICS] == right[row["policy"], row["seed"]] for row in wrong)
    return f"{alike} of {len(wrong)}"


def answer(table: Table) -> str:
    """Return the answer."""
    rows = drawn(table)

    def loses(error: str, policy: str, size: float) -> str:
        """Return what a policy loses to an error, in words."""
        [row] = [row for row in rows if (row["error"], row["policy"], row["size"]) == (error, policy, size)]
        lost = Interval(row["lost"], row["lost_lo"], row["lost_hi"])
        if max(abs(row[name]) for name in ("lost", "lost_lo", "lost_hi")) < 0.005:
            return "loses nothing"
        if row["lost"] < 0:
            return f"gains {words(Interval(-row['lost'], -row['lost_hi'], -row['lost_lo']))} requests/s"
        return f"loses {words(lost)} requests/s"

    slo, margin, guard, added, qoserve = FILLING
    srjf_label = next(iter(ORDERING))
    srjf = table.where(experiment="prediction_error_rank", policy=srjf_label)
    right, worst = (srjf.where(**{"policy.sigma": sigma}) for sigma in (0, 2))
    fcfs = table.where(experiment="prediction_error_rank", policy=slo)
    ranked = [row for row in rows if row["error"] == "rank"]
    most = max(ranked, key=lambda row: row["lost"] / row["perfect"])
    perfect = table.where(experiment="prediction_error_bias", policy=slo, policy_cost_model=RIGHT)
    tight = table.where(experiment="prediction_error_bias_sum", slo=SUM, policy_cost_model=RIGHT)
    alone = {policy: words(tight.where(policy=policy).estimate("goodput")) for policy in (added, qoserve)}
    return f"""
        `sloweave` that believes steps 5 % shorter than they are {loses("bias", slo, -5)} of
        {words(perfect.estimate("goodput"))}; believing them 20 % longer, it {loses("bias", slo, 20)}. With a margin of
        15 %, which covers a bias of -10 %, it {loses("bias", margin, -10)} to that (where the two cancel, it gains what
        the margin costs), and {loses("bias", margin, -20)} to -20 %, which the margin does not cover. `guarded`, which
        sees a bias in its first steps, {loses("bias", guard, -20)} to -20 %. Noise errs to either side: on a machine
        with 10 % of it, `sloweave` {loses("noise", slo, 10)} against one that knows each step beforehand, with the
        margin it {loses("noise", margin, 10)}, and `guarded` {loses("noise", guard, 10)}; with 20 %, `guarded`
        {loses("noise", guard, 20)}.

        Deadlines that add up are judged by the mean gap here. With 25 ms per token {_alike(table)} runs of
        `deadline-sum` and `qoserve` with a bias of -20 to 20 % equal those without in every metric: where they do,
        early tokens leave so much time that no prediction decides anything. With 10 ms and perfect predictions, goodput
        is {alone[added]} and {alone[qoserve]} requests/s; there `deadline-sum` {loses("bias", added, -20)} to a bias of
        -20 %, {loses("bias", added, 20)} to one of 20 % and {loses("noise", added, 20)} to noise of 20 %, and `qoserve`
        {loses("bias", qoserve, -20)}, {loses("bias", qoserve, 20)} and {loses("noise", qoserve, 20)}.

        An ordering by work errs by ranking requests wrongly. Each misjudged by a log-normal factor of its own, it loses
        goodput in {sum(row["lost_lo"] > 0 for row in ranked)} of {len(ranked)} settings of three orderings and four
        spreads by intervals that exclude zero, at most {number(100 * most["lost"] / most["perfect"])} % of it. Shortest
        job first {loses("rank", srjf_label, 0.5)} with a spread (σ of the logarithm) of 0.5, and
        {loses("rank", srjf_label, 2)} with 2; its mean TTFT is then {words(worst.estimate("ttft_mean_ms"))} ms in place
        of {words(right.estimate("ttft_mean_ms"))}. First come first served, which estimates nothing, has
        {words(fcfs.estimate("ttft_mean_ms"))} ms, and in goodput {words(fcfs.minus(right, "goodput"), signed=True)}
        requests/s against right ranks. All of this is `mixed` at 90 requests/s, about its capacity, with 1 s for TTFT
        and, but where said, 25 ms per token; where more or fewer steps are filled to the deadline, a wrong belief costs
        more or less."""


METRICS = ("goodput", "slo_attainment", "ttft_mean_ms", "ttft_p99_ms", "tpot_p99_ms", "late_gap_share")

QUESTION = Question(
    name="prediction_error",
    place=55,
    asks="What does prediction error cost each policy?",
    metrics=METRICS,
    drawn=drawn,
    draw=draw,
    answer=answer,
    size=(WIDE, 3.3),
    experiments=tuple(
        f"prediction_error_{error}"
        for error in ("bias", "bias_sum", "noise", "noise_sum", "known", "known_sum", "rank")
    ),
)
