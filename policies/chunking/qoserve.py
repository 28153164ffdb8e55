"""QoServe's dynamic chunking: the largest of a few step sizes that ends in time, by deadlines that add up."""

from __future__ import annotations

from collections.abc import Collection
from itertools import pairwise
from typing import Annotated

from annotated_types import Gt

from costmodels.base import CostModel
from costmodels.margin import parse_margin, with_margin
from policies.base import Chunking, PolicyError
from policies.registry import register
from policies.units import FOREVER_NS, ns_from_ms
from policies.views import BatchView, Grant, RequestView, ServiceClass


@register
class QoServe(Chunking):
    """The largest step of a grid, decodes included, that is predicted to end in time; as many prefills as fit.

    The smallest step is taken even if it will be late. A step is priced as if all its prefill tokens were the first
    candidate's. Without QoServe's smaller grid for scarce memory, which no view shows.
    """

    name = "qoserve"
    source = "QoServe (arXiv 2503.22562, ASPLOS'26), dynamic chunking; its grid and its factor of 1.2"
    needs_predictor = True
    cumulative = True

    tpot: Annotated[float, Gt(0)] | None = None
    """Time allowed per token in ms; without it the request's own objective, else that of --slo."""
    grid: str = "128|256|512|768|1024|1280|1536|1792|2048|2552"
    """Tokens that a step may have, decodes and prefills together, rising."""
    margin: str = "20%"
    """On the predicted step, as in deadline-fill."""
    per_gap: bool = False
    """Let every token be due after the one before it, as in SLOWeave, and nothing add up."""

    def __post_init__(self) -> None:
        parse_margin(self.margin)
        self._grid = _parse_grid(self.grid)
        self._tpot_ns = None if self.tpot is None else ns_from_ms(self.tpot)
        self.cumulative = not self.per_gap  # type: ignore[misc]

    def reset(self, predictor: CostModel | None) -> None:
        if predictor is None:
            raise PolicyError("qoserve needs a cost model to predict steps with")
        self._step_ns = with_margin(predictor, self.margin).step_ns

    def check_objectives(self, classes: Collection[ServiceClass], predictor: CostModel | None) -> None:
        if self.tpot is None and classes and all(c.slo_tpot_ns is None for c in classes):
            raise PolicyError(
                "qoserve has no TPOT objective to end steps by: give --slo tpot_p99:MS, or qoserve:tpot=MS"
            )

    def deadline_ns(self, request: RequestView) -> int | None:
        allowed = request.slo_tpot_ns if self._tpot_ns is None else self._tpot_ns
        return None if allowed is None or allowed >= FOREVER_NS else allowed

    def step_limit(self, max_num_seqs: int, max_model_len: int) -> int:
        return max(max_num_seqs, self._grid[-1])

    def grant(self, batch: BatchView) -> Grant:
        grid, n, deadline = self._grid, batch.n_decode, batch.earliest_deadline_ns
        lo, hi = 0, len(grid) - 1
        if n and deadline is not None:
            slack, context = deadline - batch.now_ns, batch.candidates[0].context
            while lo < hi:
                mid = (lo + hi + 1) // 2
                c = max(0, grid[mid] - n)
                features = int(c > 0), c, c * context + c * (c + 1) // 2
                if self._step_ns(n, batch.decode_context, batch.decode_context_max, *features) <= slack:
                    lo = mid
                else:
                    hi = mid - 1
            hi = lo
        return Grant(max(0, grid[hi] - n), None)


def _parse_grid(text: str) -> list[int]:
    try:
        grid = [int(entry) for entry in text.split("|")]
    except ValueError:
        grid = []
    if not grid or grid[0] < 1 or any(a >= b for a, b in pairwise(grid)):
        raise PolicyError(f"grid={text!r} should be rising numbers of tokens, like 128|256|512")
    return grid
