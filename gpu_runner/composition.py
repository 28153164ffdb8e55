"""What a step of vLLM is made of: the requests as a policy sees them before it, and those that were scheduled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from gpu_runner import hooks
from gpu_runner.allotment import Share
from gpu_runner.known import known
from gpu_runner.recorder import Step

FAR = 1 << 62
"""A time that never comes."""


class CommonLimit:
    """The time between two tokens that requests allow, as long as all that have come allow the same."""

    def __init__(self) -> None:
        self.ns: int | None = FAR
        """``FAR`` for no limit; ``None`` once they differ."""
        self._first = True

    def add(self, allowed_ns: int | None) -> None:
        """Take what a request allows, ``None`` for no limit."""
        limit = FAR if allowed_ns is None else allowed_ns
        self.ns = limit if self._first or self.ns == limit else None
        self._first = False


class Running(NamedTuple):
    """The running requests when a step is decided."""

    n_decode: int
    decode_context: int
    decode_context_max: int
    allowed_ns: int
    """The least time between two tokens that a decoding request allows; ``FAR`` where none has a limit."""
    contexts: list[int]
    """Of the decoding requests, one by one."""
    started: list[Any]

    @classmethod
    def of(cls, requests: Sequence[Any], *, deep: bool, limit: int | None) -> Running:
        """Sort vLLM's running requests.

        Args:
            requests: in vLLM's order.
            deep: whether some may get their last token from a step in flight.
            limit: see :attr:`CommonLimit.ns`; where that is ``None`` each request has to be looked at.
        """
        if deep:
            decoding = [r for r in requests if not r.is_prefill_chunk and not hooks.is_ending(r)]
            contexts = [r.num_computed_tokens for r in decoding]
        else:
            # One pass, for there may be hundreds.
            contexts = [r.num_computed_tokens for r in requests if not r.is_prefill_chunk]
        started = []
        if len(contexts) < len(requests):
            started = [r for r in requests if r.is_prefill_chunk]
        if limit is None:
            mine = [r for r in requests if not r.is_prefill_chunk and not (deep and hooks.is_ending(r))]
            limits = [known(r).allowed_ns for r in mine]
            limit = min((one for one in limits if one is not None), default=FAR)
        return cls(len(contexts), sum(contexts), max(contexts, default=0), limit, contexts, started)

    def crossing(self, block_size: int) -> int:
        """Return how many decoding requests need a block in this step."""
        return sum(not tokens % block_size for tokens in self.contexts)


class Chunk(NamedTuple):
    """What one request prefills in a step."""

    request: Any
    before: int
    tokens: int
    last: bool
    """Whether it ends its prefill, and gets a token."""


def prefills_of(scheduled: Mapping[str, int], requests: Mapping[str, Any]) -> list[Share]:
    """Return what prefills in a step that vLLM has decided alone."""
    shares = []
    for request_id, tokens in scheduled.items():
        request = requests[request_id]
        before = request.num_computed_tokens - tokens
        if tokens > 1 or before < request.num_prompt_tokens:
            shares.append(Share(request, before, tokens))
    return shares


def compose(step: Step, running: Running, scheduled: Mapping[str, int], shares: Sequence[Share]) -> list[Chunk]:
    """Enter into a step what decodes and prefills in it, and return what prefills.

    Args:
        step: to be completed.
        running: before it was decided; all that decoded still do.
        scheduled: tokens by request.
        shares: what was meant to prefill; some may have found no blocks.
    """
    step.n_decode, step.decode_context, step.decode_context_max = running[:3]
    return _add_prefills(step, scheduled, shares)


def compose_anew(
    step: Step, scheduled: Mapping[str, int], shares: Sequence[Share], requests: Mapping[str, Any]
) -> list[Chunk]:
    """Do the same where some that decoded were preempted, or vLLM has decided alone."""
    prefills = {share.request.request_id for share in shares}
    step.n_decode = step.decode_context = step.decode_context_max = 0
    for request_id, tokens in scheduled.items():
        if request_id not in prefills:
            _add_decode(step, requests[request_id].num_computed_tokens - tokens)
    return _add_prefills(step, scheduled, shares)


def _add_decode(step: Step, before: int) -> None:
    step.n_decode += 1
    step.decode_context += before
    step.decode_context_max = max(step.decode_context_max, before)


def _add_prefills(step: Step, scheduled: Mapping[str, int], shares: Sequence[Share]) -> list[Chunk]:
    chunks = []
    for request, before, tokens in shares:
        if request.request_id not in scheduled:
            continue
        # All but its newest output was still cached: what is left is a decode.
        if tokens == 1 and before >= request.num_prompt_tokens and before + 1 == request.num_tokens:
            _add_decode(step, before)
        else:
            step.n_prefill += 1
            step.prefill_tokens += tokens
            step.prefill_pairs += tokens * before + (tokens * (tokens + 1) >> 1)
        last = before + tokens == request.num_tokens
        if last and known(request).first_token_ns < 0:
            step.first_tokens.append(known(request))
        chunks.append(Chunk(request, before, tokens, last))
    return chunks
