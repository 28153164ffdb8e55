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

from costmodels.base import CostModel, CostModelError
from policies.base import Policy, PolicyError
from policies.queue import PolicyQueue
from policies.views import BatchView, Candidate, Grant, LoadView, RequestView, StepRecord
from sim.kvcache import KVCache, NullCache
from sim.least import FAR, LeastActive
from sim.objectives import Objectives
from sim.records import CHUNK_COLUMNS, REDIRECTED, REJECTED, LoggedRun, RunLog, pack_step
from sim.views import request_views
from traces.schema import Trace

STRETCH_MIN = 12
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

    def __post_init__(self) -> None:
        for name in ("max_num_seqs", "max_model_len"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise PolicyError(f"{name} is {value}, but an engine needs at least 1")


class Engine:
    """Runs a trace under a policy; see :func:`simulate`.

    Promises: arrivals at or before a step's start are seen by it, in trace order; started prefills get tokens before
    waiting requests; a request that finishes leaves at the end of the step. The engine yields to its environment
    only when somebody else has an event there: until then nobody could tell.
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
        self._observers = policy.observers
        self._stretches = stretch and not self._observers
        seats = policy.chunking.seat_limit(self.limits.max_num_seqs)
        self._seats = FAR if seats is None else seats
        self._prompts: list[int] = trace.prompt_tokens.tolist()
        self._outputs: list[int] = trace.output_tokens.tolist()
        self._prefilling: list[RequestView] = []
        # Finish step * requests + request: one integer sorts by step, then by arrival.
        self._finishes = [FAR * (len(trace) + 1)]
        # A decoding request's context is its prompt plus the steps since its first token, so "step of the first
        # token - prompt" orders contexts for as long as it decodes; likewise all wait since the same last token.
        self._tallest = LeastActive()
        self._tightest = LeastActive()
        self.process = env.process(self._run())

    def _run(self) -> Generator[simpy.Event, Any, None]:
        env, log, cache, queue = self.env, self.log, self.cache, self.queue
        chunking, observers, limits = self.policy.chunking, self._observers, self.limits
        grant_of, deadline_of, step_ns = chunking.grant, chunking.deadline_ns, self.cost.step_ns
        predict = None if self.predictor is self.cost else self.predictor.step_ns
        peek_queue, pop_queue, enqueue, caching = queue.peek, queue.pop, queue.add, cache.tracks
        lookahead, seats = chunking.lookahead, self._seats
        prompts, outputs = self._prompts, self._outputs
        finishes, tallest, tightest = self._finishes, self._tallest, self._tightest
        first_token_in, finished_in = log.first_token, log.finished
        steps, add_duration = log.steps, log.durations.append
        chunk_step, chunk_request, chunk_tokens = (log.chunks[c].append for c in CHUNK_COLUMNS)
        push, pop = heapq.heappush, heapq.heappop
        new = tuple.__new__  # A view made without the detour through its class's own constructor.
        size = len(self.trace)
        computed, remaining = [0] * size, list(prompts)
        prefilling = self._prefilling
        done: list[RequestView] = []
        listed: tuple[Candidate, ...]
        horizon = FAR if limits.horizon_ns is None else limits.horizon_ns
        guarded = self.policy.admission is not None or limits.max_model_len is not None
        views = request_views(self.trace, self.objectives)
        coming = next(views)
        next_arrival = coming[1]
        stretches = self._stretches
        too_near = -1
        step = n = context = 0
        now = int(env.now)
        quiet_until = min(FAR, env.peek())
        while now < horizon:
            if now >= quiet_until:
                yield env.timeout(now - env.now)
                quiet_until = min(FAR, env.peek())
            while next_arrival <= now:
                if caching:
                    coming = coming._replace(cached_tokens=cache.hit_tokens(coming.number))
                if not guarded or self._admits(coming, now, step, n, context):
                    enqueue(coming)
                coming = next(views)
                next_arrival = coming[1]
            started, waiting = len(prefilling), queue.size
            can_prefill = started or (waiting and n < seats)
            if n:
                height = step - 1 - (tallest.value if tallest.until >= step else tallest.least(step))
            elif can_prefill:
                height = 0
            elif next_arrival < FAR:
                now = next_arrival
                continue
            else:
                break
            passed = n_prefill = taken = pairs = tokens = 0
            exception = False
            if can_prefill:
                if not started:
                    listed = ()
                elif started == 1:
                    view = prefilling[0]
                    i = view[0]
                    listed = (new(Candidate, (view, computed[i], remaining[i])),)
                else:
                    listed = tuple([new(Candidate, (v, computed[v[0]], remaining[v[0]])) for v in prefilling])
                more = lookahead - started
                if more > 0 and waiting and n + started < seats:
                    if more == 1 and not caching:
                        view = peek_queue(now)
                        listed += (new(Candidate, (view, 0, prompts[view[0]])),)
                    else:
                        listed += self._waiting_candidates(min(more, seats - n - started), now)
                deadline = None
                if n:
                    slack = tightest.value if tightest.until >= step else tightest.least(step)
                    if slack != FAR:
                        deadline = now + slack
                grant = grant_of(new(BatchView, (now, n, context, height, deadline, listed, waiting)))
                tokens, prefills, cap, exception = grant
                left = tokens
                while left > 0 and (prefills is None or n_prefill < prefills):
                    if n_prefill < started:
                        view = prefilling[n_prefill]
                        i = view[0]
                        before = computed[i]
                    elif queue.size and n + started < seats:
                        view = pop_queue(now)
                        i = view[0]
                        before = 0
                        if caching:
                            before = log.cached[i] = cache.start(i)
                            remaining[i] -= before
                        prefilling.append(view)
                        started += 1
                    else:
                        break
                    c = room = remaining[i]
                    if c > left:
                        c = left
                    if cap is not None and c > cap:
                        if cap < 1:
                            raise self._refusal(grant, now)
                        c = cap
                    if c == room:
                        done.append(view)
                    pairs += c * before + (c * (c + 1) >> 1)
                    computed[i] = before + c
                    remaining[i] = room - c
                    left -= c
                    n_prefill += 1
                    chunk_step(step)
                    chunk_request(i)
                    chunk_tokens(c)
                taken = tokens - left
                if tokens > FAR or (not n_prefill and (tokens or not n)):
                    raise self._refusal(grant, now)
            elif stretches and next_arrival != too_near and finishes[0] >= (step + STRETCH_MIN) * size:
                elapsed, passed = self._stretch(now, step, n, context, height, min(next_arrival, horizon))
                if passed:
                    now += elapsed
                    step += passed
                    context += n * passed
                else:
                    too_near = next_arrival
            if not passed:
                duration = step_ns(n, context, height, n_prefill, taken, pairs)
                steps += pack_step(now, n, context, height, n_prefill, taken, pairs, waiting, tokens, exception, 1)
                add_duration(duration)
                if predict is not None:
                    log.predicted.append(predict(n, context, height, n_prefill, taken, pairs))
                if observers:
                    record = StepRecord(now, now, duration, n, context, height, n_prefill, taken, pairs)
                    for part in observers:
                        part.observe(record)
                now += duration
                step += 1
                context += n
            bound = step * size
            while finishes[0] < bound:
                i = pop(finishes) % size
                finished_in[i] = step - 1
                n -= 1
                context -= prompts[i] + outputs[i] - 1
                if caching:
                    cache.finish(i)
            if done:
                for view in done:
                    prefilling.remove(view)
                    i = view[0]
                    first_token_in[i] = step - 1
                    last = step + outputs[i] - 2
                    if last < step:
                        finished_in[i] = last
                        if caching:
                            cache.finish(i)
                        continue
                    push(finishes, last * size + i)
                    depth = step - 1 - prompts[i]
                    if depth < tallest.value or last > tallest.until:
                        tallest.add(depth, last)
                    allowed = deadline_of(view)
                    if allowed is not None and (allowed < tightest.value or last > tightest.until):
                        tightest.add(allowed, last)
                    n += 1
                    context += prompts[i]
                done.clear()
        if now >= FAR:
            raise CostModelError(f"cost model {self.cost.name}: the clock ran past {FAR} ns, some 146 years")
        if now > env.now:
            yield env.timeout(now - env.now)

    def _refusal(self, grant: Grant, now: int) -> PolicyError:
        """Return what to say of a grant that no engine can carry out."""
        return PolicyError(
            f"policy {self.policy.label}: {self.policy.chunking.name} granted {grant} at {now / 1e6:g} ms; tokens must "
            f"be 0 to {FAR}, and above 0 when nothing decodes; prefills and cap must be at least 1 or None"
        )

    def _waiting_candidates(self, n: int, now: int) -> tuple[Candidate, ...]:
        """Return the next ``n`` waiting requests as candidates, fewer where fewer wait."""
        hit_of, prompts = self.cache.hit_tokens, self._prompts
        waiting = [(view, hit_of(view.number)) for view in self.queue.first(n, now)]
        return tuple([Candidate(view, hit, prompts[view.number] - hit) for view, hit in waiting])

    def _admits(self, view: RequestView, now: int, step: int, n: int, context: int) -> bool:
        """Return whether ``view`` is let in; record why where it is not."""
        admission, longest = self.policy.admission, self.limits.max_model_len
        log, i = self.log, view.number
        if longest is not None and self._prompts[i] + self._outputs[i] > longest:
            log.outcome[i] = REJECTED
            log.reasons[i] = (
                f"{self._prompts[i]} prompt and {self._outputs[i]} output tokens exceed max_model_len {longest}"
            )
            return False
        if admission is None:
            return True
        height = step - 1 - self._tallest.least(step) if n else 0
        decision = admission.admit(view, LoadView(now, n, context, height, len(self._prefilling), self.queue.size))
        if decision.verdict == "accept":
            return True
        if decision.verdict not in ("reject", "redirect"):
            raise PolicyError(
                f"policy {self.policy.label}: {admission.name} answered {decision.verdict!r}, which is none of accept, "
                "reject and redirect"
            )
        log.outcome[i] = REJECTED if decision.verdict == "reject" else REDIRECTED
        log.reasons[i] = decision.reason
        return False

    def _stretch(self, now: int, step: int, n: int, context: int, height: int, until: int) -> tuple[int, int]:
        """Advance decode-only steps to the next finish, or to the first step boundary at or after ``until``.

        Returns:
            The time that takes and the number of steps; 0 and 0 where too few fit to be worth it.
        """
        log, cost = self.log, self.cost
        first = cost.step_ns(n, context, height, 0, 0, 0)
        if first < 1 or until - now < STRETCH_MIN * first:
            return 0, 0
        # Steps do not get shorter as contexts grow, so no more than this fit before the next event.
        most = min(self._finishes[0] // len(self.trace) - step + 1, -((now - until) // first))
        run = cost.decode_run_ns(n, context, height, most)
        ends = np.cumsum(run)
        taken = min(most, int(np.searchsorted(ends, until - now, side="left")) + 1)
        log.steps += pack_step(now, n, context, height, 0, 0, 0, self.queue.size, 0, 0, taken)
        log.durations += run[:taken].tolist()
        if self.predictor is not cost:
            log.predicted += self.predictor.decode_run_ns(n, context, height, taken).tolist()
        return int(ends[taken - 1]), taken

    def tables(self) -> LoggedRun:
        """Return the tables of a run that has ended."""
        return LoggedRun(self.trace, self.log, self.policy.needs_predictor)


def simulate(
    trace: Trace,
    policy: Policy,
    cost: CostModel,
    *,
    predictor: CostModel | None = None,
    objectives: Objectives | None = None,
    limits: Limits | None = None,
    stretch: bool = True,
) -> LoggedRun:
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
        CostModelError: if the clock runs past the end of 64 bits.
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
