"""The engine written naively: one token per decode per step in a loop, nothing counted, heaped or skipped.

It shares the policies, the cost models and the views with the engine, and nothing else. Slow on purpose.
"""

from __future__ import annotations

from functools import cache

from costmodels import CostModel
from policies import Grant, LoadView, Policy, StepRecord
from sim.limits import Limits
from sim.objectives import Objectives
from sim.records import FINISHED, NULL, OUTCOMES, REJECTED
from tests.blockwise import BlockwisePool
from tests.reference_state import State
from tests.reference_tables import FEATURES, Request, tables_of
from tests.sim.slow_store import SlowStore
from tests.tables import RunTables
from traces import Trace


@cache
def pairs(context: int, chunk: int) -> int:
    """Return how many tokens those of a chunk attend to together, each itself and all before it."""
    return sum(range(context + 1, context + chunk + 1))


class Loop(State):
    """The steps of an engine, one by one.

    At pipeline depth 2 as vLLM takes them in ``EngineCore.step_with_batch_queue``: the next step is decided when this
    one starts, or when it ends where nothing could be scheduled before.
    """

    def run(self) -> None:
        while self.limits.horizon_ns is None or self.now < self.limits.horizon_ns:
            self.end_steps()
            self.take_leave()
            while self.future and self.future[0].view.arrival_ns <= self.now:
                self.arrive(self.future.pop(0))
            if self.cache and self.policy.ordering.cache_aware:
                for r in self.waiting:
                    r.view = r.view._replace(cached_tokens=self.cache.hit_tokens(r.view.number, r.tokens))
            may_start = self.seat_free() and self.head_fits()
            if not (self.prefilling or self.decoding or may_start):
                if self.in_flight:
                    self.await_outputs()
                    continue
                coming = [r.view.arrival_ns for r in self.future[:1]]
                if self.front or self.waiting:
                    coming += [at for at, _ in self.leaving]
                if not coming:
                    break
                self.now = min(coming)
                continue
            n_waiting = len(self.front) + len(self.waiting)
            grant = Grant(0)
            if self.prefilling or may_start:
                grant = self.policy.chunking.grant(self.look(may_start, n_waiting))
            batch, lost = self.allocate(grant.tokens, grant.prefills, grant.cap)
            if not lost:
                self.admit(batch, grant)
            if batch or self.decoding:
                self.step(batch, grant, n_waiting)
            elif self.in_flight:
                self.await_outputs()
        if self.in_flight:
            self.await_outputs()
            self.end_steps()
        self.now = max([self.now, *(at for at, _ in self.leaving)])
        self.take_leave()

    def await_outputs(self) -> None:
        """Let time pass: nothing can be scheduled before the outputs of a step are known."""
        self.now = max(at for at, _, _ in self.in_flight)

    def end_steps(self) -> None:
        for entry in [e for e in self.in_flight if e[0] <= self.now]:
            self.in_flight.remove(entry)
            _, record, served = entry
            for r in served:
                r.delivered += 1
                if self.pool and r in self.running:
                    r.hold(self.pool, r.computed, r.computed - r.placeholders)
                if r.delivered == r.outputs:
                    r.outcome = FINISHED
                    # One that was preempted while its last token was on its way has no blocks any more.
                    if r in self.running:
                        self.running.remove(r)
                        self.leaving.append((record.start_ns + record.duration_ns, r))
                    else:
                        self.front.remove(r)
            for part in self.policy.observers:
                part.observe(record)

    def take_leave(self) -> None:
        for entry in [e for e in self.leaving if e[0] <= self.now]:
            self.leaving.remove(entry)
            self.give_back(entry[1])

    def give_back(self, r: Request) -> None:
        if self.pool:
            self.pool.finish(r.view.number, r.computed)
        if self.store:
            self.store.finish(r.view.number)

    def arrive(self, r: Request) -> None:
        r.visible_step = len(self.steps)
        contexts, longest = self.contexts(), self.limits.max_model_len
        reason = None
        if self.cache:
            r.view = r.view._replace(cached_tokens=self.cache.hit_tokens(r.view.number, r.prompt))
        if longest is not None and r.prompt + r.outputs > longest:
            reason = f"{r.prompt} prompt and {r.outputs} output tokens exceed max_model_len {longest}"
        elif self.pool:
            reason = self.pool.refusal(r.view.number)
        if reason is not None:
            r.outcome, self.reasons[r.view.number] = REJECTED, reason
            return
        if self.policy.admission is not None:
            n_waiting = len(self.front) + len(self.waiting)
            tallest = max(contexts, default=0)
            load = LoadView(self.now, len(contexts), sum(contexts), tallest, len(self.prefilling), n_waiting)
            decision = self.policy.admission.admit(r.view, load)
            if decision.verdict != "accept":
                r.outcome = OUTCOMES.index(decision.verdict + "ed")
                self.reasons[r.view.number] = decision.reason
                return
        self.waiting.append(r)
        if self.observer:
            self.observer.entered(r.view)

    def allocate(self, left: int, prefills: int | None, cap: int | None) -> tuple[list[tuple[Request, int]], bool]:
        """Find the blocks of running requests in their order; return the chunks that got theirs, and if any lost."""
        chunks: dict[Request, int] = {}
        for r in self.prefilling[:prefills]:
            if c := min([left, r.missing] + ([] if cap is None else [cap])):
                chunks[r] = c
                left -= c
        if self.pool is None:
            return list(chunks.items()), False
        batch, lost = [], False
        for r in list(self.running):
            if r not in self.running or (r not in self.decoding and r not in chunks):
                continue
            upto = r.computed + chunks.get(r, 1)
            while r in self.running and self.pool.missing(r.view.number, upto) > self.pool.free:
                self.preempt(self.running[-1])
                lost = True
            if r in self.running:
                r.hold(self.pool, upto, upto)
                batch += [(r, chunks[r])] if r in chunks else []
            else:
                break
        return batch, lost

    def preempt(self, r: Request) -> None:
        assert self.pool is not None
        self.running.remove(r)
        for those in (self.decoding, self.prefilling):
            if r in those:
                those.remove(r)
        self.pool.finish(r.view.number, r.hashed)
        r.computed = r.hashed = 0
        r.preempted += 1
        after = r.token_steps[-1] if r.token_steps else NULL
        self.preemptions.append([len(self.steps), r.view.number, after, NULL])
        r.view = r.view._replace(generated_tokens=len(r.token_steps), cached_tokens=0)
        self.front.insert(0, r)

    def admit(self, batch: list[tuple[Request, int]], grant: Grant) -> None:
        """Start waiting requests, strictly in their order, as far as the grant, seats and blocks go."""
        left = grant.tokens - sum(c for _, c in batch)
        order = self.in_order()
        while left > 0 and (grant.prefills is None or len(batch) < grant.prefills) and self.seat_free():
            r = next(order)
            number = r.view.number
            if self.pool and not self.pool.fits(number, r.tokens, 0):
                break
            if self.observer and r in self.waiting:
                self.observer.taken(r.view)
            (self.front if r in self.front else self.waiting).remove(r)
            if self.cache:
                r.computed = self.cache.start(number, r.tokens, self.now)
            if not r.chunk_steps:
                r.hits = r.computed
            c = min([left, r.missing] + ([] if grant.cap is None else [grant.cap]))
            if self.pool:
                r.hold(self.pool, r.computed + c, r.computed + c)
            self.running.append(r)
            self.prefilling.append(r)
            batch.append((r, c))
            left -= c

    def step(self, batch: list[tuple[Request, int]], grant: Grant, n_waiting: int) -> None:
        decodes = self.decoding + [r for r, _ in batch if r.only_decodes]
        prefills = [(r.computed, c) for r, c in batch if not r.only_decodes]
        features = (
            len(decodes),
            sum(r.computed for r in decodes),
            max([r.computed for r in decodes], default=0),
            len(prefills),
            sum(c for _, c in prefills),
            sum(pairs(context, c) for context, c in prefills),
        )
        stall = self.bring_blocks() if self.store and batch else 0
        start = max([self.now, *(at for at, _, _ in self.in_flight)])
        until_next, duration, busy = self.stages.run(start, stall, features)
        self.steps.append(
            {
                "decided_ns": self.now,
                "start_ns": start,
                **dict(zip(FEATURES, features, strict=True)),
                "waiting": n_waiting,
                "granted_tokens": grant.tokens,
                "exception": int(grant.exception),
                "duration_ns": duration,
                "predicted_ns": self.predictor.step_ns(*features) if self.policy.needs_predictor else NULL,
                "kv_blocks": self.pool.capacity - self.pool.free if self.pool else NULL,
                "busy_ns": busy,
                "replica": 0,
            }
        )
        k = len(self.steps) - 1
        for r, c in batch:
            self.chunks.append((k, r.view.number, c))
            r.chunk_steps.append(k)
        for r, c in [*((r, 1) for r in self.decoding), *batch]:
            r.computed += c
            if r.missing == 0:
                self.emit(r, k)
        served = [r for r in self.running if r.token_steps[-1:] == [k]]
        record = StepRecord(self.now, start, duration, *features)
        self.decoding = [r for r in self.decoding if len(r.token_steps) < r.outputs]
        # One step at a time means that the next is decided when the outputs of this one are known.
        known = start + (until_next if self.depth == 1 else duration)
        self.in_flight.append((known, record, served))
        self.now = known if self.depth == 1 else start

    def emit(self, r: Request, step: int) -> None:
        r.token_steps.append(step)
        for row in self.preemptions:
            if row[1] == r.view.number and row[3] == NULL:
                row[3] = step
        if r in self.prefilling:
            self.prefilling.remove(r)
            self.decoding.append(r)

    def bring_blocks(self) -> int:
        """Return how long the step waits for CPU memory, and send for what the next request finds there."""
        assert self.store is not None
        stall, self.store.stall_ns = self.store.stall_ns, 0
        if self.waiting:
            head = next(self.in_order())
            self.store.prefetch(head.view.number, head.tokens, self.now)
        return stall


def reference(
    trace: Trace,
    policy: Policy,
    cost: CostModel,
    *,
    predictor: CostModel | None = None,
    objectives: Objectives | None = None,
    limits: Limits | None = None,
    cache: BlockwisePool | SlowStore | None = None,
) -> RunTables:
    """Return what ``sim.engine.simulate`` should return for the same arguments."""
    loop = Loop(trace, policy, cost, predictor or cost, objectives or Objectives(), limits or Limits(), cache)
    loop.run()
    return tables_of(trace, loop.requests, loop.steps, loop.chunks, loop.preemptions, loop.reasons)
