"""What a reader of an advice should know before acting on it."""

from __future__ import annotations

from experiments.advice.candidates import is_fitted
from experiments.advice.found import Advice
from experiments.compare import run_warnings
from policies.spec import PolicySpec

FEW = 100
"""With fewer requests to a replica, a run is mostly its own beginning."""


def warnings_of(advice: Advice) -> list[str]:
    """Return sentences, those that matter most first."""
    return [
        *_of_cost_model(advice),
        *_of_margin(advice),
        *_of_load(advice),
        *_of_runs(advice),
        *_of_arrivals(advice),
        *_of_sharing(advice),
        *(f"{policy} was not tried: {reason}" for policy, reason in advice.left_out.items()),
    ]


def _of_cost_model(advice: Advice) -> list[str]:
    look, cost = advice.task.look, advice.task.cell.cost
    within: tuple[int, ...] = getattr(cost, "within", ())
    found = []
    if within and look.longest_taken > within[2]:
        found.append(
            f"the cost model is extrapolated: {cost.name} was fitted to contexts of at most {within[2]:,} tokens, and "
            f"requests have up to {look.longest_taken:,}"
        )
    if "estimated" in cost.name:
        found.append(f"{cost.name} is computed from data sheets, not measured; calibrate one on your own machine")
    return found


def _of_margin(advice: Advice) -> list[str]:
    policy = advice.choice.recommended.policy
    params = PolicySpec.parse(policy).chunking.params
    believed = advice.task.cell.predictor or advice.task.cell.cost
    if params.get("margin") == "0" and is_fitted(believed):
        return [
            f"{policy} has no margin, and {believed.name} is a fitted model: in the simulation it is always right, on "
            "a GPU it errs both ways, and about every second step that it fills would be late; use margin=c99"
        ]
    return []


def _of_load(advice: Advice) -> list[str]:
    look, found = advice.task.look, []
    busy = look.busy * (1 - (look.shared if look.sharing else 0.0))
    if busy >= advice.at:
        found.append(
            f"prefilling alone would keep {busy:.3g} replicas busy, so on {advice.at} queues grow without end: the "
            f"numbers are those of a run of {look.requests:,} requests that starts empty, and a longer one is worse"
        )
    elif look.requests < FEW * advice.at:
        found.append(
            f"{look.requests:,} requests on {advice.at} replicas are few for each, and they start empty; a larger "
            "--limit shows more of what a long day is like"
        )
    return found


def _of_runs(advice: Advice) -> list[str]:
    part = advice.runs.part("fresh", advice.choice.recommended.policy, advice.at)
    return [] if part is None else run_warnings(part)


def _of_arrivals(advice: Advice) -> list[str]:
    own = advice.own
    if own is None or own.attainment >= advice.level or not advice.reached:
        return []
    more = f"{own.replicas} would" if own.replicas is not None else "no number that was looked at would"
    enough = "" if advice.task.replicas else f", and {more} do"
    return [
        f"the file's own arrivals are harder than Poisson ones: {100 * own.attainment:.3g} % of the requests meet "
        "their objectives there on as many replicas" + enough
    ]


def _of_sharing(advice: Advice) -> list[str]:
    look, found = advice.task.look, []
    if advice.task.cell.memory is None:
        shared = f", though {100 * look.shared:.3g} % of their content is shared" * (look.shared > 0)
        found.append(
            "KV memory is taken to be unlimited, and no prompt to be cached" + shared + ", for nothing says how much "
            "memory there is; --gpu and --llm, or --kv-blocks, do"
        )
    if len(advice.routers) > 1 and min(advice.routers.values()) < max(advice.routers.values()) - 0.05:
        worst = min(advice.routers, key=lambda name: advice.routers[name])
        share = f"{100 * advice.routers[worst]:.3g} %"
        found.append(f"the router matters: with {worst}, at best {share} of the requests meet their objectives")
    if advice.span.uneven:
        found.append(
            "attainment does not rise with the number of replicas everywhere; the least above all that fail is told"
        )
    return found
