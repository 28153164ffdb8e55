"""Advice on a trace: which policy with which parameters on how many replicas, and how sure that is.

Policies are tuned on seeds of their own: all on one, the better half on the others, then sizes around the best and the
best in other orders. A few finalists go to fresh seeds, on which alone numbers are reported: what was chosen for its
luck on the first seeds has no such luck on others. There each number of replicas that is looked at is tested, by
t-tests that share their error probability over numbers and finalists (Bonferroni), until one surely holds the wanted
level of attainment and, if possible, a smaller one surely does not.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from experiments.advice_candidates import (
    DEFAULT,
    NONE,
    STOCK,
    YOURS,
    Candidate,
    first_round,
    second_round,
)
from experiments.advice_choice import ALPHA, Choice, choose
from experiments.advice_replicas import Rough, Span, roughly, surely
from experiments.advice_runs import Runs
from experiments.advice_trace import Look, Task
from experiments.capacity import Design, Grid, Verdict
from policies.base import PolicyError
from sim.metrics import Summary

TUNING_SEED = 1_000_000
"""The first of the seeds that policies are tuned on."""

TUNING_SEEDS = 3

KEPT = 4
"""Candidates that get all tuning seeds, if the better half are fewer."""

FINALISTS = 5
"""At most, beside vLLM's default."""

FAR = 0.2
"""A policy so far behind the best in attainment on the tuning seeds is no finalist."""

MOST_REPLICAS = 64

VISITS_OF_DEFAULT = 4

STAGES = ("tuning", "fresh", "own")


@dataclass(frozen=True)
class Tuned:
    """A candidate on the tuning seeds."""

    candidate: Candidate
    attainments: list[float]
    """Shape (seeds,): one for those that were left behind after the first."""
    lateness_ms: float
    """The mean of all requests', over the seeds; tells those apart that nobody meets the objectives under."""
    round: int

    @property
    def attainment(self) -> float:
        """The mean over the seeds."""
        return float(np.mean(self.attainments))

    @property
    def merit(self) -> tuple[float, float, int]:
        """What candidates are ranked by."""
        return self.attainment, -self.lateness_ms, -self.candidate.effort


@dataclass(frozen=True)
class Own:
    """The recommended policy on the file's own arrivals: one run, without an interval."""

    attainment: float
    default: float
    """The same of vLLM's default."""
    replicas: int | None
    """How many would reach the level there; ``None`` where none does, or the number is fixed."""


@dataclass(frozen=True)
class Advice:
    """What was found."""

    task: Task
    level: float
    most: int
    """Replicas that were looked at, at most."""
    left_out: dict[str, str]
    """Candidates that cannot run here, and why."""
    tuned: list[Tuned]
    """The best first."""
    rough: Rough
    router: str
    routers: dict[str, float]
    """By router that was tried: the best attainment on a tuning seed."""
    span: Span
    at: int
    """The number of replicas on which finalists are compared."""
    attained: dict[str, dict[int, list[float]]]
    """On the fresh seeds, by finalist and number of replicas."""
    choice: Choice
    default: Span | None
    """How many replicas vLLM's default needs; ``None`` where that was not asked."""
    own: Own | None
    error: float
    """The probability of each t-test to err."""
    runs: Runs = field(repr=False)

    @property
    def reached(self) -> bool:
        """Whether the level is surely held by somebody."""
        return self.span.holds is not None

    @property
    def stock(self) -> str:
        """The finalist that vLLM has without a scheduler class and that attains most."""
        own = (NONE, STOCK)
        return next(s.policy for s in self.choice.standings if s.candidate.family in own)


def advise(
    task: Task,
    level: float,
    *,
    most: int = MOST_REPLICAS,
    out: Path,
    resume: bool = False,
    jobs: int | None = None,
    progress: bool = False,
) -> Advice:
    """Tune, compare and count replicas.

    Args:
        task: from :func:`experiments.advice_trace.task_of`.
        level: attainment that is wanted, from 0 to 1.
        most: replicas that are looked at, at most.
        out: a folder, which gets a sweep's folder for each stage.
        resume: trust what is finished there.
        jobs: processes.
        progress: say on stderr what is being run.

    Raises:
        PolicyError: if a policy of the user's, or none at all, can run here.
        Interrupted, Stopped, OSError: see :meth:`experiments.advice_runs.Runs.run`.
    """
    runs = Runs(out, resume=resume, jobs=jobs, progress=progress)
    tuning = task.draft.copy()
    tuning.put("seeds", list(tuning_seeds()), "advise")
    fresh = task.draft.copy()
    fresh.put("seeds", list(task.seeds), "advise")
    for name, draft in zip(STAGES, (tuning, fresh, task.own), strict=True):
        if draft is not None:
            runs.open(name, draft)
    candidates, left_out = candidates_of(task, runs)
    probes = [c.policy for c in candidates if c.probe]

    def probed(n: int) -> dict[str, list[Summary]]:
        found = {}
        for router in routers_of(task) if n > 1 else routers_of(task)[:1]:
            ran = runs.run("tuning", probes, n, router, tuning_seeds()[:1], "how many replicas")
            found[router] = [s for summaries in ran.values() for s in summaries]
        return found

    def attains(n: int) -> float:
        return max(attainment(s) for found in probed(n).values() for s in found)

    start = max(1, math.ceil(task.look.busy))
    rough = Rough(task.replicas, True) if task.replicas else roughly(attains, level, start, most)
    router, routers = _best_router(task, probed, rough.replicas)
    tuned = _tune(task, runs, candidates, left_out, rough.replicas, router)
    finalists = _finalists(tuned)
    return _decide(task, level, most, runs, left_out, tuned, finalists, rough, router, routers)


def tuning_seeds() -> range:
    """Return the seeds that policies are tuned on."""
    return range(TUNING_SEED, TUNING_SEED + TUNING_SEEDS)


def attainment(summary: Summary) -> float:
    """Return a run's share of requests that meet every objective."""
    return float(summary["slo_attainment"] or 0.0)


def candidates_of(task: Task, runs: Runs) -> tuple[list[Candidate], dict[str, str]]:
    """Return the first round, and why others of it cannot run.

    Raises:
        PolicyError: if a policy of the user's, or none at all, can.
    """
    seats = task.cell.limits.max_num_seqs or 1
    found = first_round(task.look, task.cell.predictor or task.cell.cost, seats, task.extra)
    reasons = runs.usable("tuning", [c.policy for c in found])
    yours = next((reasons[c.policy] for c in found if c.family == YOURS and c.policy in reasons), None)
    if yours is not None or DEFAULT in reasons:
        raise PolicyError(yours or reasons[DEFAULT])
    return [c for c in found if c.policy not in reasons], reasons


def routers_of(task: Task) -> list[str]:
    """Return the routers to try: what keeps shared beginnings together, and what balances load."""
    if task.router is not None:
        return [task.router]
    look: Look = task.look
    together = ["prefix-affinity"] * look.sharing + ["user"] * (look.sharing and look.sessions)
    return [*together, "least-loaded"]


def _best_router(task: Task, probed: object, replicas: int) -> tuple[str, dict[str, float]]:
    routers = routers_of(task)
    if len(routers) == 1 or task.replicas == 1:
        return routers[0], {}
    assert callable(probed)
    found: dict[str, list[Summary]] = probed(max(replicas, 2))

    def merit(router: str) -> tuple[float, float, float]:
        shares = [attainment(s) for s in found[router]]
        waits = [float(s["ttft_mean_ms"] or 0.0) for s in found[router]]
        return max(shares), float(np.mean(shares)), -min(waits)

    return max(routers, key=merit), {router: merit(router)[0] for router in routers}


def _tune(
    task: Task, runs: Runs, candidates: Sequence[Candidate], left_out: dict[str, str], replicas: int, router: str
) -> list[Tuned]:
    """Run both rounds, and return all candidates, the best first; those with all seeds before the others."""
    first = _halved(runs, candidates, replicas, router, 1)
    seats = task.cell.limits.max_num_seqs or 1
    more = second_round(task.look, task.cell.predictor or task.cell.cost, seats, [t.candidate for t in first])
    reasons = runs.usable("tuning", [c.policy for c in more])
    left_out.update(reasons)
    second = _halved(runs, [c for c in more if c.policy not in reasons], replicas, router, 2)
    return sorted([*first, *second], key=lambda t: (len(t.attainments), t.merit), reverse=True)


def _halved(runs: Runs, candidates: Sequence[Candidate], replicas: int, router: str, turn: int) -> list[Tuned]:
    """Run all candidates on the first tuning seed and the better half on the others."""
    why = f"tuning, round {turn}"
    seeds = tuning_seeds()
    policies = [c.policy for c in candidates]
    begun = runs.run("tuning", policies, replicas, router, seeds[:1], why) if policies else {}
    found = sorted((_tuned(c, begun[c.policy], turn) for c in candidates), key=lambda t: t.merit, reverse=True)
    kept = max(KEPT, math.ceil(len(found) / 2))
    again = [t.candidate for t in found[:kept]]
    ended = runs.run("tuning", [c.policy for c in again], replicas, router, seeds, why) if again else {}
    whole = sorted((_tuned(c, ended[c.policy], turn) for c in again), key=lambda t: t.merit, reverse=True)
    return [*whole, *found[kept:]]


def _tuned(candidate: Candidate, summaries: Sequence[Summary], turn: int) -> Tuned:
    late = [float(s["lateness_mean_ms"] or 0.0) if s["finished"] else math.inf for s in summaries]
    return Tuned(candidate, [attainment(s) for s in summaries], float(np.mean(late)), turn)


def _finalists(tuned: Sequence[Tuned]) -> list[Candidate]:
    """Return the best of each family and the second best of all, vLLM's default before them.

    Args:
        tuned: the best first.
    """
    best = tuned[0].attainment
    near = [t.candidate for t in tuned if t.attainment >= best - FAR]
    stock = next((t.candidate for t in tuned if t.candidate.family == STOCK), None)
    families: dict[str, Candidate] = {}
    for candidate in near:
        families.setdefault(candidate.family, candidate)
    chosen = dict.fromkeys([near[0], *([stock] if stock else []), *families.values(), *near[:2]])
    default = next(t.candidate for t in tuned if t.candidate.policy == DEFAULT)
    others = [c for c in chosen if c != default]
    return [default, *others[:FINALISTS]]


def _decide(
    task: Task,
    level: float,
    most: int,
    runs: Runs,
    left_out: dict[str, str],
    tuned: list[Tuned],
    finalists: list[Candidate],
    rough: Rough,
    router: str,
    routers: dict[str, float],
) -> Advice:
    """Compare the finalists on fresh seeds and count replicas there."""
    confidence = 1 - ALPHA / len(finalists)
    design = Design(Grid.between(1, most, 1.0), len(task.seeds), task.look.requests, confidence)
    labels = [c.policy for c in finalists]
    attained: dict[str, dict[int, list[float]]] = {label: {} for label in labels}

    def judged(policies: Sequence[str], n: int) -> dict[str, Verdict]:
        ran = runs.run("fresh", policies, n, router, task.seeds, "fresh seeds")
        for label, summaries in ran.items():
            attained[label][n] = [attainment(s) for s in summaries]
        return {label: design.told(attained[label][n], level) for label in policies}

    def any_of(n: int) -> Verdict:
        verdicts = set(judged(labels, n).values())
        if Verdict.HOLDS in verdicts:
            return Verdict.HOLDS
        return Verdict.BREAKS if verdicts == {Verdict.BREAKS} else Verdict.UNCLEAR

    open_search = rough.reached and task.replicas is None
    span = surely(any_of, rough.replicas, most, design.grid.most_rates if open_search else 1)
    at = span.holds if span.holds is not None else max(span.verdicts)
    ran = runs.run("fresh", labels, at, router, task.seeds, "fresh seeds")
    choice = choose(finalists, ran, judged(labels, at))

    def of_default(n: int) -> Verdict:
        return judged([DEFAULT], n)[DEFAULT]

    default = None
    if open_search and span.holds is not None:
        about = at
        if of_default(at) is not Verdict.HOLDS:
            seed = tuning_seeds()[:1]
            why = "what vLLM's default needs"
            found = roughly(
                lambda n: attainment(runs.run("tuning", [DEFAULT], n, router, seed, why)[DEFAULT][0]), level, at, most
            )
            about = found.replicas if found.reached else most
        default = surely(of_default, about, most, VISITS_OF_DEFAULT if about < most else 1)
    own = _own(task, runs, level, choice.recommended.policy, at, router, most if open_search else at)
    return Advice(
        task, level, most, left_out, tuned, rough, router, routers, span, at, attained, choice, default, own,
        design.error, runs,
    )  # fmt: skip


def _own(task: Task, runs: Runs, level: float, policy: str, at: int, router: str, most: int) -> Own | None:
    """Run the recommended policy and vLLM's default on the file's own arrivals."""
    if task.own is None:
        return None

    def attains(label: str, n: int) -> float:
        return attainment(runs.run("own", [label], n, router, task.seeds[:1], "the file's own arrivals")[label][0])

    here, default = attains(policy, at), attains(DEFAULT, at)
    if here >= level:
        return Own(here, default, at)
    if most <= at:
        return Own(here, default, None)
    found = roughly(lambda n: attains(policy, n), level, at + 1, most)
    return Own(here, default, found.replicas if found.reached else None)
