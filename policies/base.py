"""The three parts of a policy, Ordering x Chunking x Admission, and their composition.

A part is a dataclass of its parameters. Everything but ``reset`` and ``observe`` is pure: equal views, equal
answers. A host calls ``reset`` at the start of each run and, on parts that define it, ``observe`` after each step.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, NamedTuple

from costmodels.base import CostModel
from policies.sentences import one_line
from policies.views import BatchView, Grant, LoadView, RequestView, ServiceClass, StepRecord


class PolicyError(ValueError):
    """A policy that cannot be built or used; the message, one line, says what is wrong and what would be right."""

    def __init__(self, message: str) -> None:
        super().__init__(one_line(message))


class Part:
    """What orderings, chunkings and admissions have in common."""

    kind: ClassVar[str]
    name: ClassVar[str]
    """The name in a policy string."""
    version: ClassVar[int] = 1
    """Raised when the same parameters would decide differently."""
    source: ClassVar[str] = "user"
    """Where the policy is from: a paper and its section, or a system."""
    needs_predictor: ClassVar[bool] = False
    """The part cannot decide without a cost model to believe."""

    def reset(self, predictor: CostModel | None) -> None:
        """Begin a new run: forget what was learned, and believe ``predictor``."""

    def check_objectives(self, classes: Collection[ServiceClass], predictor: CostModel | None) -> None:
        """Refuse a run whose requests have objectives that the part cannot work with; called before the run.

        Args:
            classes: the different service classes of the requests.
            predictor: what the policy will believe.

        Raises:
            PolicyError: with what is missing or out of reach, and how to give it.
        """

    def params(self) -> dict[str, Any]:
        """Return the parameters by name."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.init}  # type: ignore[arg-type]


class Ordering(Part):
    """Chooses among requests that have not started.

    An ordering overrides :meth:`key`, or :meth:`choose` where one key per request cannot say it.
    """

    kind = "ordering"
    cache_aware: ClassVar[bool] = False
    """The key depends on ``cached_tokens``: hosts read it again when a cache event touches the request."""
    key_at_arrival: ClassVar[bool] = False
    """The key depends on ``cached_tokens`` as seen at arrival, and is never read again: on purpose."""

    def key(self, request: RequestView) -> int:
        """Return an integer that does not depend on the clock; the least goes first, ties by arrival, then number."""
        raise NotImplementedError(f"ordering {self.name} defines neither key nor choose")

    def choose(self, waiting: Sequence[RequestView], now_ns: int) -> RequestView:
        """Return the next of ``waiting``, which is not empty and in order of arrival."""
        return min(waiting, key=lambda r: (self.key(r), r.arrival_ns, r.number))


class QueueObserver(Ordering):
    """Mixin for an ordering that learns from who comes to wait and who is taken; both hosts' queue tells it, in order.

    Between two events the answers stay pure. A key is read after ``entered``; requests that lost their blocks to a
    preemption wait before all others, so they neither enter again nor are taken.
    """

    def entered(self, request: RequestView) -> None:
        """Take note of a request that has come to wait."""

    def taken(self, request: RequestView) -> None:
        """Take note of a request that was next and starts."""

    def withdrawn(self, request: RequestView) -> None:
        """Take note of a request that waits no longer, although it was never taken."""


class Chunking(Part):
    """Decides how many prefill tokens a step takes."""

    kind = "chunking"
    cumulative: ClassVar[bool] = False
    """Token deadlines add up: the next token is due :meth:`deadline_ns` x the outputs so far after the first one, or
    after the end of the TTFT objective if that is later. Otherwise it is due :meth:`deadline_ns` after the last one."""
    lookahead: ClassVar[int] = 1
    """How many candidates the host lists in the view: every started prefill, then as many that wait as are wanting."""

    def grant(self, batch: BatchView) -> Grant:
        """Return the prefill tokens for this step; asked only when there is a candidate.

        No tokens makes a decode-only step, and is an error when nothing decodes.
        """
        raise NotImplementedError(f"chunking {self.name} does not define grant")

    def deadline_ns(self, request: RequestView) -> int | None:
        """Return the time allowed between two tokens of ``request``, or ``None`` for no limit."""
        return request.slo_tpot_ns

    def seat_limit(self, max_num_seqs: int | None) -> int | None:
        """Return how many requests may run at once, given the engine's own limit."""
        return max_num_seqs

    def step_limit(self, max_num_seqs: int, max_model_len: int) -> int:
        """Return the most tokens that a step may have, decodes included: an engine's buffers must hold that many."""
        return max_num_seqs + max_model_len


class Decision(NamedTuple):
    """An admission's answer."""

    verdict: str
    """``accept``, ``reject`` or ``redirect``."""
    reason: str = ""


ACCEPT = Decision("accept")


class Admission(Part):
    """Decides whether an arrival enters the queue."""

    kind = "admission"

    def admit(self, request: RequestView, load: LoadView) -> Decision:
        """Return whether ``request`` is accepted, rejected, or sent to another replica."""
        raise NotImplementedError(f"admission {self.name} does not define admit")


@dataclass(frozen=True)
class Policy:
    """An ordering, a chunking and, where arrivals may be turned away, an admission."""

    ordering: Ordering
    chunking: Chunking
    admission: Admission | None = None
    label: str = ""
    """The policy as the user wrote it."""

    @property
    def parts(self) -> tuple[Part, ...]:
        """The parts that are there."""
        return (self.ordering, self.chunking, *([self.admission] if self.admission else []))

    @property
    def needs_predictor(self) -> bool:
        """Whether any part consults a cost model."""
        return any(p.needs_predictor for p in self.parts)

    def reset(self, predictor: CostModel | None) -> None:
        """Begin a new run with ``predictor`` as the cost model that the policy believes."""
        for part in self.parts:
            part.reset(predictor)

    def check_objectives(self, classes: Collection[ServiceClass], predictor: CostModel | None) -> None:
        """Refuse, before a run, requests that the policy cannot work with; see :meth:`Part.check_objectives`."""
        for part in self.parts:
            part.check_objectives(classes, predictor)

    @property
    def observers(self) -> list[Observer]:
        """The parts that learn from steps."""
        return [p for p in self.parts if isinstance(p, Observer)]


class Observer(Part):
    """Mixin for a part that learns from what steps took."""

    def observe(self, step: StepRecord) -> None:
        """Take note of a step that has ended."""
        raise NotImplementedError(f"{self.kind} {self.name} does not define observe")
