"""What an engine is held to beside its policy, and what it cannot be held to together."""

from __future__ import annotations

from dataclasses import dataclass

from policies.base import PolicyError
from sim.kvcache import KVCache


@dataclass(frozen=True)
class Limits:
    """Bounds of one engine; ``None`` means no bound."""

    max_num_seqs: int | None = None
    """Most requests that run at once, decoding or in the middle of their prefill."""
    max_model_len: int | None = None
    """Most tokens of one request, prompt and output; longer ones are rejected."""
    horizon_ns: int | None = None
    """No step is decided at or after this time; what has not finished by then is unfinished."""
    pipeline_depth: int = 1
    """Steps that may be in flight: with 1 a step is decided when the last has ended; with 2, vLLM's asynchronous
    scheduling, when the last has begun, so that its tokens are counted but not yet there."""

    def __post_init__(self) -> None:
        if self.pipeline_depth not in (1, 2):
            raise PolicyError(f"pipeline_depth is {self.pipeline_depth}, but an engine has 1 or 2 steps in flight")
        for name in ("max_num_seqs", "max_model_len"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise PolicyError(f"{name} is {value}, but an engine needs at least 1")

    def check(self, cache: KVCache, stages: int) -> None:
        """Refuse an engine of this memory and so many pipeline stages that cannot be held to these limits.

        Raises:
            PolicyError: if steps are to be decided ahead where that cannot be.
        """
        if self.pipeline_depth == 1:
            return
        if stages > 1:
            raise PolicyError("pipeline_depth 2 goes with a cost model of one pipeline stage, but this one has several")
        if cache.tracks and not cache.paged:
            raise PolicyError("pipeline_depth 2 needs memory in blocks, but this one works for one request at a time")
