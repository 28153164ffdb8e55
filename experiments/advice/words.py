"""An advice in words: what to serve with, on how many replicas, what that gives, and how sure it is."""

from __future__ import annotations

from experiments.advice.candidates import DEFAULT
from experiments.advice.choice import NEGLIGIBLE, Standing
from experiments.advice.found import Advice
from experiments.advice.replicas import Span
from experiments.advice.trace import VISIBLE
from experiments.advice.tuning import TUNING_SEEDS
from experiments.capacity.search import Verdict
from experiments.compare import Estimate
from experiments.output import number
from experiments.report import counted

PERCENT = 100.0


def look_lines(advice: Advice) -> list[str]:
    """Return what was seen of the trace, the rate and the machine."""
    task, look = advice.task, advice.task.look
    taken = f"{look.requests:,} requests" if look.requests == look.in_file else (
        f"the first {look.requests:,} of {look.in_file:,} requests"
    )  # fmt: skip
    kind = "one output token each" if look.prefill_only else f"{number(look.output_mean)} output tokens"
    shared = f", {PERCENT * look.shared:.3g} % of their content seen before" if look.shared >= VISIBLE else ""
    own = "" if look.own_rate is None else f" (the file's own: {number(look.own_rate)})"
    lines = [
        f"{task.cell.source.label}: {taken}, prompts of {number(look.prompt_mean)} tokens on average and up to "
        f"{look.prompt_max:,}{shared}, {kind}.",
        f"Asked: {_objectives(advice)} for {PERCENT * advice.level:g} % of the requests at {number(look.rate)} "
        f"requests/s{own}. Prefilling alone would keep {look.busy:.2g} replicas busy.",
    ]
    if replicas := task.cell.replicas:
        source = f" (as on the GPU of {task.memory_from})" if task.memory_from else ""
        lines.append(f"Each replica has {replicas}{source}.")
    return lines


def answer(advice: Advice) -> list[str]:
    """Return the advice, a sentence or two each."""
    best = advice.choice.recommended
    return [_head(advice), _gives(advice, best), _others(advice), _default(advice), *_stock(advice), *_own(advice)]


def sureness(advice: Advice) -> list[str]:
    """Return where the numbers come from, and what they are of."""
    task, seeds = advice.task, len(advice.task.seeds)
    arrivals = "Poisson arrivals" if task.cell.source.workload is None else "the workload's own arrivals"
    same = ", the same requests in the same order in each" if task.cell.source.workload is None else ""
    lines = [
        f"{len(advice.tuned)} policies were tuned on {TUNING_SEEDS} seeds, and {len(advice.choice.standings)} of them "
        f"compared on {seeds} others: {arrivals}{same}. All numbers are of those {seeds}; ±: half-width of the 95 % "
        "t-interval over them.",
        f'"Surely": t-tests of attainment against {PERCENT * advice.level:g} % share an error probability of 5 % over '
        f"the numbers of replicas and the finalists ({advice.error:.2g} each). Policies: paired by seed, Holm, 5 %.",
    ]
    if task.cell.source.workload is None:
        lines.append(
            "The intervals are those of other arrivals of these requests, not of other requests: another hour's "
            "may be longer, or come in bursts."
        )
    return lines


def _head(advice: Advice) -> str:
    best, choice = advice.choice.recommended, advice.choice
    if not advice.reached:
        return _not_reached(advice)
    where = f" on {counted(advice.at, 'replica')}" + (f" behind a {advice.router} router" if advice.at > 1 else "")
    if choice.all_tied:
        return (
            f"Serve with {best.policy}{where}. It is the simplest of {', '.join(s.policy for s in choice.standings)}, "
            "which are tied: it does not matter which of them you take."
        )
    text = f"Serve with {best.policy}{where}."
    more = choice.best.attainment - best.attainment
    if more > 0:
        text += (
            f" {choice.best.policy} attains {number(PERCENT * more)} points more on these seeds, "
            + ("too little to bother" if best.surely_behind else "which may be chance")
            + f", and {best.policy} is simpler."
        )
    tied = [s.policy for s in choice.tied if s not in (best, choice.best) and s.verdict is Verdict.HOLDS]
    return text + (f" Not surely worse either: {', '.join(tied)}." if tied else "")


def _not_reached(advice: Advice) -> str:
    best, look = advice.choice.recommended, advice.task.look
    wanted = f"{PERCENT * advice.level:g} %"
    if advice.task.replicas:
        what = f"Nothing that was tried surely reaches {wanted} on {counted(advice.at, 'replica')}"
    elif advice.rough.reached:
        what = f"Nothing that was tried surely reaches {wanted}, on {_list(sorted(advice.span.verdicts))} replicas"
    else:
        tried = f"up to {counted(advice.rough.looked, 'replica')}"
        what = f"Nothing that was tried reaches {wanted}, whatever the number of replicas ({tried} were tried)"
    if look.hopeless > 0:
        kind = ", nothing of them cached" if look.sharing else ""
        what += (
            f"; {PERCENT * look.hopeless:.3g} % of the requests miss an objective even alone on an idle replica{kind}"
        )
    come = "comes nearest" if best is advice.choice.best else "comes as near as any, and is simplest"
    return f"{what}. {best.policy} on {counted(advice.at, 'replica')} {come}."


def _gives(advice: Advice, best: Standing) -> str:
    m = best.metrics
    times = [f"P99 TTFT {_estimate(m['ttft_p99_ms'])} ms"]
    if m["tpot_p99_ms"].mean is not None:
        times.append(f"P99 TPOT {_estimate(m['tpot_p99_ms'])} ms")
    return (
        f"There {_estimate(m['slo_attainment'], PERCENT)} % of the requests meet their objectives: goodput "
        f"{_estimate(m['goodput'])} requests/s, {', '.join(times)}. {_replicas(advice, advice.span, 'any policy')}"
    )


def _replicas(advice: Advice, span: Span, whose: str) -> str:
    if advice.task.replicas or span.holds is None:
        return ""
    unclear = list(range((span.breaks or 0) + 1, span.holds))
    text = f"{counted(span.holds, 'replica')} surely suffice{'s' * (span.holds == 1)} for {PERCENT * advice.level:g} %"
    if span.breaks is not None:
        text += f", {span.breaks} surely do{'es' * (span.breaks == 1)} not with {whose} of the finalists"
    if unclear:
        text += f"; between, the {len(advice.task.seeds)} seeds do not tell"
    return f"{text}."


def _others(advice: Advice) -> str:
    behind = next((s for s in advice.choice.standings if not s.as_good), None)
    if behind is None or behind.policy == DEFAULT:
        return ""
    loss = advice.choice.recommended.attainment - behind.attainment
    return f"Next best is {behind.policy}, surely worse: {number(PERCENT * loss)} points less."


def _default(advice: Advice) -> str:
    default = next((s for s in advice.choice.standings if s.policy == DEFAULT), None)
    if default is None or default is advice.choice.recommended:
        return ""
    text = (
        "vLLM's default (vllm-default: 2,048 tokens a step) attains "
        f"{_estimate(default.metrics['slo_attainment'], PERCENT)} % on as many replicas"
    )
    span = advice.default
    if span is None:
        return f"{text}."
    if span.holds is None:
        return f"{text}; none of the numbers that were tried on a tuning seed was enough for it."
    if span.holds == advice.at:
        return f"{text}, and they are enough for it too."
    if span.breaks is None:
        return f"{text}; {span.holds} surely suffice for it."
    needs = f"{span.breaks + 1} to {span.holds}" if span.holds > span.breaks + 1 else f"{span.holds}"
    return f"{text}, and needs {needs} of them."


def _stock(advice: Advice) -> list[str]:
    best, stock = advice.choice.recommended, advice.choice.of(advice.stock)
    if stock is None or stock is best or stock.policy == DEFAULT:
        return []
    loss = PERCENT * (best.attainment - stock.attainment)
    what = f"loses {number(loss)} points by it" if loss > 0 else "loses nothing by it"
    return [f"Without a scheduler class, vLLM's options come nearest with {stock.policy}; one {what}."]


def _own(advice: Advice) -> list[str]:
    own, factor = advice.own, advice.task.denser
    if own is None and advice.task.own is not None:
        return [
            f"The file's own arrivals are no check: the rate is {factor:.3g} times theirs, and so dense their ups and "
            "downs would mean nothing."
        ]
    if own is None:
        return []
    dense = "" if abs(factor - 1) < 1e-3 else f", made {factor:.3g} times as dense"
    return [
        f"As a check, on the file's own arrivals{dense}: {PERCENT * own.attainment:.3g} %, vLLM's default "
        f"{PERCENT * own.default:.3g} % (one run each, no interval)."
    ]


def _objectives(advice: Advice) -> str:
    text = str(advice.task.cell.objectives)
    return f"{text} (ms)" if text else "the requests' own objectives"


def _estimate(estimate: Estimate, scale: float = 1.0) -> str:
    if estimate.mean is None:
        return "-"
    half = estimate.half_width
    return number(scale * estimate.mean) + ("" if half is None else f" ± {number(scale * half)}")


def _list(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers))


DEFINITIONS = {
    "attainment": "share of a run's arrived requests that meet every objective, mean over the fresh seeds",
    "holds": "a t-test over the seeds says that attainment is at least the wanted level",
    "breaks": "a t-test says that it is less",
    "behind": "attainment of the best finalist less this one's, paired by seed; p by Holm",
    "recommended": f"the simplest finalist that is not surely behind the best by {NEGLIGIBLE:g} or more",
    "replicas": "the least that surely holds and the largest that surely does not",
    "own_arrivals": "one run of the file's own arrivals, made as dense as the rate asks",
}
