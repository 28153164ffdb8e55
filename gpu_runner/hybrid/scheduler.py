"""Which request the hybrid engine prefills next: the simulator's policy objects over a queue, one request at a time.

It knows neither the model nor its memory; both are behind a :class:`Runner`.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from gpu_runner.clock import Clock
from gpu_runner.hybrid.scoring import Answer, Question
from gpu_runner.periods import Periods
from gpu_runner.recorder import Recorder, Step
from gpu_runner.settings import Settings, SettingsError, Wishes
from gpu_runner.sound import turned_away
from gpu_runner.watch import CacheWatch
from policies.base import Ordering
from policies.chunking.full import Full
from policies.ordering.fcfs import Fcfs
from policies.queue import PolicyQueue
from policies.views import BatchView, Candidate, LoadView, RequestView

logger = logging.getLogger("prefillsim.hybrid")


@dataclass(frozen=True)
class Served:
    """What became of a prompt.

    Attributes:
        cached: its tokens that were in the store when it started.
        stored: its tokens that are there now.
        evicted: whether others may have made room.
        answer: to its question.
    """

    cached: int
    stored: int
    evicted: bool
    answer: Answer


class Runner(Protocol):
    """A model and its prefix store."""

    @property
    def block_size(self) -> int:
        """Tokens of a block of the store."""
        ...

    @property
    def blocks(self) -> int:
        """Blocks that are stored."""
        ...

    def cached_tokens(self, ids: Sequence[int]) -> int:
        """Return how many of a prompt's first tokens are stored; no side effect."""
        ...

    def serve(self, ids: Sequence[int], keep: int, question: Question) -> Served:
        """Prefill a prompt, and store its first ``keep`` tokens in whole blocks."""
        ...


@dataclass(eq=False)
class Prompt:
    """A request on its way.

    Attributes:
        hashes: of :func:`block_hashes`.
        number: in the order in which requests were let in or turned away; -1 until then.
    """

    request_id: str
    ids: Sequence[int]
    arrival_ns: int
    wishes: Wishes
    question: Question
    hashes: list[Hashable]
    number: int = -1


@dataclass(frozen=True)
class Ended:
    """A request that has left.

    Attributes:
        answer: ``None`` where there is none.
        outcome: ``finished``, ``rejected`` by the policy's admission, ``aborted`` by its client, or ``failed``.
        reason: why there is no answer.
    """

    request_id: str
    answer: Answer | None
    outcome: str = "finished"
    reason: str = ""


class HybridScheduler:
    """Serves requests in a policy's order, as the simulator does with memory regime ``store``.

    Times are nanoseconds of a clock that starts at the wall clock's time. A step prefills one whole prompt.
    :meth:`add` and :meth:`abort` may be called from other threads while a step runs.

    Args:
        settings: policy, what it believes, objectives, and whether suffixes are discarded.
        runner: the model.
        clock: nanoseconds since the epoch.

    Raises:
        SettingsError: if the policy does not prefill prompts whole, or cannot be made.
    """

    fallen: bool

    def __init__(self, settings: Settings, runner: Runner, clock: Clock | None = None) -> None:
        self.settings = settings
        self.policy, self.predictor = settings.build()
        if not isinstance(self.policy.chunking, Full):
            raise SettingsError(
                f"policy {settings.policy} splits prompts, but the hybrid engine prefills each in one step: give "
                f"{self.policy.ordering.name}+full"
            )
        self._objectives = settings.objectives()
        self._runner = runner
        self.clock = (clock or Clock()).now_ns
        ordering = self.policy.ordering
        self._watching = ordering.cache_aware
        choosing = type(ordering).choose is not Ordering.choose
        self._looks = self._watching or ordering.key_at_arrival or choosing or self.policy.admission is not None
        self.recorder: Recorder | None = None
        self.last: Step | None = None
        """The step that ended last."""
        self.begin()

    def begin(self) -> None:
        """Begin a new run: forget what was recorded and learned; nothing may be waiting."""
        self.policy.reset(self.predictor)
        self.recorder = Recorder(False, self.policy.needs_predictor) if self.settings.record else None
        self.queue = PolicyQueue(self.policy.ordering)
        self.fallen = False
        self._periods = Periods(False, self.policy.observers, self._fall_back, self.recorder)
        self._watch = CacheWatch()
        self._inbox: deque[Prompt] = deque()
        self._aborted: deque[str] = deque()
        self._prompts: dict[int, Prompt] = {}
        self._numbers: dict[str, int] = {}
        self._came = 0
        self._steps = 0
        self._changed: list[Hashable] = []
        self._evicted = False
        self._ended: list[Ended] = []

    @property
    def busy(self) -> bool:
        """Whether anything waits, or has left without :meth:`step` having said so."""
        return bool(self._inbox or self.queue.size or self._ended)

    def add(self, prompt: Prompt) -> None:
        """Take a request; the next step decides whether it is let in."""
        self._inbox.append(prompt)

    def abort(self, request_id: str) -> None:
        """Let the next step drop a request that still waits; one that runs is served."""
        self._aborted.append(request_id)

    def step(self) -> list[Ended]:
        """Let arrivals in, serve the next request, and return those that have left.

        Where a prefill fails, its error is raised; the request is among those of the next step, and the others go on.
        """
        now = self.clock()
        self._close(now)
        self._let_in(now)
        self._drop()
        self._reread()
        if self.queue.size:
            self._serve(*self._decide(now))
        ended, self._ended = self._ended, []
        return ended

    def finish_recording(self) -> Recorder:
        """Return what was recorded, once nothing is left to do."""
        self._close(self.clock())
        assert self.recorder is not None
        return self.recorder

    def _serve(self, step: Step, prompt: Prompt) -> None:
        try:
            served = self._runner.serve(prompt.ids, self._kept(prompt), prompt.question)
        except BaseException as e:
            reason = f"the prefill failed: {type(e).__name__}: {str(e).partition(chr(10))[0]}"
            self._ended.append(Ended(prompt.request_id, None, "failed", reason))
            if self.recorder is not None:
                self.recorder.log.reasons[prompt.number] = reason
            raise
        self._finish(step, prompt, served)
        self._ended.append(Ended(prompt.request_id, served.answer))

    def _let_in(self, now: int) -> None:
        while self._inbox:
            prompt = self._inbox.popleft()
            prompt.number = number = self._came
            self._came += 1
            view = self._view(prompt)
            if self.recorder is not None:
                self.recorder.arrived(view, self._steps)
            reason = self._turned_away(view, now)
            if reason is not None:
                if self.recorder is not None:
                    self.recorder.rejected(number, reason)
                self._ended.append(Ended(prompt.request_id, None, "rejected", reason))
                continue
            self._prompts[number] = prompt
            self._numbers[prompt.request_id] = number
            try:
                self.queue.add(view)
            except Exception as e:
                self._fall_back(e)
                self.queue.add(view)
            if self._watching or self.settings.discard:
                self._watch.watch(number, prompt.hashes)

    def _view(self, prompt: Prompt) -> RequestView:
        wishes = prompt.wishes
        return RequestView(
            prompt.number,
            prompt.arrival_ns,
            len(prompt.ids),
            cached_tokens=self._runner.cached_tokens(prompt.ids) if self._looks else 0,
            slo_ttft_ns=self._objectives.ttft if wishes.ttft_ns is None else wishes.ttft_ns,
            slo_tpot_ns=self._objectives.deadline_ns if wishes.tpot_ns is None else wishes.tpot_ns,
            tenant=wishes.tenant,
            session=wishes.session,
        )

    def _turned_away(self, view: RequestView, now: int) -> str | None:
        admission = self.policy.admission
        if admission is None or self.fallen:
            return None
        try:
            return turned_away(admission, view, LoadView(now, 0, 0, 0, 0, self.queue.size))
        except Exception as e:
            self._fall_back(e)
            return None

    def _drop(self) -> None:
        while self._aborted:
            number = self._numbers.get(self._aborted.popleft())
            if number is None:
                continue
            self.queue.remove(number)
            self._ended.append(Ended(self._forget(number).request_id, None, "aborted", "aborted by the client"))
            if self.recorder is not None:
                self.recorder.gone(number, self._steps - 1, 0)

    def _forget(self, number: int) -> Prompt:
        prompt = self._prompts.pop(number)
        del self._numbers[prompt.request_id]
        self._watch.unwatch(number)
        return prompt

    def _reread(self) -> None:
        """Read the keys of waiting requests anew whose cached prefix may have changed."""
        changed, evicted = self._changed, self._evicted
        self._changed, self._evicted = [], False
        if not self._watching or self.fallen or not self.queue.size:
            return
        touched = set(self._watch.touched(changed))
        if evicted:
            touched.update(view.number for view in self.queue if view.cached_tokens)
        try:
            self.queue.reread(sorted(touched), lambda n, _: self._runner.cached_tokens(self._prompts[n].ids))
        except Exception as e:
            self._fall_back(e)

    def _decide(self, now: int) -> tuple[Step, Prompt]:
        waiting = self.queue.size
        try:
            view = self.queue.peek(now)
        except Exception as e:
            self._fall_back(e)
            view = self.queue.peek(now)
        hit = self._runner.cached_tokens(self._prompts[view.number].ids)
        work = view.prompt_tokens - hit
        candidate = Candidate(view._replace(cached_tokens=hit), hit, work)
        grant = self.policy.chunking.grant(BatchView(now, 0, 0, 0, None, (candidate,), waiting))
        self.queue.pop(now)
        step = Step(self._steps, now, waiting, grant.tokens, grant.exception, fallback=self.fallen)
        step.n_prefill, step.prefill_tokens = 1, work
        step.prefill_pairs = work * hit + (work * (work + 1) >> 1)
        step.batch = (view.number,), (work,)
        if self.predictor is not None:
            try:
                step.predicted = int(self.predictor.step_ns(*step.features))
            except Exception as e:
                self.predictor = None
                if not self.fallen:
                    self._fall_back(e)
        return step, self._forget(view.number)

    def _kept(self, prompt: Prompt) -> int:
        """Return how many leading tokens of a prompt are worth storing."""
        if not self.settings.discard:
            return len(prompt.ids)
        if prompt.wishes.keep_tokens is not None:
            return min(prompt.wishes.keep_tokens, len(prompt.ids))
        return self._watch.shared(prompt.hashes) * self._runner.block_size

    def _finish(self, step: Step, prompt: Prompt, served: Served) -> None:
        self._periods.depart(step)
        self._periods.land(self.clock())
        step.kv_blocks = self._runner.blocks
        self._steps += 1
        size = self._runner.block_size
        self._changed += prompt.hashes[served.cached // size : served.stored // size]
        self._evicted |= served.evicted
        self.last = step
        if self.recorder is not None:
            self.recorder.started(prompt.number, served.cached)
            self.recorder.chunk(step.number, prompt.number, step.prefill_tokens)
            self.recorder.prefilled(prompt.number, step.number)
            self.recorder.finished(prompt.number, step.number, 1)

    def _close(self, now: int) -> None:
        self._periods.close(now, busy=bool(self.queue.size))

    def _fall_back(self, error: Exception) -> None:
        """Serve by arrival from now on, and say so once."""
        if self.fallen:
            raise error
        self.fallen = True
        self._periods.forget_observers()
        logger.error(
            "policy %s failed, and first come, first served takes its place: %s: %s",
            self.settings.policy,
            type(error).__name__,
            error,
        )
        waiting, self.queue = list(self.queue), PolicyQueue(Fcfs())
        for view in waiting:
            self.queue.add(view)


def block_hashes(ids: Sequence[int], size: int) -> list[Hashable]:
    """Return a hash for each full block of a prompt, of all tokens up to its end."""
    hashes: list[Any] = []
    before = 0
    for lo in range(0, len(ids) - size + 1, size):
        before = hash((before, tuple(ids[lo : lo + size])))
        hashes.append(before)
    return hashes
