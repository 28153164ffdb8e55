"""What a cost model is: how many nanoseconds one step of the engine takes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
from numpy.typing import NDArray


class CostModelError(ValueError):
    """A cost model that cannot be read or used; the message says what is wrong and what would be right."""


class CostModel(ABC):
    """Maps the features of a step to its whole period in integer nanoseconds, host overhead included.

    A step decodes one token for each of ``n_decode`` requests and prefills ``prefill_tokens`` tokens of
    ``n_prefill`` requests. ``decode_context`` and ``decode_context_max`` are the sum and the maximum of the
    tokens that the decoding requests hold in the KV cache before the step; ``prefill_pairs`` is the number
    of query-key pairs of prefill attention, the sum of ``c * context + c * (c + 1) / 2`` over the chunks.

    Only :meth:`step_ns` must be written. It must not fall when a feature grows, prefill tokens together with the pairs
    that they make, else the chunk that :meth:`max_chunk` finds by bisection need not be the largest safe one (SLOWeave
    §3.3, Proposition 1).
    """

    name: str = "cost-model"

    @abstractmethod
    def step_ns(
        self,
        n_decode: int,
        decode_context: int,
        decode_context_max: int,
        n_prefill: int,
        prefill_tokens: int,
        prefill_pairs: int,
    ) -> int:
        """Return the duration of one step in nanoseconds, rounded up; at least 1."""

    def max_chunk(
        self,
        n_decode: int,
        decode_context: int,
        decode_context_max: int,
        context: int,
        limit: int,
        budget_ns: int,
    ) -> int:
        """Return the most tokens of one prefill that fit a step of ``budget_ns`` (SLOWeave §3.2, Algorithm 1).

        ``context`` tokens of that prefill are computed already; at most ``limit`` are left to take. The
        answer is 0 where not even one token fits, decode-only steps that overrun the budget included.
        """
        lo, hi = 0, limit
        while lo < hi:
            mid = (lo + hi + 1) // 2
            pairs = mid * context + mid * (mid + 1) // 2
            if self.step_ns(n_decode, decode_context, decode_context_max, 1, mid, pairs) <= budget_ns:
                lo = mid
            else:
                hi = mid - 1
        return lo

    def decode_run_ns(
        self, n_decode: int, decode_context: int, decode_context_max: int, steps: int
    ) -> NDArray[np.int64]:
        """Return the durations of ``steps`` decode-only steps in a row, shape (steps,).

        Every one of the ``n_decode`` requests gains a token in each step.
        """
        return np.fromiter(
            (
                self.step_ns(n_decode, decode_context + j * n_decode, decode_context_max + j, 0, 0, 0)
                for j in range(steps)
            ),
            dtype=np.int64,
            count=steps,
        )

    def at_quantile(self, quantile: float) -> CostModel:
        """Return the model of the given quantile of the step time, for margins.

        Raises:
            CostModelError: if this model has no such quantile.
        """
        raise CostModelError(
            f"cost model {self.name} has no quantiles of its residuals; give the margin in ms (margin=0.5) "
            "or as a share of the prediction (margin=5%)"
        )

    def stages(self) -> tuple[CostModel, ...]:
        """Return the stages of a pipeline, each with its own cost; one for a model that is not split."""
        return (self,)

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form that ``costmodels.io`` reads back."""
