"""SLOWeave: fill each step up to the earliest next-token deadline."""

from __future__ import annotations

import math
from typing import Annotated

from annotated_types import Ge, Gt

from costmodels.base import CostModel
from costmodels.margin import parse_margin, with_margin
from policies.base import Chunking, PolicyError
from policies.registry import register
from policies.views import BatchView, Grant, RequestView

MS = 1_000_000
FOREVER_NS = 1 << 62


@register
class DeadlineFill(Chunking):
    """The most tokens of one prefill whose step ends before the earliest next-token deadline."""

    name = "deadline-fill"
    source = "SLOWeave §3.1 to §3.4, Algorithm 1"
    needs_predictor = True

    tpot: Annotated[float, Gt(0)] | None = None
    """D in ms: time allowed between two tokens; without it the request's own, else that of --slo."""
    cap: Annotated[int, Ge(1)] = 4096
    """C_max: most prefill tokens per step."""
    margin: str = "0"
    """δ(n, c) on the predicted step: ms (0.5), a share (5%), or a quantile of the cost model (p99)."""
    margins: str = ""
    """δ_i by tenant, ms taken off D_i: interactive:2|batch:0.5."""
    age: Annotated[float, Gt(0)] | None = None
    """Wait in ms after which the oldest prefill may overrun the deadline; never by default."""
    overrun: Annotated[float, Ge(0)] = 0.0
    """Most ms by which an aged prefill may overrun the deadline, recorded as an SLO exception."""

    def __post_init__(self) -> None:
        parse_margin(self.margin)
        self._tpot_ns = _deadline_from_ms(self.tpot)
        self._tenant_margin_ns = _parse_tenant_margins(self.margins)
        self._age_ns = FOREVER_NS if self.age is None else round(self.age * MS)
        self._overrun_ns = round(self.overrun * MS)

    def reset(self, predictor: CostModel | None) -> None:
        if predictor is None:
            raise PolicyError("deadline-fill needs a cost model to predict steps with")
        self._careful = with_margin(predictor, self.margin)

    def deadline_ns(self, request: RequestView) -> int | None:
        d = request.slo_tpot_ns if self._tpot_ns is None else self._tpot_ns
        if d is None or d >= FOREVER_NS:
            return None
        return d - self._tenant_margin_ns.get(request.tenant or "", 0)

    def grant(self, batch: BatchView) -> Grant:
        now, n, context_sum, context_max, deadline, candidates, _ = batch
        request, context, remaining = candidates[0]
        limit = remaining if remaining < self.cap else self.cap
        if deadline is None or not n:
            return Grant(limit)
        slack = deadline - now
        tokens = self._careful.max_chunk(n, context_sum, context_max, context, limit, slack)
        if tokens < limit and now - request.arrival_ns > self._age_ns:
            late = self._careful.max_chunk(n, context_sum, context_max, context, limit, slack + self._overrun_ns)
            if late > tokens:
                return Grant(late, exception=True)
        return Grant(tokens)


def _deadline_from_ms(tpot: float | None) -> int | None:
    if tpot is None:
        return None
    return FOREVER_NS if math.isinf(tpot) else round(tpot * MS)


def _parse_tenant_margins(text: str) -> dict[str, int]:
    margins = {}
    for entry in filter(None, text.split("|")):
        tenant, _, ms = entry.partition(":")
        try:
            margins[tenant.strip()] = round(float(ms) * MS)
        except ValueError:
            raise PolicyError(
                f"deadline-fill: margins={text!r} should read tenant:ms|tenant:ms, like interactive:2|batch:0.5"
            ) from None
    return margins
