"""Advice on a trace: which policy with which parameters on how many replicas, and how sure that is.

Policies are tuned on seeds of their own: all on one, the better half on the others, then sizes around the best and the
best in other orders. A few finalists go to fresh seeds, on which alone numbers are reported: what was chosen for its
luck on the first seeds has no such luck on others. There each number of replicas that is looked at is tested, by
t-tests that share their error probability over numbers and finalists (Bonferroni), until one surely holds the wanted
level of attainment and, if possible, a smaller one surely does not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from experiments.advice.candidates import DEFAULT, Candidate
from experiments.advice.choice import ALPHA, choose
from experiments.advice.found import Advice, Own
from experiments.advice.replicas import Rough, Span, roughly, surely
from experiments.advice.runs import Runs
from experiments.advice.trace import Task
from experiments.advice.tuning import (
    FINALISTS,
    Tuned,
    attainment,
    candidates_of,
    finalists_of,
    routers_of,
    tune,
    tuning_seeds,
)
from experiments.capacity.search import Design, Grid, Verdict
from experiments.config import ConfigError
from sim.metrics import Summary

MOST_REPLICAS = 64

VISITS = 6
"""Numbers of replicas that all finalists are run on, at most."""

VISITS_OF_DEFAULT = 3
"""Further ones that vLLM's default is run on."""

MOST_DENSER = 10
"""A file's own arrivals are not made denser or sparser by more than this: days that pass in minutes are no check."""

STAGES = ("tuning", "fresh", "own")


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
        task: from :func:`experiments.advice.trace.task_of`.
        level: attainment that is wanted, from 0 to 1.
        most: replicas that are looked at, at most.
        out: a folder, which gets a sweep's folder for each stage.
        resume: trust what is finished there.
        jobs: processes.
        progress: say on stderr what is being run.

    Raises:
        PolicyError: if a policy of the user's, or none at all, can run here.
        Interrupted, Stopped, OSError: see :meth:`experiments.advice.runs.Runs.run`.
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
    rough = Rough(task.replicas, True, task.replicas) if task.replicas else roughly(attains, level, start, most)
    router, routers = _best_router(task, probed, rough.replicas)
    tuned = tune(task, runs, candidates, left_out, rough.replicas, router)
    finalists = finalists_of(tuned)
    return _decide(task, level, most, runs, left_out, tuned, finalists, rough, router, routers)


class Judge(Design):
    """A test of attainment, once for each finalist and number of replicas, which share the probability to err."""

    @property
    def most_tests(self) -> int:
        """How many there are at most; none looks at fewer than all seeds."""
        return (FINALISTS + 1) * (VISITS + VISITS_OF_DEFAULT)


def judge_of(task: Task, most: int) -> Judge:
    """Return how attainment is tested on the fresh seeds."""
    return Judge(Grid.between(1, max(most, 2), 1.0), len(task.seeds), task.look.requests, 1 - ALPHA)


def check_tells(task: Task, level: float, most: int) -> None:
    """Refuse runs so few and short that they could not tell even if every request met its objectives.

    Raises:
        ConfigError: in one sentence.
    """
    if judge_of(task, most).told([1.0] * len(task.seeds), level) is not Verdict.HOLDS:
        raise ConfigError(
            f"{len(task.seeds)} seeds of {task.look.requests} requests cannot tell whether {100 * level:g} % meet "
            "their objectives, even if all did; give more --seeds or a larger --limit"
        )


def _best_router(
    task: Task, probed: Callable[[int], dict[str, list[Summary]]], replicas: int
) -> tuple[str, dict[str, float]]:
    routers = routers_of(task)
    if len(routers) == 1 or task.replicas == 1:
        return routers[0], {}
    found = probed(max(replicas, 2))

    def merit(router: str) -> tuple[float, float, float]:
        shares = [attainment(s) for s in found[router]]
        waits = [float(s["ttft_mean_ms"] or 0.0) for s in found[router]]
        return max(shares), float(np.mean(shares)), -min(waits)

    return max(routers, key=merit), {router: merit(router)[0] for router in routers}


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
    judge = judge_of(task, most)
    labels = [c.policy for c in finalists]
    attained: dict[str, dict[int, list[float]]] = {label: {} for label in labels}

    def judged(policies: Sequence[str], n: int) -> dict[str, Verdict]:
        ran = runs.run("fresh", policies, n, router, task.seeds, "fresh seeds")
        for label, summaries in ran.items():
            attained[label][n] = [attainment(s) for s in summaries]
        return {label: judge.told(attained[label][n], level) for label in policies}

    def any_of(n: int) -> Verdict:
        verdicts = set(judged(labels, n).values())
        if Verdict.HOLDS in verdicts:
            return Verdict.HOLDS
        return Verdict.BREAKS if verdicts == {Verdict.BREAKS} else Verdict.UNCLEAR

    open_search = rough.reached and task.replicas is None
    span = surely(any_of, rough.replicas, most, VISITS if open_search else 1)
    at = span.holds if span.holds is not None else max(span.verdicts)
    ran = runs.run("fresh", labels, at, router, task.seeds, "fresh seeds")
    choice = choose(finalists, ran, judged(labels, at))

    def of_default(n: int) -> Verdict:
        return judged([DEFAULT], n)[DEFAULT]

    default = None
    if open_search and span.holds is not None:
        about: int | None = at
        if of_default(at) is not Verdict.HOLDS:
            seed = tuning_seeds()[:1]
            why = "what vLLM's default needs"
            found = roughly(
                lambda n: attainment(runs.run("tuning", [DEFAULT], n, router, seed, why)[DEFAULT][0]), level, at, most
            )
            about = found.replicas if found.reached else None
        if about is not None:
            surely(of_default, about, most, VISITS_OF_DEFAULT)
        default = Span.of({n: judge.told(values, level) for n, values in attained[DEFAULT].items()})
    own = _own(task, runs, level, choice.recommended.policy, at, router, most if open_search else at)
    return Advice(
        task, level, most, left_out, tuned, rough, router, routers, span, at, attained, choice, default, own,
        judge.error, runs,
    )  # fmt: skip


def _own(task: Task, runs: Runs, level: float, policy: str, at: int, router: str, most: int) -> Own | None:
    """Run the recommended policy and vLLM's default on the file's own arrivals."""
    if task.own is None or not 1 / MOST_DENSER <= task.denser <= MOST_DENSER:
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
