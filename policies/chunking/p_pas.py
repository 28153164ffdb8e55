"""P-PAS: two token budgets, the lower one while prefills press on decodes."""

from __future__ import annotations

from typing import Annotated

from annotated_types import Ge

from policies.base import Chunking, PolicyError
from policies.chunking.token_budget import VLLM_MAX_NUM_SEQS
from policies.registry import register
from policies.views import BatchView, Grant


@register
class PPas(Chunking):
    """A shared token budget that falls to ``low`` while something decodes and two prefills or more run or wait."""

    name = "p-pas"
    source = "P-PAS and P-PAS+ (arXiv 2608.15171; ppas-vllm)"
    lookahead = 0

    low: Annotated[int, Ge(1)] = 2048
    """Tokens per step under pressure, decodes and prefills together."""
    high: Annotated[int, Ge(1)] = 16_384
    """Tokens per step otherwise (vLLM: max_num_batched_tokens)."""
    large: Annotated[int, Ge(1)] | None = None
    """P-PAS+: one started prefill with so many tokens left beside two decodes is pressure too (65536 there)."""
    seqs: Annotated[int, Ge(1)] | None = None
    """Most running requests (vLLM: max_num_seqs); by default the engine's limit, else 256 or the low budget."""

    def __post_init__(self) -> None:
        if self.low > self.high:
            raise PolicyError(f"low={self.low} is above high={self.high}, but pressure should lower the budget")

    def grant(self, batch: BatchView) -> Grant:
        started = len(batch.candidates)
        pressed = batch.n_decode > 0 and started + batch.n_waiting >= 2
        if self.large is not None and started == 1 and batch.n_decode >= 2:
            pressed = pressed or batch.candidates[0].remaining >= self.large
        return Grant((self.low if pressed else self.high) - batch.n_decode, None)

    def step_limit(self, max_num_seqs: int, max_model_len: int) -> int:
        return self.high

    def seat_limit(self, max_num_seqs: int | None) -> int:
        limits = [n for n in (self.seqs, max_num_seqs) if n is not None]
        seats = min(limits) if limits else min(VLLM_MAX_NUM_SEQS, self.low)
        if seats > self.low:
            raise PolicyError(
                f"p-pas: low={self.low} is below the {seats} requests that may run at once, so a decode could miss its "
                f"step; raise low or set seqs={self.low} or less"
            )
        return seats
