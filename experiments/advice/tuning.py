"""Which candidates go on: all on one tuning seed, the better half on the others, variations of the best likewise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from experiments.advice.candidates import DEFAULT, STOCK, YOURS, Candidate, first_round, second_round
from experiments.advice.runs import Runs
from experiments.advice.trace import Look, Task
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


def tune(
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


def finalists_of(tuned: Sequence[Tuned]) -> list[Candidate]:
    """Return the best of each family and the second best of all, vLLM's default before them; none without a margin.

    Args:
        tuned: the best first.
    """
    tuned = [t for t in tuned if not t.candidate.bare]
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
