"""Synthetic workloads: SLOWeave's four and PrefillOnly's two.

Each seed has independent streams for arrivals, lengths, content and service classes, so every policy of a seed sees the
same trace, and changing one stream's parameters leaves the others' draws alone.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Annotated, Any, Literal

import numpy as np
from annotated_types import Ge, Gt, Le
from numpy.typing import NDArray
from pydantic import AllowInfNan, BeforeValidator, ConfigDict, ValidationError
from pydantic.dataclasses import dataclass as parameters

from traces import arrivals
from traces.schema import NONE, IntArray, Segments, Trace, TraceError

PAPER_REQUESTS = 1000
"""Requests of a run in SLOWeave §4.2."""

PROMPT_CLIP = (16, 8192)
OUTPUT_CLIP = (4, 1024)

Positive = Annotated[float, Gt(0), AllowInfNan(False)]
NotNegative = Annotated[float, Ge(0), AllowInfNan(False)]
Share = Annotated[float, Ge(0), Le(1)]
Sigma = Annotated[float, Ge(0), Le(10)]
Dwell = Annotated[float, Ge(0.001), AllowInfNan(False)]
Objective = Annotated[float, Ge(1e-6), Le(1e12)]
Count = Annotated[int, Ge(1), Le(10_000_000)]


@dataclass(frozen=True)
class Streams:
    """Independent random streams of one seed."""

    arrivals: np.random.Generator
    lengths: np.random.Generator
    content: np.random.Generator
    classes: np.random.Generator

    @classmethod
    def of(cls, seed: int) -> Streams:
        """Spawn the streams of ``seed``."""
        return cls(*map(np.random.default_rng, np.random.SeedSequence(seed).spawn(4)))


def lognormal_tokens(
    median: float | np.ndarray, sigma: float, clip: tuple[int, int], n: int, rng: np.random.Generator
) -> IntArray:
    """Draw ``n`` log-normal token counts, rounded, then clipped to ``clip``."""
    draws = median * np.exp(sigma * rng.standard_normal(n))
    return np.clip(np.rint(draws), *clip).astype(np.int64)


@parameters(frozen=True, config=ConfigDict(extra="forbid"))
class Sloweave:
    """One of SLOWeave's workloads (§4.2, §4.4).

    Medians, rates and shares are the paper's. It does not state the spread of lengths, their clipping, or the bursty
    process; here the prompt sigma is 0.55, the output sigma 0.40 (chat 0.30), prompts are clipped to [16, 8192] and
    outputs to [4, 1024], and bursty switches between 105 and 35 requests/s with a mean dwell of 2 s.

    With ``interactive_share`` there are two tenants, ``interactive`` and ``batch``, which may have objectives of their
    own. Who is of which does not depend on arrivals and lengths; a larger share makes more requests interactive, and
    leaves those that were.
    """

    rate: Positive
    """Requests per second; the mean rate of two-state."""
    ttft_ms: Positive
    """TTFT objective."""
    prompt_median: Positive
    output_median: Positive
    long_share: Share = 0.0
    """Share of requests whose prompt median is ``long_median``."""
    long_median: Positive = 1800.0
    prompt_sigma: Sigma = 0.55
    output_sigma: Sigma = 0.40
    arrivals: Literal["poisson", "gamma", "two-state", "all-at-once"] = "poisson"
    burstiness: Positive | None = None
    """Shape of gamma gaps; below 1 is burstier than Poisson."""
    high: Positive | None = None
    """The high rate of two-state, requests per second."""
    low: Positive | None = None
    """The low rate of two-state."""
    dwell: Dwell | None = None
    """Mean seconds in a state of two-state."""
    interactive_share: Share | None = None
    """Share of requests whose tenant is ``interactive``, the others' being ``batch``; no tenants without it."""
    interactive_ttft: Objective | None = None
    """TTFT objective of interactive requests in ms, in place of that of all."""
    interactive_tpot: Objective | None = None
    """TPOT objective of interactive requests in ms, in place of that of all."""
    batch_ttft: Objective | None = None
    """TTFT objective of batch requests in ms, in place of that of all."""
    batch_tpot: Objective | None = None
    """TPOT objective of batch requests in ms, in place of that of all."""

    def __post_init__(self) -> None:
        if self.interactive_share is None:
            for name in ("interactive_ttft", "interactive_tpot", "batch_ttft", "batch_tpot"):
                if getattr(self, name) is not None:
                    raise ValueError(f"{name} needs interactive_share, the share of interactive requests")
        for name, value in (
            ("burstiness", "gamma"),
            ("high", "two-state"),
            ("low", "two-state"),
            ("dwell", "two-state"),
        ):
            if (getattr(self, name) is not None) != (self.arrivals == value):
                raise ValueError(f"{name} goes with arrivals={value}, and arrivals={value} needs it")

    def generate(self, n: int, seed: int, rate: float | None, name: str) -> Trace:
        """Return ``n`` requests; ``rate`` replaces the offered rate, that of both states in proportion."""
        streams = Streams.of(seed)
        times = self._arrivals(n, self.rate if rate is None else rate, streams.arrivals)
        is_long = streams.lengths.random(n) < self.long_share
        medians = np.where(is_long, self.long_median, self.prompt_median)
        prompts = lognormal_tokens(medians, self.prompt_sigma, PROMPT_CLIP, n, streams.lengths)
        outputs = lognormal_tokens(self.output_median, self.output_sigma, OUTPUT_CLIP, n, streams.lengths)
        if self.interactive_share is None:
            return Trace(times, prompts, outputs, name=name)
        interactive = streams.classes.random(n) < self.interactive_share
        return Trace(
            times,
            prompts,
            outputs,
            tenant=np.where(interactive, "interactive", "batch").astype(object),
            slo_ttft_ns=_by_class(interactive, self.interactive_ttft, self.batch_ttft),
            slo_tpot_ns=_by_class(interactive, self.interactive_tpot, self.batch_tpot),
            name=name,
        )

    def _arrivals(self, n: int, rate: float, rng: np.random.Generator) -> IntArray:
        if self.arrivals == "gamma" and self.burstiness is not None:
            return arrivals.gamma(n, rate, self.burstiness, rng)
        if self.high is not None and self.low is not None and self.dwell is not None:
            factor = rate / self.rate
            return arrivals.two_state(n, self.high * factor, self.low * factor, self.dwell, rng)
        if self.arrivals == "all-at-once":
            return arrivals.all_at_once(n)
        return arrivals.poisson(n, rate, rng)


def _by_class(interactive: NDArray[np.bool_], of_interactive: float | None, of_batch: float | None) -> IntArray | None:
    """Return each request's objective in ns, ``NONE`` where its class has none; no column where neither has."""
    if of_interactive is None and of_batch is None:
        return None
    own, others = (NONE if ms is None else round(ms * 1_000_000) for ms in (of_interactive, of_batch))
    return np.where(interactive, np.int64(own), np.int64(others))


SLOWEAVE = {
    "chat": Sloweave(110, 1000, 256, 96, output_sigma=0.30),
    "mixed": Sloweave(90, 1000, 256, 100, long_share=0.3),
    "long": Sloweave(60, 5000, 1800, 180),
    "bursty": Sloweave(70, 1500, 256, 100, long_share=0.3, arrivals="two-state", high=105, low=35, dwell=2.0),
}


def _clip(value: Any) -> Any:
    """Read ``none`` or ``LOW-HIGH``."""
    if not isinstance(value, str):
        return value
    return None if value == "none" else tuple(value.split("-"))


@parameters(frozen=True, config=ConfigDict(extra="forbid"))
class PrefillOnly:
    """One of PrefillOnly's workloads (§7.1, Table 1): users whose requests share a profile; one output token.

    The paper says only that users arrive as a Poisson process, and prints as the range of profiles what is one
    standard deviation of its Normal.

    ``arrivals``: each user's requests arrive together (``users``), or each on its own, users shuffled (``requests``),
    or a user's requests follow each other at exponential gaps (``spread``), or everybody's come ``all-at-once``.
    """

    users: Count
    requests_per_user: Count
    profile_mean: Positive
    profile_std: NotNegative
    """Of the Normal; 0 makes profiles uniform within ``clip``."""
    clip: Annotated[tuple[Count, Count] | None, BeforeValidator(_clip)]
    """Bounds of the profile; none, or low-high."""
    post_tokens: Annotated[int, Ge(0)]
    rate: Positive
    """Requests per second."""
    arrivals: Literal["users", "requests", "spread", "all-at-once"] = "users"
    active: Positive | None = None
    """How many users are sending requests at the same time, on average over a long run, with ``arrivals=spread``."""
    burstiness: Positive | None = None
    """Shape of gamma gaps between arrivals; below 1 is burstier than Poisson, which is the default."""
    profile_sigma: Sigma | None = None
    """Makes profiles log-normal, of mean ``profile_mean``, in place of ``profile_std``."""

    def __post_init__(self) -> None:
        if (self.active is not None) != (self.arrivals == "spread"):
            raise ValueError("active goes with arrivals=spread, and arrivals=spread needs it")
        if self.burstiness is not None and self.arrivals == "all-at-once":
            raise ValueError("burstiness needs arrivals that do not come all at once")

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
        if self.arrivals == "all-at-once":
            times = arrivals.all_at_once(total)
        elif self.arrivals == "requests":
            times = self._gaps(total, rate, streams.arrivals)
            user = user[streams.content.permutation(total)]
        else:
            times = np.repeat(self._gaps(users, rate / per_user, streams.arrivals), per_user)
            if self.active is not None:
                pauses = streams.arrivals.exponential(self.active / rate, (users, per_user))
                pauses[:, 0] = 0.0
                seconds = times / arrivals.NS + np.cumsum(pauses, axis=1).ravel()
                order = np.argsort(seconds, kind="stable")
                times, user = arrivals.to_ns(seconds[order]), user[order]
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

    def _gaps(self, n: int, rate: float, rng: np.random.Generator) -> IntArray:
        if self.burstiness is not None:
            return arrivals.gamma(n, rate, self.burstiness, rng)
        return arrivals.poisson(n, rate, rng)

    def _profiles(self, users: int, rng: np.random.Generator) -> IntArray:
        if self.profile_sigma is not None:
            sigma = self.profile_sigma
            draws = self.profile_mean * np.exp(sigma * rng.standard_normal(users) - sigma * sigma / 2)
        elif self.profile_std:
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


def find_workload(text: str) -> Sloweave | PrefillOnly:
    """Return the workload that ``name[:k=v,...]`` describes, like ``mixed:prompt_sigma=0.8``.

    Raises:
        TraceError: if there is none of that name, or a parameter is unknown or out of range.
    """
    name, _, rest = text.partition(":")
    if name not in WORKLOADS:
        raise TraceError.unknown("workload", name, WORKLOADS)
    workload = WORKLOADS[name]
    values = asdict(workload)
    given: dict[str, str] = {}
    for entry in filter(None, (e.strip() for e in rest.split(","))):
        key, equals, value = entry.partition("=")
        if not equals or not value:
            raise TraceError(f"workload {text}: {entry!r} should read name=value")
        if key not in values:
            raise TraceError.unknown(f"workload {name} parameter", key, values)
        if key in given:
            raise TraceError(f"workload {text}: {key} is given twice")
        given[key] = value
    if given.get("arrivals", "two-state") != "two-state":
        # The rates of the two states go with them.
        values = {k: None if k in ("high", "low", "dwell") else v for k, v in values.items()}
    try:
        return type(workload)(**{**values, **given})
    except ValidationError as e:
        first = e.errors()[0]
        where = ".".join(str(p) for p in first["loc"] if isinstance(p, str) and p in values)
        message = first["msg"].removeprefix("Value error, ").lower()
        raise TraceError(f"workload {text}: {where + ': ' if where else ''}{message}") from None


def generate(name: str, seed: int, n: int | None = None, rate: float | None = None) -> Trace:
    """Return a workload: its first ``n`` requests (1,000 for SLOWeave's, all users' for PrefillOnly's by default).

    Args:
        name: see :func:`find_workload`.
        seed: of all streams.
        n: how many requests.
        rate: requests per second in place of the workload's own.

    Raises:
        TraceError: if there is no such workload, or ``n`` or ``rate`` is not positive.
    """
    if rate is not None:
        arrivals.check_rate(rate)
    workload = find_workload(name)
    if n is not None and n < 1:
        raise TraceError(f"a workload has at least 1 request, not {n}")
    if rate is not None and workload.arrivals == "all-at-once":
        raise TraceError(f"workload {name}: requests that arrive all at once have no rate")
    if isinstance(workload, PrefillOnly):
        return workload.generate(n, seed, rate, name)
    # The first requests of the paper's thousand are the same whatever the limit.
    n = PAPER_REQUESTS if n is None else n
    return workload.generate(max(n, PAPER_REQUESTS), seed, rate, name).limit(n)
