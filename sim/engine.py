"""One model replica as a SimPy process: continuous batching under a scheduling policy, on an integer clock.

Decodes are counted, not looped over: every decoding request gains one token in every step, so a request that emits
its first token in step ``k`` finishes in step ``k + outputs - 1``, and batch sums follow by arithmetic. A preemption is
the one thing that ends this early: what was counted is counted anew then. A stretch of steps in which nothing can be
decided is advanced in one go, with exactly the result of going step by step.

The loop over steps is here. What it goes by has files of its own: who gets in (:mod:`sim.gate`), who decodes
(:mod:`sim.decoding`), whose blocks fit (:mod:`sim.paging`), who leaves (:mod:`sim.departures`), and how far nothing is
to decide (:mod:`sim.stretches`).
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Generator
from typing import Any

import simpy

from costmodels.base import CostModel, CostModelError
from policies.base import Ordering, Policy, PolicyError
from policies.queue import PolicyQueue
from policies.views import BatchView, Candidate, Grant, LoadView, RequestView, StepRecord
from sim.collecting import young_only
from sim.deadlines import AddedUp
from sim.decoding import Decoding
from sim.departures import Departures
from sim.gate import Gate
from sim.inbox import Inbox
from sim.kvcache import KVCache, NullCache
from sim.least import FAR
from sim.limits import Limits
from sim.numbers import as_list
from sim.objectives import Objectives
from sim.paging import ENDING, Paging, Victim
from sim.records import CHUNK_COLUMNS, RunLog, pack_step
from sim.stretches import STRETCH_MIN, Stretches
from sim.tables import LoggedRun
from sim.tandem import Tandem
from sim.views import request_views
from traces.schema import Trace


class Engine:
    """Runs a trace under a policy; see :func:`simulate`.

    Promises: arrivals at or before a step's start are seen by it, in trace order; started prefills get tokens before
    waiting requests; a request that finishes leaves at the end of the step. Where a cache counts blocks, running
    requests take theirs before waiting ones are looked at, of which only the next is tried; in a step that preempts
    nobody starts. The engine yields to its environment only when somebody else has an event there: until then nobody
    could tell.
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
        inbox: Inbox | None = None,
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
        self._inbox = inbox
        stages = cost.stages()
        self._tandem = Tandem(stages) if len(stages) > 1 else None
        self._deep = self.limits.pipeline_depth == 2
        self.limits.check(self.cache, len(stages))
        if self._tandem and (longest := int(trace.output_tokens.max(initial=1))) > 1:
            raise PolicyError(
                f"pipeline parallelism is simulated for requests with one output token, but one here has {longest}"
            )
        self._observers = policy.observers
        # Memory that holds no blocks of running requests has room to work for one of them.
        one_at_a_time = self.cache.tracks and not self.cache.paged
        seats = policy.chunking.seat_limit(1 if one_at_a_time else self.limits.max_num_seqs)
        self._seats = FAR if seats is None else seats
        self._prompts = as_list(trace.prompt_tokens)
        self._totals = as_list(trace.prompt_tokens + trace.output_tokens)
        # What a request prefills: its prompt, and after a preemption its outputs so far.
        self._goals = list(self._prompts)
        self._computed = [0] * len(trace)
        self._prefilling: list[RequestView] = []
        self._paging = Paging(self.cache, self._goals, self._computed, self._deep) if self.cache.paged else None
        self._departures = Departures(self._totals, self.cache, self._paging, inbox, self._deep)
        # Waiting requests whose place in the queue depends on what is cached.
        self._watched: set[int] = set()
        self._gate = Gate(policy, self.cache, self.limits.max_model_len, self._totals, self.log)
        self._decoding = Decoding(self._totals)
        self._due = AddedUp(trace.output_tokens.tolist()) if policy.chunking.cumulative else None
        self._stretches = None
        if stretch and not self._observers:
            self._stretches = Stretches(
                self.log, cost, self.predictor, self._decoding, self.queue, self._paging, self._deep
            )
        self.process = env.process(self._run())

    def _run(self) -> Generator[simpy.Event, Any, None]:
        env, log, cache, queue = self.env, self.log, self.cache, self.queue
        chunking, observers, limits = self.policy.chunking, self._observers, self.limits
        grant_of, deadline_of, step_ns = chunking.grant, chunking.deadline_ns, self.cost.step_ns
        # What a step takes is its prediction, unless it also waits for stages or for blocks from CPU memory.
        pure = self._tandem is None and (self.cache.paged or not self.cache.tracks)
        predict = None if self.predictor is self.cost and pure else self.predictor.step_ns
        peek_queue, pop_queue, enqueue = queue.peek, queue.pop, queue.add
        lookahead, seats = chunking.lookahead, self._seats
        prompts, goals, totals, computed = self._prompts, self._goals, self._totals, self._computed
        finishes, tallest, tightest = self._decoding.finishes, self._decoding.tallest, self._decoding.tightest
        first_token_in, finished_in, interrupted = log.first_token, log.finished, log.interrupted
        steps, add_duration = log.steps, log.durations.append
        chunk_step, chunk_request, chunk_tokens = (log.chunks[c].append for c in CHUNK_COLUMNS)
        push, pop = heapq.heappush, heapq.heappop
        new = tuple.__new__  # A view made without the detour through its class's own constructor.
        size = len(self.trace)
        remaining = list(goals)
        prefilling = self._prefilling
        done: list[RequestView] = []
        leaving: list[int] = []
        listed: tuple[Candidate, ...]
        horizon = FAR if limits.horizon_ns is None else limits.horizon_ns
        caching, paging, watched, gate = cache.tracks, self._paging, self._watched, self._gate
        watching = caching and self.policy.ordering.cache_aware
        choosing = type(self.policy.ordering).choose is not Ordering.choose
        deep, due = self._deep, self._due
        departing = caching or self._inbox is not None or deep
        # Neither memory nor replicas nor a pipeline: an engine that asks for them once a step, not one by one.
        plain = not departing and self._tandem is None
        inbox, tandem, departures = self._inbox, self._tandem, self._departures
        in_flight = departures.in_flight
        views = inbox or request_views(self.trace, self.objectives)
        coming = next(views)
        next_arrival = coming[1] if inbox is None else inbox.due
        stretches = self._stretches
        too_near = -1
        # Whether the next request was refused for memory and nothing has happened since that could change it.
        blocked = closed = False
        step = n = context = resumed = resumed_context = 0
        # When the step in flight ends, when that is expected, and who is to learn of it then.
        last_end = expected_end = 0
        ended: deque[tuple[int, StepRecord]] = deque()
        now = int(env.now)
        quiet_until = int(min(FAR, env.peek()))
        while now < horizon:
            if now >= quiet_until:
                yield env.timeout(now - env.now)
                quiet_until = int(min(FAR, env.peek()))
                if inbox is not None and next_arrival == FAR:
                    coming = next(inbox)
                    next_arrival = inbox.due
            while in_flight and in_flight[0][0] <= now:
                seats += departures.leave_next()
                blocked = False
            while ended and ended[0][0] <= now:
                self._observe(ended.popleft()[1])
            while next_arrival <= now:
                if caching:
                    coming = coming._replace(cached_tokens=cache.hit_tokens(coming[0], coming[2]))
                    blocked = False
                if gate.open or gate.admits(coming, self._load(now, step, n, context), inbox):
                    enqueue(coming)
                    if watching:
                        cache.watch(coming[0])
                        watched.add(coming[0])
                coming = next(views)
                next_arrival = coming[1] if inbox is None else inbox.due
            if watched and queue.reread(cache.changes(), cache.hit_tokens):
                blocked = False
            # What a policy takes for the time: when the step that it decides is expected to begin.
            seen = expected_end if last_end > now and expected_end > now else now
            started, waiting = len(prefilling), queue.size
            if paging is not None and waiting and n + started < seats and (choosing or not blocked):
                head = peek_queue(seen)[0]
                blocked = not cache.fits(head, goals[head], paging.crossing[step % paging.block])
            can_prefill = started or (waiting and n < seats and not blocked)
            if n:
                height = step - 1 - (tallest.value if tallest.until >= step else tallest.least(step))
            elif can_prefill:
                height = 0
            elif deep and in_flight:
                now = in_flight[-1][0]
                continue
            elif in_flight and waiting:
                now = min(in_flight[0][0], next_arrival)
                continue
            elif next_arrival < FAR:
                now = next_arrival
                continue
            elif inbox is not None and not inbox.closed:
                yield inbox.wait()
                now = max(now, int(env.now))
                quiet_until = int(min(FAR, env.peek()))
                coming = next(inbox)
                next_arrival = inbox.due
                continue
            else:
                break
            passed = n_prefill = taken = pairs = tokens = 0
            exception = False
            prefills = cap = None
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
                if more > 0 and waiting and n + started < seats and not blocked:
                    if more == 1 and not caching:
                        view = peek_queue(seen)
                        listed += (new(Candidate, (view, 0, goals[view[0]])),)
                    else:
                        listed += self._waiting_candidates(min(more, seats - n - started), seen)
                deadline = None
                if n and due is not None:
                    deadline = due.least(step, now, seen)
                    if deadline == FAR:
                        deadline = None
                elif n:
                    slack = tightest.value if tightest.until >= step else tightest.least(step)
                    if slack != FAR:
                        deadline = seen + slack
                grant = grant_of(new(BatchView, (seen, n, context, height, deadline, listed, waiting)))
                tokens, prefills, cap, exception = grant
                if tokens > FAR or (cap is not None and cap < 1):
                    raise self._refusal(grant, now)
            elif (
                stretches is not None
                and next_arrival != too_near
                and finishes[0] >= (step + STRETCH_MIN) * size
                # Where evictions or time change who is next, somebody may fit whom a stretch would pass over.
                and not (blocked and (watching or choosing))
                # Somebody who leaves makes room.
                and not in_flight
            ):
                until = next_arrival if inbox is None else min(next_arrival, quiet_until)
                begin = last_end if last_end > now else now
                elapsed, last, passed = stretches.advance(now, begin, step, n, context, height, min(until, horizon))
                if passed:
                    now = left_at = begin + elapsed
                    if deep:
                        last_end = now
                        now -= last
                        expected_end = now + (last if predict is None else log.predicted[-1])
                    step += passed
                    context += n * passed
                elif inbox is None:
                    too_near = next_arrival
            if not passed:
                if paging is not None:
                    closed = False
                    need = paging.crossing[step % paging.block]
                    plan = paging.plan(prefilling[:prefills], tokens, cap) if started and tokens > 0 else None
                    if need + (sum(map(cache.missing, plan, plan.values())) if plan else 0) > cache.free:
                        victims = paging.squeeze(step, plan or {})
                        if victims:
                            lost, lost_context = self._preempt(victims, step)
                            if deep:
                                seats += departures.hurry(victims)
                            n -= lost
                            context -= lost_context
                            height = step - 1 - tallest.least(step) if n else 0
                            started = len(prefilling)
                            closed, blocked = True, False
                    elif need:
                        cache.take(need)
                if can_prefill:
                    left = tokens
                    while left > 0 and (prefills is None or n_prefill < prefills):
                        if n_prefill < started:
                            view = prefilling[n_prefill]
                            i = view[0]
                            before = computed[i]
                        elif queue.size and n + started < seats and not closed:
                            if paging is not None:
                                head = peek_queue(seen)[0]
                                if not cache.fits(head, goals[head], 0):
                                    blocked = True
                                    break
                            view = pop_queue(seen)
                            i = view[0]
                            before = 0
                            if caching:
                                before = self._start(view, now)
                                remaining[i] = goals[i] - before
                            prefilling.append(view)
                            started += 1
                        else:
                            break
                        c = room = remaining[i]
                        if c > left:
                            c = left
                        if cap is not None and c > cap:
                            c = cap
                        if c == room:
                            done.append(view)
                        pairs += c * before + (c * (c + 1) >> 1)
                        computed[i] = before + c
                        remaining[i] = room - c
                        if paging is not None:
                            cache.extend(i, before + c)
                            if room == 1 and before >= prompts[i]:
                                # All but its newest output was still cached: what is left is a decode.
                                pairs -= before + 1
                                resumed += 1
                                resumed_context += before
                                if before > height:
                                    height = before
                        left -= c
                        n_prefill += 1
                        chunk_step(step)
                        chunk_request(i)
                        chunk_tokens(c)
                    taken = tokens - left
                    if not closed and not n_prefill and (not n or (tokens and not blocked)):
                        raise self._refusal(grant, now)
                if closed and not n and not n_prefill:  # all that was to run has lost its blocks
                    if last_end > now:
                        now = last_end
                    continue
                if resumed:
                    n += resumed
                    context += resumed_context
                    n_prefill -= resumed
                    taken -= resumed
                if plain:
                    duration = until_next = step_ns(n, context, height, n_prefill, taken, pairs)
                else:
                    stall = self._await_blocks(step, now) if n_prefill and caching and paging is None else 0
                    if tandem is None:
                        duration = until_next = stall + step_ns(n, context, height, n_prefill, taken, pairs)
                    else:
                        duration, until_next, busy = tandem.run(now, stall, n, context, height, n_prefill, taken, pairs)
                        log.busy.append(min(busy, FAR))
                    if paging is not None:
                        log.kv_blocks.append(cache.capacity - cache.free)
                        if n_prefill or resumed:
                            blocked = False
                begin = now
                if deep:
                    log.decided.append(now)
                    if last_end > now:
                        begin = last_end
                    last_end = begin + duration
                    until_next = begin - now
                steps += pack_step(begin, n, context, height, n_prefill, taken, pairs, waiting, tokens, exception, 1)
                try:
                    add_duration(duration)
                    if predict is not None:
                        log.predicted.append(predict(n, context, height, n_prefill, taken, pairs))
                except OverflowError:
                    raise self._too_long() from None
                if deep:
                    expected_end = begin + (duration if predict is None else log.predicted[-1])
                if observers:
                    record = StepRecord(now, begin, duration, n, context, height, n_prefill, taken, pairs)
                    if deep:
                        ended.append((last_end, record))
                    else:
                        self._observe(record)
                if resumed:  # they join the decoding below, like everyone who has ended a prefill
                    n -= resumed
                    context -= resumed_context
                    resumed = resumed_context = 0
                left_at = begin + duration
                now += until_next
                step += 1
                context += n
            bound = step * size
            while finishes[0] < bound:
                i = pop(finishes) % size
                finished_in[i] = step - 1
                n -= 1
                context -= totals[i] - 1
                if departing:
                    leaving.append(i)
            if done:
                for view in done:
                    prefilling.remove(view)
                    i = view[0]
                    if first_token_in[i] < 0:
                        first_token_in[i] = step - 1
                    if i in interrupted:
                        log.resume(i, step - 1)
                    last = step - 2 + totals[i] - goals[i]
                    if last < step:
                        finished_in[i] = last
                        if departing:
                            leaving.append(i)
                        continue
                    push(finishes, last * size + i)
                    if paging is not None:
                        paging.join(i, step)
                    depth = step - 1 - goals[i]
                    if depth < tallest.value or last > tallest.until:
                        tallest.add(depth, last)
                    allowed = deadline_of(view)
                    if due is not None:
                        due.join(view, allowed, last, left_at)
                    elif allowed is not None and (allowed < tightest.value or last > tightest.until):
                        tightest.add(allowed, last)
                    n += 1
                    context += goals[i]
                done.clear()
            if leaving:
                if left_at > now:
                    seats -= departures.leave_later(left_at, leaving, step)
                else:
                    departures.leave(left_at, leaving)
                    blocked = False
                leaving = []
        if now >= FAR:
            raise self._too_long()
        now = max(now, last_end)
        while ended:
            self._observe(ended.popleft()[1])
        if in_flight:
            now = max(now, in_flight[-1][0])
        while in_flight:
            departures.leave_next()
        if now > env.now:
            yield env.timeout(now - env.now)

    def _observe(self, record: StepRecord) -> None:
        for part in self._observers:
            part.observe(record)

    def _too_long(self) -> CostModelError:
        return CostModelError(f"cost model {self.cost.name}: the clock ran past {FAR} ns, some 146 years")

    def _refusal(self, grant: Grant, now: int) -> PolicyError:
        """Return what to say of a grant that no engine can carry out."""
        return PolicyError(
            f"policy {self.policy.label}: {self.policy.chunking.name} granted {grant} at {now / 1e6:g} ms; tokens must "
            f"be 0 to {FAR}, and above 0 when nothing decodes; prefills and cap must be at least 1 or None"
        )

    def _waiting_candidates(self, n: int, now: int) -> tuple[Candidate, ...]:
        """Return the next ``n`` waiting requests as candidates, fewer where fewer wait."""
        hit_of, goals = self.cache.hit_tokens, self._goals
        waiting = [(view, hit_of(view.number, goals[view.number])) for view in self.queue.first(n, now)]
        return tuple(
            [Candidate(view._replace(cached_tokens=hit), hit, goals[view.number] - hit) for view, hit in waiting]
        )

    def _start(self, view: RequestView, now: int) -> int:
        """Give a request that starts its cached blocks, and return how many of its tokens they hold."""
        i = view.number
        if i in self._watched:
            self._watched.remove(i)
            self.cache.unwatch(i)
        if self._paging is not None:
            self._paging.admit(view)
        hit = self.cache.start(i, self._goals[i], now)
        if i not in self.log.interrupted:
            self.log.cached[i] = hit
        return hit

    def _await_blocks(self, step: int, now: int) -> int:
        """Return how long the step waits for blocks from CPU memory, and send for those of the next request."""
        cache, queue = self.cache, self.queue
        stall, cache.stall_ns = cache.stall_ns, 0
        if stall:
            self.log.stalls[step] = stall
        if queue.size:
            head = queue.peek(now).number
            cache.prefetch(head, self._goals[head], now)
        return stall

    def _preempt(self, victims: list[Victim], step: int) -> tuple[int, int]:
        """Put preempted requests back into the queue, before all others and in their order.

        Returns:
            How many of them were decoding, and the sum of their contexts.
        """
        gone, context = set(), 0
        for view, decoded in victims:
            i = view.number
            if decoded == ENDING:
                self.log.preempt(i, step, True)
                continue
            if decoded is None:
                self._prefilling.remove(view)
            else:
                context += self._goals[i] + decoded - 1
                gone.add(i)
                self._goals[i] += decoded
            self.log.preempt(i, step, decoded is not None)
            self.queue.push_front(view._replace(generated_tokens=self._goals[i] - self._prompts[i], cached_tokens=0))
        if gone:
            assert self._paging is not None
            running, deadline_of = self._paging.running, self.policy.chunking.deadline_ns
            self._decoding.drop(gone, running, deadline_of)
            if self._due is not None:
                self._due.drop(self._decoding.entries(), running, deadline_of)
        return len(gone), context

    def _load(self, now: int, step: int, n: int, context: int) -> LoadView:
        """Return the engine as an admission sees it."""
        height = step - 1 - self._decoding.tallest.least(step) if n else 0
        return LoadView(now, n, context, height, len(self._prefilling), self.queue.size)

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
    cache: KVCache | None = None,
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
        cache: KV memory and prefix cache, made for this trace and this run; unlimited and without hits by default.
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
        cache=cache,
        stretch=stretch,
    )
    with young_only():
        env.run()
    return engine.tables()
