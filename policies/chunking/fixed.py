"""A fixed chunk of one prefill."""

from __future__ import annotations

from typing import Annotated

from annotated_types import Ge

from policies.base import Chunking
from policies.registry import register
from policies.views import BatchView, Grant


@register
class Fixed(Chunking):
    """At most a fixed number of tokens of one prefill per step, whatever decodes beside it."""

    name = "fixed"
    source = "SLOWeave §4.2 (Fixed-64, Fixed-256, Fixed-1024)"

    chunk: Annotated[int, Ge(1)] = 512
    """Most prefill tokens per step."""

    def grant(self, batch: BatchView) -> Grant:
        return Grant(self.chunk)

    def step_limit(self, max_num_seqs: int, max_model_len: int) -> int:
        return max_num_seqs + min(self.chunk, max_model_len)
