"""Sample views, and a short deterministic run of a policy without a simulator, for :mod:`policies.checks`."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

from costmodels.base import CostModel
from policies.base import Decision, Policy
from policies.queue import PolicyQueue
from policies.units import MS
from policies.views import BatchView, Candidate, Grant, LoadView, RequestView, StepRecord

NO_LIMIT = 1 << 30


def sample_requests() -> list[RequestView]:
    """Return 30 requests in order of arrival: ties, one token and very many, cached or not, optional fields or none."""
    prompts = itertools.cycle((300, 1, 2048, 17, 9000, 256, 100_000))
    cached = itertools.cycle((0, 16, 0, 1024))
    generated = itertools.cycle((0, 0, 0, 0, 5))
    ttfts = itertools.cycle((None, 200 * MS, 1000 * MS))
    tpots = itertools.cycle((25 * MS, None, 50 * MS, 10 * MS))
    tenants = itertools.cycle((None, "interactive", "batch"))
    sessions = itertools.cycle((None, "user-1", "user-2", "user-1"))
    requests = []
    for i in range(30):
        prompt, outputs = next(prompts), next(generated)
        hit = min(next(cached), prompt + outputs - 1)
        requests.append(
            RequestView(
                # Pairs arrive together.
                i,
                i // 2 * 3 * MS,
                prompt,
                hit,
                outputs,
                next(ttfts),
                next(tpots),
                next(tenants),
                next(sessions),
            )
        )
    return requests


def sample_batches(lookahead: int, seats: int) -> Iterator[BatchView]:
    """Yield the states in which a host may ask a chunking of this lookahead with so many seats."""
    now = 10_000 * MS
    requests = sample_requests()
    long = [r for r in requests if r.uncached_tokens >= 256]
    for n_started, more in itertools.product((0, 1, 2), (0, 5)):
        started = [Candidate(r, r.cached_tokens + 64, r.uncached_tokens - 64) for r in long[:n_started]]
        listed = [Candidate(r, r.cached_tokens, r.uncached_tokens) for r in requests[20:][: lookahead - n_started]]
        for waiting in {len(listed), min(len(listed), 1)}:
            candidates = (*started, *listed[:waiting]) if lookahead > n_started else tuple(started)
            n_waiting = more + waiting
            if not candidates and (lookahead or not n_waiting):
                continue
            for n in (0, 1, 7, 150):
                if n + n_started + (not started) > seats:
                    continue
                deadlines = (1, 5 * MS, 25 * MS, -MS, 1 << 61, None) if n else (None,)
                for left in deadlines:
                    yield BatchView(
                        now, n, 700 * n, 900 * bool(n), None if left is None else now + left, candidates, n_waiting
                    )


def sample_loads() -> list[LoadView]:
    """Return an idle engine, a busy one and an overloaded one."""
    now = 10_000 * MS
    return [
        LoadView(now, 0, 0, 0, 0, 0),
        LoadView(now, 20, 9000, 2000, 1, 3),
        LoadView(now, 900, 600_000, 9000, 2, 5000),
    ]


def sample_steps() -> list[StepRecord]:
    """Return 40 steps whose durations no cost model predicted."""
    steps = []
    for i in range(40):
        n, tokens = i % 9, (i * 37) % 600
        decided = i * 20 * MS
        steps.append(
            StepRecord(
                decided, decided, MS + i * 12_345, n, 500 * n, 800 * (n > 0), int(tokens > 0), tokens, tokens * tokens
            )
        )
    return steps


class _Active:
    """A request that prefills or decodes."""

    def __init__(self, view: RequestView) -> None:
        self.view = view
        self.computed = view.cached_tokens
        self.left = 1 + view.number * 7 % 20
        self.last_ns = 0
        self.start_ns = 0
        self.outputs = 0

    @property
    def remaining(self) -> int:
        """Tokens still to prefill."""
        return self.view.prompt_tokens + self.view.generated_tokens - self.computed


class Rehearsal:
    """The sample requests under a policy, step by step; ``log`` has all that was decided, in order.

    ``admit`` and ``grant`` stand in for the policy's own, to look over its shoulder. Steps take some per cent longer
    than ``model`` says, so that a part that learns has something to learn.
    """

    def __init__(
        self,
        policy: Policy,
        model: CostModel,
        *,
        admit: Callable[[RequestView, LoadView], Decision] | None = None,
        grant: Callable[[BatchView], Grant] | None = None,
    ) -> None:
        policy.reset(model)
        self.log: list[Any] = []
        self._policy = policy
        self._model = model
        self._admit = admit or (policy.admission.admit if policy.admission else None)
        self._grant = grant or policy.chunking.grant
        self._seats = policy.chunking.seat_limit(None) or NO_LIMIT
        self._queue = PolicyQueue(policy.ordering)
        self._arriving = sample_requests()[::-1]
        self._prefilling: list[_Active] = []
        self._decoding: list[_Active] = []
        self._now = 0

    def run(self, steps: int = 250) -> list[Any]:
        """Take at most so many steps and return the log."""
        for number in range(steps):
            self._arrive()
            if self._prefilling or (self._has_seat and len(self._queue)):
                answer = self._grant(self._batch())
                self.log.append(answer)
                taken, pairs = self._hand_out(answer)
            elif self._decoding:
                taken, pairs = [], 0
            elif self._arriving:
                self._now = self._arriving[-1].arrival_ns
                continue
            else:
                break
            self._step(number, taken, pairs)
        return self.log

    @property
    def _has_seat(self) -> bool:
        return len(self._decoding) + len(self._prefilling) < self._seats

    def _decode_features(self) -> tuple[int, int, int]:
        contexts = [a.computed for a in self._decoding]
        return len(contexts), sum(contexts), max(contexts, default=0)

    def _arrive(self) -> None:
        while self._arriving and self._arriving[-1].arrival_ns <= self._now:
            view = self._arriving.pop()
            if self._admit is not None:
                load = LoadView(self._now, *self._decode_features(), len(self._prefilling), len(self._queue))
                decision = self._admit(view, load)
                self.log.append((view.number, decision))
                if decision.verdict != "accept":
                    continue
            self._queue.add(view)

    def _batch(self) -> BatchView:
        chunking = self._policy.chunking
        candidates = [Candidate(a.view, a.computed, a.remaining) for a in self._prefilling]
        more = chunking.lookahead - len(candidates)
        if more > 0 and self._has_seat and len(self._queue):
            waiting = self._queue.first(more, self._now)
            candidates += [Candidate(r, r.cached_tokens, r.uncached_tokens) for r in waiting]
        allowed = [(a, chunking.deadline_ns(a.view)) for a in self._decoding]
        deadlines = [
            a.start_ns + a.outputs * d if chunking.cumulative else a.last_ns + d for a, d in allowed if d is not None
        ]
        earliest = min(deadlines, default=None)
        return BatchView(self._now, *self._decode_features(), earliest, tuple(candidates), len(self._queue))

    def _hand_out(self, answer: Grant) -> tuple[list[tuple[_Active, int]], int]:
        """Give out the tokens in order, each request filled before the next."""
        left, pairs = answer.tokens, 0
        most = NO_LIMIT if answer.prefills is None else answer.prefills
        cap = NO_LIMIT if answer.cap is None else answer.cap
        taken: list[tuple[_Active, int]] = []
        while left > 0 and len(taken) < most:
            if len(taken) == len(self._prefilling):
                if not (self._has_seat and len(self._queue)):
                    break
                self._prefilling.append(_Active(self._queue.pop(self._now)))
            run = self._prefilling[len(taken)]
            tokens = min(left, run.remaining, cap)
            pairs += tokens * run.computed + tokens * (tokens + 1) // 2
            run.computed += tokens
            left -= tokens
            taken.append((run, tokens))
        return taken, pairs

    def _step(self, number: int, taken: list[tuple[_Active, int]], pairs: int) -> None:
        features = (*self._decode_features(), len(taken), sum(t for _, t in taken), pairs)
        duration = self._model.step_ns(*features) * (100 + number * 7 % 11) // 100
        record = StepRecord(self._now, self._now, duration, *features)
        for part in self._policy.observers:
            part.observe(record)
        self._now += duration
        self.log.append((self._now, tuple((run.view.number, tokens) for run, tokens in taken)))
        for active in self._decoding:
            active.computed += 1
        ready = [run for run in self._prefilling if not run.remaining]
        self._prefilling = [run for run in self._prefilling if run.remaining]
        for run in ready:
            run.start_ns = max(self._now, run.view.arrival_ns + (run.view.slo_ttft_ns or 0))
        self._decoding = [a for a in (*self._decoding, *ready) if a.left > 1]
        for active in self._decoding:
            active.left -= 1
            active.outputs += 1
            active.last_ns = self._now
