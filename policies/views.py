"""What a policy may see: frozen views that both hosts, the simulator and vLLM, can supply.

A view never carries a request's output length: a policy that knew it would be an oracle.
"""

from __future__ import annotations

from typing import NamedTuple


class RequestView(NamedTuple):
    """One request as it is known to a scheduler. Times in nanoseconds on the host's clock."""

    number: int
    """Position in arrival order; breaks ties, and names the request to the host."""
    arrival_ns: int
    prompt_tokens: int
    cached_tokens: int = 0
    """Leading tokens that the prefix cache would serve now."""
    generated_tokens: int = 0
    """Outputs so far; above 0 only for a preempted request."""
    slo_ttft_ns: int | None = None
    slo_tpot_ns: int | None = None
    tenant: str | None = None
    session: str | None = None

    @property
    def uncached_tokens(self) -> int:
        """Prefill work: prompt and earlier outputs less what the prefix cache serves."""
        return self.prompt_tokens + self.generated_tokens - self.cached_tokens


class ServiceClass(NamedTuple):
    """What objectives depend on: a run has few of these, however many requests. Times in nanoseconds."""

    slo_ttft_ns: int | None
    slo_tpot_ns: int | None
    """D: the request's own, else that of ``--slo``."""
    tenant: str | None


class Candidate(NamedTuple):
    """A prefill that could run in this step."""

    request: RequestView
    context: int
    """Tokens that are in the KV cache before this step."""
    remaining: int
    """Tokens still to prefill, at least 1."""


class BatchView(NamedTuple):
    """The engine at the moment a step is decided."""

    now_ns: int
    n_decode: int
    decode_context: int
    """Sum of the decoding requests' tokens in the KV cache."""
    decode_context_max: int
    earliest_deadline_ns: int | None
    """The least of "last token + ``Chunking.deadline_ns``" over decoding requests, or of what adds up where the
    chunking is ``cumulative``; ``None``: no deadline."""
    candidates: tuple[Candidate, ...]
    """Prefills in the order in which tokens would be handed out: all that have started, then, up to
    ``Chunking.lookahead`` in all, those that wait, as far as seats are free."""
    n_waiting: int
    """Requests that have not started."""


class LoadView(NamedTuple):
    """The engine as an admission sees it when a request arrives."""

    now_ns: int
    n_decode: int
    decode_context: int
    decode_context_max: int
    n_prefilling: int
    """Started prefills."""
    n_waiting: int
    """Requests that have not started."""


class Grant(NamedTuple):
    """A chunking's answer: prefill tokens for one step.

    The host hands the tokens out in the order of the candidates, each request filled before the next.
    """

    tokens: int
    prefills: int | None = 1
    """Most requests that may prefill in this step; ``None``: no limit."""
    cap: int | None = None
    """Most tokens for any one request; ``None``: no limit."""
    exception: bool = False
    """The grant overruns a deadline on purpose (SLOWeave §3.4); the host records it as an SLO exception."""


class StepRecord(NamedTuple):
    """What happened in one step; hosts give it to ``observe`` after every step, in order."""

    decided_ns: int
    start_ns: int
    duration_ns: int
    n_decode: int
    decode_context: int
    decode_context_max: int
    n_prefill: int
    prefill_tokens: int
    prefill_pairs: int
