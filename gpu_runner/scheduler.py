r"""The scheduler to give to vLLM: the simulator's policy objects decide inside the real engine.

    vllm serve MODEL --scheduler-cls gpu_runner.scheduler.PolicyScheduler \
        --additional-config '{"prefillsim": {"policy": "sloweave:tpot=25", "cost_model": "a100-llama3.1-8b"}}'

Each step the policy sees the views that it sees in the simulator, and its grant becomes the waiting order, a token
budget, the number of prefills and each request's share. vLLM's own ``schedule`` does the rest.
"""

from __future__ import annotations

import logging
from array import array
from typing import Any

from gpu_runner import hooks
from gpu_runner.added_up import added_up_ns
from gpu_runner.allotment import NOTHING, Allotment
from gpu_runner.clock import Clock
from gpu_runner.composition import FAR, Chunk, CommonLimit, Running, compose, compose_anew, prefills_of
from gpu_runner.known import Known, known
from gpu_runner.periods import Periods
from gpu_runner.recorder import Recorder, Step
from gpu_runner.settings import NO_WISHES, Settings, SettingsError, Wishes
from gpu_runner.sound import sound_deadline, sound_grant, turned_away
from gpu_runner.telemetry import Telemetry, open_telemetry
from gpu_runner.waiting import WaitingQueue
from gpu_runner.watch import CacheWatch
from policies.base import Ordering
from policies.views import BatchView, Candidate, Grant, LoadView, RequestView

logger = logging.getLogger("vllm.prefillsim")


class PolicyScheduler(hooks.Scheduler):
    """vLLM's scheduler, deciding as a policy does; asynchronous where vLLM schedules so.

    Times are nanoseconds of a clock that starts at the wall clock's time, as arrivals have it, and never goes back.

    Raises:
        SettingsError, UnsupportedError: at start, with what to change.
    """

    max_num_scheduled_tokens: int

    def __new__(cls, *args: Any, **kwargs: Any) -> PolicyScheduler:
        """Make the asynchronous kind where vLLM is configured so."""
        config = kwargs["vllm_config"] if "vllm_config" in kwargs else args[0]
        if cls is PolicyScheduler and config.scheduler_config.async_scheduling:
            return super().__new__(AsyncPolicyScheduler)
        return super().__new__(cls)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        hooks.check(self.vllm_config)
        hooks.check_kv_cache(self.kv_cache_config)
        self.settings = Settings.of(self.vllm_config.additional_config)
        self.policy, self.predictor = self.settings.build()
        self._objectives = self.settings.objectives()
        vllm = self.scheduler_config
        self._seats = self.settings.seats(
            self.policy.chunking, vllm.max_num_seqs, self.max_model_len, vllm.max_num_batched_tokens
        )
        self.clock = Clock().now_ns
        ordering = self.policy.ordering
        self.waiting = WaitingQueue(ordering, self._may_start, self._fall_back)
        self._deep = bool(vllm.async_scheduling)
        self._choosing = type(ordering).choose is not Ordering.choose
        self._looks_at_cache = ordering.cache_aware or ordering.key_at_arrival or self._choosing
        self._watch = CacheWatch() if ordering.cache_aware and self.kv_cache_manager.enable_caching else None
        self._listener = hooks.Listener(self) if self._watch is not None else None
        self.recorder = Recorder(self._deep, self.policy.needs_predictor) if self.settings.record else None
        self.telemetry: Telemetry | None = open_telemetry(self.settings, metrics=self.log_stats)
        self.fallen = False
        """The policy has failed, and vLLM's own order has been in force since."""
        self.policy.reset(self.predictor)
        self.begin()

    def begin(self) -> None:
        """Begin a new run: forget what was recorded and learned; nothing may be in the engine."""
        if self.recorder is not None:
            self.recorder = Recorder(self._deep, self.policy.needs_predictor)
        self.policy.reset(self.predictor)
        observers = () if self.fallen else self.policy.observers
        self._periods = Periods(self._deep, observers, self._fall_back, self.recorder, self.telemetry)
        self._came = 0
        self._steps = 0
        self._numbers: dict[str, Known] = {}
        self._rejected: list[Any] = []
        self._limit = CommonLimit()
        self._allotment: Allotment | None = Allotment(NOTHING)

    def add_request(self, request: Any) -> None:
        """Take a request as it arrives; the next step decides whether it is let in."""
        extra = None if request.sampling_params is None else request.sampling_params.extra_args
        try:
            wishes = Wishes.of(extra)
        except SettingsError as e:
            logger.warning("request %s: %s; it is ignored", request.request_id, e)
            wishes = NO_WISHES
        view = RequestView(
            self._came,
            round(request.arrival_time * 1e9),
            request.num_prompt_tokens,
            slo_ttft_ns=self._objectives.ttft if wishes.ttft_ns is None else wishes.ttft_ns,
            slo_tpot_ns=self._objectives.deadline_ns if wishes.tpot_ns is None else wishes.tpot_ns,
            tenant=wishes.tenant,
            session=wishes.session,
        )
        self._came += 1
        self._forget(request.request_id)
        request.prefillsim = Known(view, None, wishes.keep_tokens)
        self._numbers[request.request_id] = request.prefillsim
        if self.fallen and self.recorder is not None:
            self.recorder.arrived(view, self._steps)
        super().add_request(request)

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        """Decide a step as the policy does, and let vLLM carry it out."""
        now = self.clock()
        self._close(now)
        for request_id in self.finished_req_ids:
            # Unless the name has been given to a new request meanwhile.
            if request_id not in self.requests:
                self._forget(request_id)
        self.waiting.returned.clear()
        running = Running.of(self.running, deep=self._deep, limit=self._limit.ns)
        seen = self._periods.expected_start(now)
        if self.policy.chunking.cumulative:
            running = running._replace(allowed_ns=added_up_ns(self.running, seen, deep=self._deep))
        self.waiting.now_ns = seen
        grant: Grant | None = None
        n_waiting = 0
        if not self.fallen:
            try:
                self._let_in(now, running)
                self._reread()
                n_waiting = self.waiting.policy.size
                grant = self._grant(seen, running)
            except Exception as e:
                self._fall_back(e)
        step = Step(
            self._steps,
            now,
            n_waiting,
            0 if grant is None else grant.tokens,
            grant is not None and grant.exception,
            slack=None if not running.n_decode or running.allowed_ns == FAR else running.allowed_ns,
            fallback=self.fallen,
        )
        budget: int = self.max_num_scheduled_tokens
        if not self.fallen:
            grant = grant or NOTHING
            self._allotment = Allotment(grant)
            self.max_num_scheduled_tokens = min(budget, running.n_decode + grant.tokens)
        try:
            output = super().schedule(*args, **kwargs)
        finally:
            self.max_num_scheduled_tokens = budget
        self._note(step, running, output)
        return output

    def _let_in(self, now: int, running: Running) -> None:
        """Put arrivals into the queue that the admission lets in, and end the others."""
        arrivals, self.waiting.arrivals = self.waiting.arrivals, []
        admission = self.policy.admission
        while arrivals:
            request = arrivals.pop(0)
            try:
                note = known(request)
                if self._looks_at_cache or admission is not None:
                    note.view = note.view._replace(cached_tokens=self._hit_tokens(request))
                note.allowed_ns = sound_deadline(self.policy.chunking.deadline_ns(note.view))
                self._limit.add(note.allowed_ns)
                if self.recorder is not None:
                    self.recorder.arrived(note.view, self._steps)
                if admission is not None:
                    load = LoadView(now, *running[:3], len(running.started), self.waiting.policy.size)
                    reason = turned_away(admission, note.view, load)
                    if reason is not None:
                        self._reject(request, reason)
                        continue
                self.waiting.enter(request)
                if self._watch is not None:
                    self._watch.watch(note.view.number, hooks.watched_hashes(request))
            except Exception:
                self.waiting.arrivals = [request, *arrivals]
                raise

    def _reject(self, request: Any, reason: str) -> None:
        note = known(request)
        note.outcome, note.reason = "rejected", reason
        # vLLM takes it out of the queue that it is in.
        self.waiting.arrivals.append(request)
        hooks.finish_aborted(self, request)
        self._rejected.append(request)
        if self.recorder is not None:
            self.recorder.rejected(note.view.number, reason)

    def _hit_tokens(self, request: Any) -> int:
        return len(hooks.hit_blocks(self, request)) * self.block_size

    def _reread(self) -> None:
        """Read the keys of waiting requests anew whose cached prefix may have changed."""
        if self._watch is None or self._listener is None:
            return
        touched = self._watch.touched(self._listener.take())
        if touched:
            request = self.waiting.request
            self.waiting.policy.reread(touched, lambda number, _: self._hit_tokens(request(number)))

    def _grant(self, seen: int, running: Running) -> Grant | None:
        """Ask the chunking for this step's tokens; ``None`` where nothing could be prefilled."""
        waiting, started = self.waiting, running.started
        seats = self._seats - len(self.running)
        candidates = []
        for request in started:
            computed = request.num_computed_tokens
            candidates.append(Candidate(known(request).view, computed, request.num_tokens - computed))
        open_to_waiting = (
            bool(waiting.policy.size)
            and seats > 0
            and self._fits(waiting.first(1)[0], running.crossing(self.block_size))
        )
        if not started and not open_to_waiting:
            return None
        more = self.policy.chunking.lookahead - len(started)
        if open_to_waiting and more > 0:
            for request in waiting.first(min(more, seats)):
                hit = self._hit_tokens(request)
                view = known(request).view._replace(cached_tokens=hit)
                candidates.append(Candidate(view, hit, request.num_tokens - hit))
        deadline = None
        if running.n_decode and running.allowed_ns != FAR:
            deadline = seen + running.allowed_ns
        batch = BatchView(seen, *running[:3], deadline, tuple(candidates), waiting.policy.size)
        chunking = self.policy.chunking
        return sound_grant(chunking.grant(batch), chunking.name, running.n_decode)

    def _fits(self, request: Any, reserve: int) -> bool:
        """Return whether a request that waits would find its blocks while ``reserve`` free ones are spoken for."""
        lacking = -(-request.num_tokens // self.block_size) - (hooks.free_blocks(self) - reserve)
        if lacking <= 0:
            return True
        return sum(block.ref_cnt > 0 for block in hooks.hit_blocks(self, request)) >= lacking

    def _may_start(self) -> bool:
        if self._allotment is None:
            return True
        return self._allotment.open and len(self.running) < self._seats

    def _reserve_prefill_lookahead(self, request: Any, num_computed_tokens: int, num_new_tokens: int) -> int:
        """Lower a request's tokens to its share of the grant; vLLM asks just before it takes the blocks."""
        if not request.is_prefill_chunk and request.num_computed_tokens:
            # It decodes, as nearly all do that vLLM asks about; what is being let in has computed nothing yet.
            return num_new_tokens if num_new_tokens > 0 else 0
        wanted: int = super()._reserve_prefill_lookahead(request, num_computed_tokens, num_new_tokens)
        if self._allotment is None:
            return wanted
        return self._allotment.share(request, num_computed_tokens, wanted)

    def _note(self, step: Step, running: Running, output: Any) -> None:
        """Complete what a step is made of, and send it on its way."""
        scheduled = output.num_scheduled_tokens
        returned = self.waiting.returned
        if self.recorder is not None:
            for request in returned:
                self.recorder.preempted(known(request).view.number, step.number, not request.is_prefill_chunk)
        if not scheduled:
            self._periods.depart(None)
            return
        self._steps += 1
        step.fallback = self.fallen
        if self._allotment is None:
            chunks = compose_anew(step, scheduled, prefills_of(scheduled, self.requests), self.requests)
        elif returned:
            chunks = compose_anew(step, scheduled, self._allotment.shares, self.requests)
        else:
            chunks = compose(step, running, scheduled, self._allotment.shares)
        for chunk in chunks:
            self._note_chunk(step, chunk)
        self._predict(step)
        if self.recorder is not None or self.telemetry is not None:
            step.kv_blocks = self._kv_capacity() - hooks.free_blocks(self)
            notes = self._numbers
            step.batch = array("q", [notes[i].view.number for i in scheduled]), array("q", scheduled.values())
        self._periods.depart(step)

    def _note_chunk(self, step: Step, chunk: Chunk) -> None:
        note = known(chunk.request)
        number = note.view.number
        first = note.started < 0
        if first:
            note.started = chunk.before
        if self._watch is not None:
            self._watch.unwatch(number)
        if self.recorder is not None:
            if first:
                self.recorder.started(number, chunk.before)
            self.recorder.chunk(step.number, number, chunk.tokens)
            if chunk.last:
                self.recorder.prefilled(number, step.number)

    def _predict(self, step: Step) -> None:
        if self.predictor is None:
            return
        try:
            step.predicted = int(self.predictor.step_ns(*step.features))
        except Exception as e:
            # vLLM has decided the step, so it goes on; once is enough to say it.
            self.predictor = None
            if not self.fallen:
                self._fall_back(e)
            return
        if step.slack is not None:
            step.slack -= step.predicted

    def _kv_capacity(self) -> int:
        return self.kv_cache_config.num_blocks - 1

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
        """Take a step's tokens, and note who has finished."""
        before = set(self.finished_req_ids)
        outputs = super().update_from_output(scheduler_output, model_runner_output)
        now = self.clock()
        step = self._periods.land(now)
        if step is not None:
            self._finish(step, now, self.finished_req_ids - before)
        for request in self._rejected:
            hooks.add_output(outputs, request.client_index, hooks.aborted_output(request))
            # It has left while a step was decided, so vLLM does not name it in the next one.
            if request.request_id not in self.requests:
                self._forget(request.request_id)
        self._rejected.clear()
        return outputs

    def _finish(self, step: Step, now: int, finished: set[str]) -> None:
        for request_id in finished:
            note = self._numbers[request_id]
            note.left_ns = now
            if self.recorder is not None:
                self.recorder.finished(note.view.number, step.number, note.generated)

    def _close(self, now: int) -> None:
        self._periods.close(now, busy=bool(self.running or self.waiting.policy.size))

    def finish_recording(self) -> Recorder:
        """Return what was recorded, once the engine has nothing left to do."""
        self._close(self.clock())
        assert self.recorder is not None
        return self.recorder

    def _forget(self, request_id: str) -> None:
        note = self._numbers.pop(request_id, None)
        if note is None:
            return
        if self._watch is not None:
            self._watch.unwatch(note.view.number)
        if self.telemetry is not None:
            self.telemetry.left(request_id, note)

    def _free_request(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        """Give a request's blocks back; of a prefill-only one, forget the blocks that nobody else can reuse."""
        note = known(request)
        note.generated = request.num_output_tokens
        note.preemptions = request.num_preemptions
        if self.settings.discard and request.max_tokens == 1 and note.generated:
            hooks.evict_beyond(self, request, self._worth_keeping(request))
        if not hooks.is_aborted(request):
            note.outcome = "finished"
        elif not note.reason:
            note.outcome, note.reason = "aborted", "aborted by the client"
            note.left_ns = self.clock()
            if self.recorder is not None:
                self.recorder.gone(note.view.number, self._periods.ended - 1, note.generated)
        return super()._free_request(request, *args, **kwargs)

    def _worth_keeping(self, request: Any) -> int:
        """Return how many leading blocks of a request others may hit: as it says, was seen, or is waited for."""
        note = known(request)
        if note.keep_tokens is not None:
            return note.keep_tokens // self.block_size
        shared = 0 if self._watch is None else self._watch.shared(hooks.watched_hashes(request))
        return max(shared, note.started // self.block_size)

    def _fall_back(self, error: Exception) -> None:
        """Let vLLM decide alone from now on, and say so once."""
        if self.fallen:
            raise error
        self.fallen = True
        logger.error(
            "policy %s failed, and vLLM's own first come, first served takes its place: %s: %s",
            self.settings.policy,
            type(error).__name__,
            error,
        )
        self._allotment = None
        self._periods.forget_observers()
        if self.recorder is not None:
            for request in self.waiting.arrivals:
                if known(request).view.number >= self.recorder.log.n:
                    self.recorder.arrived(known(request).view, self._steps)
        self.waiting.by_arrival()
        if self.telemetry is not None:
            self.telemetry.fell_back(error)

    def shutdown(self) -> None:
        """Write out what telemetry has, and shut vLLM's scheduler down."""
        self._close(self.clock())
        if self.telemetry is not None:
            for request_id in list(self._numbers):
                self._forget(request_id)
            self.telemetry.close()
        super().shutdown()


class AsyncPolicyScheduler(PolicyScheduler, hooks.AsyncScheduler):
    """The same where vLLM decides a step while the one before it runs."""
