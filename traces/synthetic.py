"""Synthetic workloads: SLOWeave's four and PrefillOnly's two.

Each seed has independent streams for arrivals, lengths and content, so every policy of a seed sees the same trace,
and changing one stream's parameters leaves the others' draws alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from traces import arrivals
from traces.schema import IntArray, Segments, Trace, TraceError

PROMPT_CLIP = (16, 8192)
OUTPUT_CLIP = (4, 1024)


@dataclass(frozen=True)
class Streams:
    """Independent random streams of one seed."""

    arrivals: np.random.Generator
    lengths: np.random.Generator
    content: np.random.Generator

    @classmethod
    def of(cls, seed: int) -> Streams:
        """Spawn the streams of ``seed``."""
        return cls(*map(np.random.default_rng, np.random.SeedSequence(seed).spawn(3)))


def lognormal_tokens(
    median: float | np.ndarray, sigma: float, clip: tuple[int, int], n: int, rng: np.random.Generator
) -> IntArray:
    """Draw ``n`` log-normal token counts, rounded, then clipped to ``clip``."""
    draws = median * np.exp(sigma * rng.standard_normal(n))
    return np.clip(np.rint(draws), *clip).astype(np.int64)


@dataclass(frozen=True)
class Sloweave:
    """One of SLOWeave's workloads (§4.2, §4.4).

    Medians, rates and shares are the paper's. It does not state the spread of lengths, their clipping, or the bursty
    process; here the prompt sigma is 0.55, the output sigma 0.40 (chat 0.30), prompts are clipped to [16, 8192] and
    outputs to [4, 1024], and bursty switches between 105 and 35 requests/s with a mean dwell of 2 s.
    """

    rate: float
    """Requests per second; the mean rate for bursty."""
    ttft_ms: float
    """TTFT objective."""
    prompt_medians: tuple[float, float]
    long_share: float
    """Share of requests with the second prompt median."""
    output_median: float
    prompt_sigma: float = 0.55
    output_sigma: float = 0.40
    burst: tuple[float, float, float] | None = None
    """High rate, low rate (requests/s) and mean dwell (s)."""

    def generate(self, n: int, seed: int, rate: float | None, name: str) -> Trace:
        """Return ``n`` requests; ``rate`` replaces the offered rate, keeping the shape of bursts."""
        streams = Streams.of(seed)
        factor = 1.0 if rate is None else rate / self.rate
        if self.burst is None:
            times = arrivals.poisson(n, self.rate * factor, streams.arrivals)
        else:
            high, low, dwell = self.burst
            times = arrivals.two_state(n, high * factor, low * factor, dwell, streams.arrivals)
        is_long = streams.lengths.random(n) < self.long_share
        medians = np.where(is_long, self.prompt_medians[1], self.prompt_medians[0])
        prompts = lognormal_tokens(medians, self.prompt_sigma, PROMPT_CLIP, n, streams.lengths)
        outputs = lognormal_tokens(self.output_median, self.output_sigma, OUTPUT_CLIP, n, streams.lengths)
        return Trace(times, prompts, outputs, name=name)


SLOWEAVE = {
    "chat": Sloweave(110, 1000, (256, 256), 0.0, 96, output_sigma=0.30),
    "mixed": Sloweave(90, 1000, (256, 1800), 0.3, 100),
    "long": Sloweave(60, 5000, (1800, 1800), 0.0, 180),
    "bursty": Sloweave(70, 1500, (256, 1800), 0.3, 100, burst=(105, 35, 2.0)),
}


@dataclass(frozen=True)
class PrefillOnly:
    """One of PrefillOnly's workloads (§7.1, Table 1): users whose requests share a profile; one output token.

    ``arrivals="users"`` lets each user's requests arrive together, ``"requests"`` each on its own, users shuffled:
    the paper says only that users arrive as a Poisson process. ``clip`` bounds the profile, which Table 1 prints as
    the range of one standard deviation.
    """

    users: int
    requests_per_user: int
    profile_mean: float
    profile_std: float
    clip: tuple[int, int] | None
    post_tokens: int
    rate: float
    arrivals: str = "users"

    def generate(self, n: int | None, seed: int, rate: float | None, name: str) -> Trace:
        """Return the users' requests, the first ``n`` of them where given; ``rate`` is in requests/s."""
        streams = Streams.of(seed)
        rate = self.rate if rate is None else rate
        users, per_user = self.users, self.requests_per_user
        if n is not None and n > users * per_user:
            users = -(-n // per_user)
        profile = self._profiles(users, streams.lengths)
        user = np.repeat(np.arange(users), per_user)
        total = users * per_user
        if self.arrivals == "users":
            times = np.repeat(arrivals.poisson(users, rate / per_user, streams.arrivals), per_user)
        elif self.arrivals == "requests":
            times = arrivals.poisson(total, rate, streams.arrivals)
            user = user[streams.content.permutation(total)]
        else:
            raise TraceError(f"arrivals of {name} must be users or requests, not {self.arrivals!r}")
        prompts = profile[user] + self.post_tokens
        segments = _profile_and_post(user, profile[user], self.post_tokens, users)
        trace = Trace(
            times,
            prompts,
            np.ones(total, dtype=np.int64),
            segments=segments,
            session=np.array([f"user-{u}" for u in user.tolist()], dtype=object),
            name=name,
        )
        return trace if n is None else trace.limit(n)

    def _profiles(self, users: int, rng: np.random.Generator) -> IntArray:
        if self.profile_std:
            draws = rng.normal(self.profile_mean, self.profile_std, users)
        else:
            low, high = self.clip or (self.profile_mean, self.profile_mean)
            draws = rng.uniform(low, high, size=users)
        if self.clip is not None:
            draws = np.clip(draws, *self.clip)
        tokens: IntArray = np.maximum(np.rint(draws), 1).astype(np.int64)
        return tokens


def _profile_and_post(user: IntArray, profile: IntArray, post: int, users: int) -> Segments:
    """Content: the user's profile, then a post that nobody else has."""
    total = len(user)
    if not post:
        return Segments(np.arange(total + 1, dtype=np.int64), user.astype(np.int64), profile)
    ids = np.empty(2 * total, dtype=np.int64)
    ids[0::2], ids[1::2] = user, users + np.arange(total)
    tokens = np.empty(2 * total, dtype=np.int64)
    tokens[0::2], tokens[1::2] = profile, post
    return Segments(np.arange(0, 2 * total + 1, 2, dtype=np.int64), ids, tokens)


PREFILLONLY = {
    "post-recommendation": PrefillOnly(20, 50, 14_000, 3_000, (11_000, 17_000), 150, rate=10),
    "credit-verification": PrefillOnly(60, 1, 50_000, 0, (40_000, 60_000), 0, rate=1),
}

WORKLOADS: dict[str, Sloweave | PrefillOnly] = {**SLOWEAVE, **PREFILLONLY}


def generate(name: str, seed: int, n: int | None = None, rate: float | None = None) -> Trace:
    """Return a workload by name: ``n`` requests (1,000 for SLOWeave's, all users' for PrefillOnly's by default).

    Raises:
        TraceError: if there is none of that name, or ``n`` or ``rate`` is not positive.
    """
    if rate is not None:
        arrivals.check_rate(rate)
    if name not in WORKLOADS:
        raise TraceError.unknown("workload", name, WORKLOADS)
    if n is not None and n < 1:
        raise TraceError(f"a workload has at least 1 request, not {n}")
    workload = WORKLOADS[name]
    if isinstance(workload, Sloweave):
        return workload.generate(1000 if n is None else n, seed, rate, name)
    return workload.generate(n, seed, rate, name)
