"""Policy parts of a user's own, of the kinds that no built-in part is; a fixture loads this file as a plug-in."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Annotated

from annotated_types import Ge

from costmodels import CostModel
from policies import BatchView, Chunking, Grant, Observer, Ordering, RequestView, StepRecord, register


@register
class Hrrn(Ordering):
    """Highest response ratio next: (wait + work) / work; it reads the clock, so it has no key."""

    name = "test-hrrn"

    def choose(self, waiting: Sequence[RequestView], now_ns: int) -> RequestView:
        return max(waiting, key=lambda r: ((now_ns - r.arrival_ns) / r.uncached_tokens, -r.number))


@register
class LongestFirst(Ordering):
    """Longest prompt first."""

    name = "test-longest-first"

    def key(self, request: RequestView) -> int:
        return -request.prompt_tokens


@register
class Rescan(Ordering):
    """PrefillOnly §6.3, Algorithm 1 as printed: score everybody at each decision, take the least."""

    name = "test-rescan"

    lam: Annotated[float, Ge(0)] = 500.0

    def choose(self, waiting: Sequence[RequestView], now_ns: int) -> RequestView:
        lam = Fraction(str(self.lam))

        def score(r: RequestView) -> tuple[Fraction, int, int]:
            return r.uncached_tokens - lam * Fraction(now_ns - r.arrival_ns, 10**9), r.arrival_ns, r.number

        return min(waiting, key=score)


@register
class ByTenant(Ordering):
    """Tenants in the order of their names: static priorities."""

    name = "test-by-tenant"

    def key(self, request: RequestView) -> int:
        return int(request.tenant or 0)


@register
class Learning(Observer, Chunking):
    """A chunk that shrinks while steps are longer than their running mean, and grows while they are not."""

    name = "test-learning"

    start: Annotated[int, Ge(1)] = 8

    def reset(self, predictor: CostModel | None) -> None:
        self._chunk, self._mean = self.start, 0

    def observe(self, step: StepRecord) -> None:
        self._chunk = max(1, self._chunk // 2) if step.duration_ns > self._mean else self._chunk + 3
        self._mean = (self._mean + step.duration_ns) // 2

    def grant(self, batch: BatchView) -> Grant:
        return Grant(self._chunk, prefills=2)


@register
class Pair(Chunking):
    """All of the next prefill, and a half of the one after it where it is shorter; it looks three ahead."""

    name = "test-pair"
    lookahead = 3

    def grant(self, batch: BatchView) -> Grant:
        first, *rest = batch.candidates
        extra = [c.remaining for c in rest if c.remaining < first.remaining]
        return Grant(first.remaining + sum(extra[:1]) // 2, prefills=2 if extra else 1)


@register
class Capped(Chunking):
    """Some tokens for each of up to three prefills, fewer beside some batches, where started ones have to pause."""

    name = "test-capped"
    lookahead = 3

    def grant(self, batch: BatchView) -> Grant:
        return Grant(12, 1 if batch.n_decode % 2 else 3, cap=4)
