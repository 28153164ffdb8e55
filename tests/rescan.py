"""PrefillOnly's Algorithm 1 to the letter: every waiting request is looked up and scored again at each decision."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from fractions import Fraction

from policies import Ordering, RequestView

NS = 10**9

HitTokens = Callable[[int, int], int]
"""From a request's number and its tokens to prefill to the leading ones that are cached now."""


def uncached(n_input: int, n_cached: int) -> int:
    """Return the default proxy of a job's time."""
    return n_input - n_cached


class Rescan:
    """The algorithm with its parameters, in integers.

    Args:
        lam: λ in tokens per second, as it is typed.
        jct: from input and cached tokens to the job completion time, in any unit.
        per_token: what an uncached token counts in that unit.
    """

    def __init__(self, lam: str, jct: Callable[[int, int], int] = uncached, per_token: int = 1) -> None:
        self.jct = jct
        self.weight = Fraction(lam) * per_token

    def work(self, request: RequestView, hit_tokens: HitTokens) -> int:
        """Return a request's JCT, its cached tokens freshly read."""
        n_input = request.prompt_tokens + request.generated_tokens
        return self.jct(n_input, hit_tokens(request.number, n_input))

    def score(self, request: RequestView, now: int, hit_tokens: HitTokens) -> int:
        """Return ``jct - λ * T_queue``, times a constant that makes it whole."""
        waited = now - request.arrival_ns
        return self.work(request, hit_tokens) * NS * self.weight.denominator - self.weight.numerator * waited

    def best(self, waiting: Collection[RequestView], now: int, hit_tokens: HitTokens) -> RequestView:
        """Return the one of least score, the earliest where several are."""
        return min(waiting, key=lambda r: (self.score(r, now, hit_tokens), r.arrival_ns, r.number))


class AlgorithmOne(Ordering):
    """The rescan as an ordering for an engine whose cache it can ask."""

    name = "test-algorithm-1"

    def __init__(self, rescan: Rescan, hit_tokens: HitTokens) -> None:
        self.rescan = rescan
        self.hit_tokens = hit_tokens

    def choose(self, waiting: Sequence[RequestView], now_ns: int) -> RequestView:
        return self.rescan.best(waiting, now_ns, self.hit_tokens)
