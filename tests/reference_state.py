"""The state of the naive loop, and what a policy sees of it."""

from __future__ import annotations

import copy
from collections.abc import Iterator

from costmodels import CostModel
from policies import BatchView, Candidate, Policy, QueueObserver, StepRecord
from sim.limits import Limits
from sim.objectives import Objectives
from tests.blockwise import BlockwisePool
from tests.reference_tables import Request, requests_of
from tests.sim.slow_store import SlowStore
from tests.slow_tandem import SlowTandem
from traces import Trace


class State:
    """Who waits, who runs, which steps are in flight, and what has happened so far."""

    def __init__(
        self,
        trace: Trace,
        policy: Policy,
        cost: CostModel,
        predictor: CostModel,
        objectives: Objectives,
        limits: Limits,
        cache: BlockwisePool | SlowStore | None,
    ) -> None:
        policy.reset(predictor)
        self.policy, self.predictor, self.limits = policy, predictor, limits
        self.observer = policy.ordering if isinstance(policy.ordering, QueueObserver) else None
        self.depth = limits.pipeline_depth
        self.pool = cache if isinstance(cache, BlockwisePool) else None
        self.store = cache if isinstance(cache, SlowStore) else None
        self.cache = cache
        self.seats = policy.chunking.seat_limit(1 if self.store else limits.max_num_seqs)
        self.requests = requests_of(trace, objectives)
        self.future = list(self.requests)
        self.front: list[Request] = []
        """Preempted requests."""
        self.waiting: list[Request] = []
        self.running: list[Request] = []
        """Those that prefill, decode or wait for their last token, in the order of their admission and of a batch."""
        self.prefilling: list[Request] = []
        self.decoding: list[Request] = []
        self.in_flight: list[tuple[int, StepRecord, list[Request]]] = []
        """Steps whose outputs are not known yet: when they will be, and whose they are, in batch order."""
        self.leaving: list[tuple[int, Request]] = []
        """Finished requests whose batch is still in the pipeline, and when it leaves it."""
        self.stages = SlowTandem(cost.stages())
        self.steps: list[dict[str, int]] = []
        self.chunks: list[tuple[int, int, int]] = []
        self.preemptions: list[list[int]] = []
        self.reasons: dict[int, str] = {}
        self.now = 0

    def contexts(self) -> list[int]:
        return [r.computed for r in self.decoding]

    def seat_free(self, taken: int = 0) -> bool:
        return bool(self.front or self.waiting) and (self.seats is None or len(self.running) + taken < self.seats)

    def start_ns(self) -> int:
        """When the step that is decided now starts, as far as the policy can tell."""
        ends = [step.start_ns + self.predictor.step_ns(*step[3:]) for _, step, _ in self.in_flight]
        return max([self.now, *ends])

    def in_order(self) -> Iterator[Request]:
        """Give those that wait in the order in which they would be taken."""
        yield from list(self.front)
        rest = {r.view.number: r for r in self.waiting}
        ordering = copy.deepcopy(self.policy.ordering) if self.observer else self.policy.ordering
        while rest:
            chosen = ordering.choose([r.view for r in rest.values()], self.start_ns())
            if isinstance(ordering, QueueObserver):
                ordering.taken(chosen)
            yield rest.pop(chosen.number)

    def head_fits(self) -> bool:
        """Return whether the next request fits beside the blocks that this step's decodes need."""
        if self.pool is None:
            return True
        head = next(self.in_order())
        needed = sum(self.pool.missing(r.view.number, r.computed + 1) for r in self.decoding)
        return self.pool.fits(head.view.number, head.tokens, needed)

    def due(self, r: Request, allowed: int, now: int) -> int:
        """Return when the next token of a request is due."""
        if not self.policy.chunking.cumulative:
            return now + allowed
        first = self.steps[r.token_steps[0]]
        end = first["start_ns"] + first["duration_ns"]
        start = max(end if end <= self.now else now, r.view.arrival_ns + (r.view.slo_ttft_ns or 0))
        return start + allowed * len(r.token_steps)

    def look(self, may_start: bool, n_waiting: int) -> BatchView:
        chunking, contexts = self.policy.chunking, self.contexts()
        now = self.start_ns()
        deadlines = [self.due(r, d, now) for r in self.decoding if (d := chunking.deadline_ns(r.view)) is not None]
        listed = [Candidate(r.view, r.computed, r.missing) for r in self.prefilling]
        for r in self.in_order() if may_start else []:
            if len(listed) >= chunking.lookahead or not self.seat_free(len(listed) - len(self.prefilling)):
                break
            hit = self.cache.hit_tokens(r.view.number, r.tokens) if self.cache else 0
            listed.append(Candidate(r.view._replace(cached_tokens=hit), hit, r.tokens - hit))
        return BatchView(
            now,
            len(contexts),
            sum(contexts),
            max(contexts, default=0),
            min(deadlines, default=None),
            tuple(listed),
            n_waiting,
        )
