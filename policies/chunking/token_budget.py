"""One token budget shared by decodes and prefills."""

from __future__ import annotations

from typing import Annotated

from annotated_types import Ge

from policies.base import Chunking, PolicyError
from policies.registry import register
from policies.views import BatchView, Grant

VLLM_MAX_NUM_SEQS = 256


@register
class TokenBudget(Chunking):
    """A budget that each decode takes one token of, and as many prefills as fit the rest."""

    name = "token-budget"
    source = "Sarathi-Serve (OSDI'24) §4.2; vLLM V1's max_num_batched_tokens"
    lookahead = 0

    budget: Annotated[int, Ge(1)] = 2048
    """Tokens per step, decodes and prefills together (vLLM: max_num_batched_tokens)."""
    seqs: Annotated[int, Ge(1)] | None = None
    """Most running requests (vLLM: max_num_seqs); by default the engine's limit, else 256 or the budget."""
    threshold: Annotated[int, Ge(1)] | None = None
    """Most prefill tokens of one request per step; none by default. vLLM's long_prefill_token_threshold, but also for a
    request that is alone, for which vLLM 0.32 lifts it."""

    def grant(self, batch: BatchView) -> Grant:
        return Grant(self.budget - batch.n_decode, None, self.threshold)

    def step_limit(self, max_num_seqs: int, max_model_len: int) -> int:
        return self.budget

    def seat_limit(self, max_num_seqs: int | None) -> int:
        limits = [n for n in (self.seqs, max_num_seqs) if n is not None]
        seats = min(limits) if limits else min(VLLM_MAX_NUM_SEQS, self.budget)
        if seats > self.budget:
            raise PolicyError(
                f"token-budget: budget={self.budget} is below the {seats} requests that may run at once, so a "
                f"decode could miss its step; raise the budget or set seqs={self.budget} or less"
            )
        return seats
