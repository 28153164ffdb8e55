"""What an advice is going to run, before it does."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from experiments.advice.runs import Runs
from experiments.advice.trace import Task
from experiments.advice.tuning import FINALISTS, KEPT, TUNING_SEEDS, candidates_of, routers_of, tuning_seeds
from experiments.config import ConfigError
from experiments.folders import RUNS, latest

NAME = "advise"

NUMBERS = 3
"""Numbers of replicas that a search usually looks at."""


def check_level(percent: float) -> float:
    """Return a level of attainment as a share.

    Raises:
        ConfigError: if it is below 1, for a share in place of a percentage, or not below 100.
    """
    if not 1 <= percent < 100:
        raise ConfigError(f"--attainment {percent:g} should be a percentage from 1 to below 100, like 90")
    return percent / 100


def new_folder(resume: bool) -> Path:
    """Return ``runs/advise``, with a number where there is one already; to resume, the newest that there is."""
    newest = latest(NAME)
    if newest is None:
        return RUNS / NAME
    return newest if resume else RUNS / f"{NAME}-{1 + int(newest.name.removeprefix(NAME).lstrip('-') or 1)}"


def planned(task: Task, level: float) -> dict[str, Any]:
    """Return what is tried first, and about how many runs the whole takes.

    Raises:
        PolicyError: if a policy of the user's, or none at all, can run.
    """
    runs = Runs(Path(), resume=False, jobs=1, progress=False)
    tuning = task.draft.copy()
    tuning.put("seeds", list(tuning_seeds()), NAME)
    runs.open("tuning", tuning)
    candidates, left_out = candidates_of(task, runs)
    first, second = len(candidates), 8
    halves = sum(n + (TUNING_SEEDS - 1) * max(KEPT, math.ceil(n / 2)) for n in (first, second))
    probes = sum(c.probe for c in candidates) * len(routers_of(task))
    numbers = 1 if task.replicas else NUMBERS
    tests = (FINALISTS + 1) * len(task.seeds) * numbers
    return {
        "look": task.look.document(),
        "trace": task.cell.source.label,
        "objectives": str(task.cell.objectives),
        "level": level,
        "candidates": [c.policy for c in candidates],
        "left_out": left_out,
        "routers": routers_of(task),
        "tuning_runs": halves + (0 if task.replicas else probes),
        "fresh_runs": tests,
        "runs": halves + tests + (0 if task.replicas else probes),
    }


def outlook(plan: dict[str, Any]) -> list[str]:
    """Return the plan in words."""
    look = plan["look"]
    return [
        f"About {plan['runs']} runs of {look['requests']:,} requests: {len(plan['candidates'])} policies, then "
        "variations of the best, are tuned, and the finalists compared on fresh seeds.",
        f"First: {', '.join(plan['candidates'])}.",
    ]
