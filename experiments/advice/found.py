"""What an advice has found."""

from __future__ import annotations

from dataclasses import dataclass, field

from experiments.advice.candidates import NONE, STOCK
from experiments.advice.choice import Choice
from experiments.advice.replicas import Rough, Span
from experiments.advice.runs import Runs
from experiments.advice.trace import Task
from experiments.advice.tuning import Tuned


@dataclass(frozen=True)
class Own:
    """The recommended policy on the file's own arrivals, made as dense as the rate: one run, without an interval."""

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
