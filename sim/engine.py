"""One model replica as a SimPy process: continuous batching under a scheduling policy, on an integer clock.

Decodes are counted, not looped over: every decoding request gains one token in every step, so a request that emits
its first token in step ``k`` finishes in step ``k + outputs - 1``, and batch sums follow by arithmetic. A stretch of
steps in which nothing can be decided is advanced in one go, with exactly the result of going step by step.
"""

from __future__ import annotations

import heapq
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

import numpy as np
import simpy

from costmodels.base import CostModel
from policies.base import Policy, PolicyError
from policies.queue import PolicyQueue
from policies.views import BatchView, Candidate, LoadView, RequestView, StepRecord
from sim.kvcache import KVCache, NullCache
from sim.objectives import Objectives
from sim.records import (
    FINISHED,
    REDIRECTED,
    REJECTED,
    RunLog,
    RunTables,
    chunk_table,
    pack_step,
    request_table,
    step_table,
)
from traces.schema import NONE, Trace

FAR = 1 << 62
"""Later than any time or step."""

STRETCH_MIN = 6
"""Shorter decode-only stretches are cheaper step by step than as arrays."""


@dataclass(frozen=True)
class Limits:
    """What bounds an engine beside its policy; ``None`` means no bound."""

    max_num_seqs: int | None = None
    """Most requests that run at once, decoding or in the middle of their prefill."""
    max_model_len: int | None = None
    """Most tokens of one request, prompt and output; longer ones are rejected."""
    horizon_ns: int | None = None
    """No step starts at or after this time; what has not finished by then is unfinished."""


class _Running:
    """A started prefill."""

    __slots__ = ("computed", "index", "remaining", "view")

    def __init__(self, view: RequestView, computed: int, remaining: int) -> None:
        self.view = view
        self.index = view.number
        self.computed = computed
        self.remaining = remaining


class _LeastActive:
    """The least value among requests that still decode; they leave by the step in which they finish."""

    __slots__ = ("_heap",)

    def __init__(self) -> None:
        self._heap: list[tuple[int, int]] = []

    def add(self, value: int, finish_step: int) -> None:
        heapq.heappush(self._heap, (value, finish_step))

    def least(self, step: int) -> int:
        """Return the least value of those that finish at ``step`` or later, ``FAR`` where there is none."""
        heap = self._heap
        while heap and heap[0][1] < step:
            heapq.heappop(heap)
        return heap[0][0] if heap else FAR


class Engine:
    """Runs a trace under a policy; see :func:`simulate`.

    Promises: arrivals at or before a step's start are seen by it, in trace order; started prefills get tokens before
    waiting requests; a request that finishes leaves at the end of the step; events at equal times have no order to
    get wrong, for there is one process per engine.
    """

    def __init__(
        self,
        env: simpy.Environment,
        trace: Trace,
        policy: Policy,
        cost: CostModel,
        *,
        predictor: CostModel | None = None,
        objectives: Objectives | None = None,
        limits: Limits | None = None,
        cache: KVCache | None = None,
        stretch: bool = True,
    ) -> None:
        self.env = env
        self.trace = trace
        self.policy = policy
        self.cost = cost
        self.predictor = predictor or cost
        self.limits = limits or Limits()
        self.objectives = objectives or Objectives()
        self.cache = cache or NullCache()
        policy.reset(self.predictor)
        self.queue = PolicyQueue(policy.ordering)
        self.log = RunLog(len(trace))
        self.observers = policy.observers
        self._stretch = stretch and not self.observers
        self._seats = policy.chunking.seat_limit(self.limits.max_num_seqs) or FAR
        self._arrivals = [*trace.arrival_ns.tolist(), FAR]
        self._prompts = trace.prompt_tokens.tolist()
        self._outputs = trace.output_tokens.tolist()
        self._next = 0
        self._prefilling: list[_Running] = []
        self._step = 0
        self._n = 0
        self._context = 0
        self._finishes: list[tuple[int, int]] = []
        # A decoding request's context is its prompt plus the steps since its first token, so "prompt - step of the
        # first token" orders contexts for as long as it decodes; likewise all wait since the same last token.
        self._tallest = _LeastActive()
        self._tightest = _LeastActive()
        self.process = env.process(self._run())

    def _view(self, i: int) -> RequestView:
        trace, goals = self.trace, self.objectives
        ttft, tpot = goals.ttft, goals.deadline_ns
        if trace.slo_ttft_ns is not None and trace.slo_ttft_ns[i] != NONE:
            ttft = int(trace.slo_ttft_ns[i])
        if trace.slo_tpot_ns is not None and trace.slo_tpot_ns[i] != NONE:
            tpot = int(trace.slo_tpot_ns[i])
        return RequestView(
            i,
            self._arrivals[i],
            self._prompts[i],
            self.cache.hit_tokens(i),
            0,
            ttft,
            tpot,
            None if trace.tenant is None else trace.tenant[i],
            None if trace.session is None else trace.session[i],
        )

    def _arrive(self, now: int) -> None:
        admission = self.policy.admission
        longest = self.limits.max_model_len
        log = self.log
        while self._arrivals[self._next] <= now:
            i = self._next
            self._next += 1
            log.visible[i] = self._step
            if longest is not None and self._prompts[i] + self._outputs[i] > longest:
                log.outcome[i] = REJECTED
                log.reasons[i] = (
                    f"{self._prompts[i]} prompt and {self._outputs[i]} output tokens exceed max_model_len {longest}"
                )
                continue
            view = self._view(i)
            if admission is not None:
                tallest = self._tallest.least(self._step)
                load = LoadView(
                    now,
                    self._n,
                    self._context,
                    self._step - 1 - tallest if self._n else 0,
                    len(self._prefilling),
                    len(self.queue),
                )
                decision = admission.admit(view, load)
                if decision.verdict != "accept":
                    log.outcome[i] = REJECTED if decision.verdict == "reject" else REDIRECTED
                    log.reasons[i] = decision.reason
                    continue
            self.queue.add(view)

    def _run(self) -> Generator[simpy.Event, Any, None]:
        timeout = self.env.timeout
        queue, prefilling, arrivals = self.queue, self._prefilling, self._arrivals
        horizon = FAR if self.limits.horizon_ns is None else self.limits.horizon_ns
        now = int(self.env.now)
        while now < horizon:
            if arrivals[self._next] <= now:
                self._arrive(now)
            if prefilling or (queue and self._n < self._seats):
                duration = self._decide_and_step(now)
            elif self._n:
                duration = self._decode_only(now, horizon)
            elif arrivals[self._next] < FAR:
                duration = arrivals[self._next] - now
            else:
                return
            yield timeout(duration)
            now += duration

    def _decide_and_step(self, now: int) -> int:
        """Ask the chunking, hand out its tokens, and carry the step through; return its duration."""
        queue, prefilling, log = self.queue, self._prefilling, self.log
        n, context, step, waiting = self._n, self._context, self._step, len(queue)
        chunking = self.policy.chunking
        tallest = step - 1 - self._tallest.least(step) if n else 0
        tightest = self._tightest.least(step) if n else FAR
        batch = BatchView(
            now,
            n,
            context,
            tallest,
            None if tightest == FAR else now + tightest,
            self._candidates(chunking.lookahead, now),
            waiting,
        )
        grant = chunking.grant(batch)
        tokens, prefills, cap, exception = grant
        left = tokens
        slots = FAR if prefills is None else prefills
        n_prefill = pairs = 0
        chunks = log.chunks
        done: list[_Running] | None = None
        if left > 0:
            position = 0
            while left > 0 and n_prefill < slots:
                if position < len(prefilling):
                    run = prefilling[position]
                elif queue and n + len(prefilling) < self._seats:
                    run = self._start(now)
                else:
                    break
                position += 1
                c = run.remaining if run.remaining < left else left
                if cap is not None and c > cap:
                    c = cap
                pairs += c * run.computed + (c * (c + 1) >> 1)
                left -= c
                n_prefill += 1
                run.computed += c
                run.remaining -= c
                chunks.extend((step, run.index, c))
                if not run.remaining:
                    done = [run] if done is None else [*done, run]
        used = tokens - left if left > 0 else tokens
        if not n and n_prefill == 0:
            raise PolicyError(
                f"policy {self.policy.label}: {chunking.name} granted {tokens} tokens at {now} ns although nothing "
                "decodes, so the engine would wait for ever"
            )
        if tokens < 0:
            raise PolicyError(f"policy {self.policy.label}: {chunking.name} granted {tokens} tokens at {now} ns")
        duration = self.cost.step_ns(n, context, tallest, n_prefill, used, pairs)
        log.steps += pack_step(
            now, n, context, tallest, n_prefill, used, pairs, waiting, min(tokens, FAR), exception, 1
        )
        log.durations.append(duration)
        if self.predictor is not self.cost:
            log.predicted.append(self.predictor.step_ns(n, context, tallest, n_prefill, used, pairs))
        self._context = context + n
        if n and self._finishes[0][0] == step:
            self._finish(step)
        if done is not None:
            for run in done:
                self._first_token(run, step)
        self._step = step + 1
        if self.observers:
            record = StepRecord(now, now, duration, n, context, tallest, n_prefill, used, pairs)
            for part in self.observers:
                part.observe(record)
        return duration

    def _candidates(self, lookahead: int, now: int) -> tuple[Candidate, ...]:
        started = tuple(Candidate(r.view, r.computed, r.remaining) for r in self._prefilling)
        if started or not lookahead or self._n >= self._seats:
            if lookahead <= len(started):
                return started
            lookahead -= len(started)
        if not self.queue or self._n + len(started) >= self._seats:
            return started
        waiting = self.queue.first(lookahead, now)
        hits = [self.cache.hit_tokens(v.number) for v in waiting]
        return started + tuple(Candidate(v, h, v.prompt_tokens - h) for v, h in zip(waiting, hits, strict=True))

    def _start(self, now: int) -> _Running:
        view = self.queue.pop(now)
        cached = self.cache.start(view.number)
        self.log.started[view.number] = self._step
        self.log.cached[view.number] = cached
        run = _Running(view, cached, view.prompt_tokens - cached)
        self._prefilling.append(run)
        return run

    def _first_token(self, run: _Running, step: int) -> None:
        i = run.index
        self._prefilling.remove(run)
        self.log.first_token[i] = step
        outputs = self._outputs[i]
        if outputs == 1:
            self.log.finished[i] = step
            self.log.outcome[i] = FINISHED
            self.cache.finish(i)
            return
        finish = step + outputs - 1
        heapq.heappush(self._finishes, (finish, i))
        prompt = self._prompts[i]
        self._tallest.add(step - prompt, finish)
        deadline = self.policy.chunking.deadline_ns(run.view)
        if deadline is not None:
            self._tightest.add(deadline, finish)
        self._n += 1
        self._context += prompt

    def _finish(self, step: int) -> None:
        """Retire the requests whose last token came in ``step``; their context is that after the step."""
        finishes, log = self._finishes, self.log
        while finishes and finishes[0][0] == step:
            i = heapq.heappop(finishes)[1]
            log.finished[i] = step
            log.outcome[i] = FINISHED
            self._n -= 1
            self._context -= self._prompts[i] + self._outputs[i] - 1
            self.cache.finish(i)

    def _decode_only(self, now: int, horizon: int) -> int:
        """Advance to the next finish or to the first step boundary that sees an arrival; return the time it takes."""
        log, n, context, step = self.log, self._n, self._context, self._step
        tallest = step - 1 - self._tallest.least(step)
        until = min(self._arrivals[self._next], horizon)
        most = self._finishes[0][0] - step + 1
        first = self.cost.step_ns(n, context, tallest, 0, 0, 0)
        # Steps do not get shorter as contexts grow, so at most this many fit before the next event.
        most = min(most, (until - now - 1) // first + 1) if until > now else 1
        if most < STRETCH_MIN or not self._stretch:
            durations, taken = self._decode_steps(now, until, most, first, tallest)
        else:
            run = self.cost.decode_run_ns(n, context, tallest, most)
            ends = np.cumsum(run)
            taken = min(most, int(np.searchsorted(ends, until - now, side="left")) + 1)
            durations = int(ends[taken - 1])
            log.steps += pack_step(now, n, context, tallest, 0, 0, 0, len(self.queue), 0, 0, taken)
            log.durations.frombytes(run[:taken].tobytes())
            if self.predictor is not self.cost:
                log.predicted.frombytes(self.predictor.decode_run_ns(n, context, tallest, taken).tobytes())
        self._step = step + taken
        self._context = context + n * taken
        if self._finishes[0][0] == self._step - 1:
            self._finish(self._step - 1)
        return durations

    def _decode_steps(self, now: int, until: int, most: int, duration: int, tallest: int) -> tuple[int, int]:
        """Go step by step for at most ``most`` steps; return the time they take and their number."""
        log, n, context, waiting = self.log, self._n, self._context, len(self.queue)
        clock, taken = now, 0
        while True:
            log.steps += pack_step(clock, n, context, tallest, 0, 0, 0, waiting, 0, 0, 1)
            log.durations.append(duration)
            if self.predictor is not self.cost:
                log.predicted.append(self.predictor.step_ns(n, context, tallest, 0, 0, 0))
            for part in self.observers:
                part.observe(StepRecord(clock, clock, duration, n, context, tallest, 0, 0, 0))
            clock += duration
            taken += 1
            if taken == most or clock >= until:
                return clock - now, taken
            context += n
            tallest += 1
            duration = self.cost.step_ns(n, context, tallest, 0, 0, 0)

    def tables(self) -> RunTables:
        """Return the expanded tables of a run that has ended."""
        steps = step_table(self.log, self.policy.needs_predictor)
        return RunTables(request_table(self.trace, self.log, steps), steps, chunk_table(self.log), self.log.reasons)


def simulate(
    trace: Trace,
    policy: Policy,
    cost: CostModel,
    *,
    predictor: CostModel | None = None,
    objectives: Objectives | None = None,
    limits: Limits | None = None,
    stretch: bool = True,
) -> RunTables:
    """Run ``trace`` under ``policy`` on one engine that charges ``cost`` per step.

    Args:
        trace: the requests.
        policy: decides what to prefill; it is reset first.
        cost: the true duration of steps.
        predictor: the cost model that the policy believes; ``cost`` by default.
        objectives: give requests without objectives of their own theirs.
        limits: bounds of the engine.
        stretch: advance decode-only stretches in one go. The tables do not depend on it.

    Raises:
        PolicyError: if the policy cannot work with these limits, or answers what no engine can carry out.
    """
    env = simpy.Environment()
    engine = Engine(
        env,
        trace,
        policy,
        cost,
        predictor=predictor,
        objectives=objectives,
        limits=limits,
        stretch=stretch,
    )
    env.run()
    return engine.tables()
