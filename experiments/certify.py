"""Certificates for policies: the checks of ``policies.checks``, and a short simulation in which every request ends."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from costmodels.base import CostModel
from experiments.run import place_of
from policies.base import Part, Policy, PolicyError
from policies.checks import DEFAULT_PREDICTOR, check_policy
from policies.registry import load_plugin
from policies.spec import PolicySpec
from sim.engine import simulate
from sim.objectives import Objectives
from sim.records import FINISHED, UNFINISHED
from traces.synthetic import generate

REQUESTS = 200

OBJECTIVES = "ttft:1000,tpot_p99:25"

WHOLE = {"ordering": "{}+full", "chunking": "fcfs+{}", "admission": "fcfs+full+{}"}
"""How a part becomes a policy."""


@dataclass(frozen=True)
class Certificate:
    """What was checked, and what is wrong with it, a sentence each."""

    subject: str
    policy: str
    problems: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems


def certify(target: str, predictor: CostModel | None = None, seed: int = 0) -> list[Certificate]:
    """Check a policy string, or every part that a Python file registers; what those print goes to stderr.

    Args:
        target: the policy string or the file.
        predictor: the cost model to believe and to charge; SLOWeave's by default.
        seed: of the simulated requests.

    Raises:
        PolicyError: if the file cannot be loaded, or the string is no policy.
    """
    with redirect_stdout(sys.stderr):
        if target.endswith(".py") or Path(target).is_file():
            return [_certify_part(part, predictor, seed) for part in load_plugin(target)]
        policy = PolicySpec.parse(target).build()
        problems = check_policy(policy, predictor=predictor) or simulation_problems(policy, predictor, seed)
        return [Certificate(target, target, tuple(problems))]


def _certify_part(part: type[Part], predictor: CostModel | None, seed: int) -> Certificate:
    subject, text = f"{part.kind} {part.name}", WHOLE[part.kind].format(part.name)
    problems = check_policy(part, predictor=predictor)
    if not problems:
        try:
            problems = simulation_problems(PolicySpec.parse(text).build(), predictor, seed)
        except PolicyError as e:
            problems = [str(e)]
    return Certificate(subject, text, tuple(problems))


def simulation_problems(policy: Policy, predictor: CostModel | None = None, seed: int = 0) -> list[str]:
    """Run 200 requests of the mixed workload and say what goes wrong."""
    cost: Any = predictor or DEFAULT_PREDICTOR
    try:
        tables = simulate(generate("mixed", seed, REQUESTS), policy, cost, objectives=Objectives.parse(OBJECTIVES))
    except PolicyError as e:
        return [f"a short simulation stopped: {e}"]
    except KeyboardInterrupt:
        raise
    except BaseException as e:  # the policy's code may raise anything
        file, line = place_of(e)
        return [f"a short simulation stopped: {type(e).__name__}: {e} ({file}, line {line})"]
    outcome = tables.requests["outcome"]
    unfinished = int((outcome == UNFINISHED).sum())
    if unfinished:
        return [f"{unfinished} of {REQUESTS} requests of a short simulation never finished"]
    if policy.admission is not None and not (outcome == FINISHED).any():
        return [f"all {REQUESTS} requests of a short simulation were turned away"]
    return []
