"""SLOWeave: fill each step up to the earliest next-token deadline."""

from __future__ import annotations

import math
from collections.abc import Collection
from functools import partial
from typing import Annotated

from annotated_types import Ge, Gt
from pydantic import FiniteFloat

from costmodels.base import CostModel
from costmodels.margin import parse_margin, with_margin
from policies.base import Chunking, PolicyError
from policies.registry import register
from policies.units import FOREVER_NS, MS, ns_from_ms
from policies.views import BatchView, Grant, RequestView, ServiceClass

_grant = partial(tuple.__new__, Grant)  # a step's grant, made without the detour through the class's constructor


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
    """δ(n, c) on the predicted step: ms (0.5), a share (5%), a quantile of the cost model (p99), its coverage (c99)."""
    margins: str = ""
    """δ_i by tenant, ms taken off D_i: interactive:2|batch:0.5."""
    age: Annotated[float, Gt(0)] | None = None
    """Wait in ms after which a prefill may overrun the deadline; never by default."""
    overrun: Annotated[FiniteFloat, Ge(0)] | None = None
    """Most ms by which an aged prefill may overrun the deadline; each time is recorded as an SLO exception."""

    def __post_init__(self) -> None:
        parse_margin(self.margin)
        if (self.age is None) != (self.overrun is None):
            raise PolicyError("age and overrun go together: after a wait of age ms, a step may end overrun ms late")
        self._tpot_ns = None if self.tpot is None else ns_from_ms(self.tpot)
        self._tenant_margin_ns = _parse_tenant_margins(self.margins)
        self._age_ns = FOREVER_NS if self.age is None else ns_from_ms(self.age)
        self._overrun_ns = 0 if self.overrun is None else ns_from_ms(self.overrun)

    def reset(self, predictor: CostModel | None) -> None:
        if predictor is None:
            raise PolicyError("deadline-fill needs a cost model to predict steps with")
        self._max_chunk = with_margin(predictor, self.margin).max_chunk

    def check_objectives(self, classes: Collection[ServiceClass], predictor: CostModel | None) -> None:
        if self.tpot is None and classes and all(c.slo_tpot_ns is None for c in classes):
            raise PolicyError(
                "deadline-fill has no TPOT objective D to fill steps up to: give --slo tpot_p99:MS, or "
                "deadline-fill:tpot=MS"
            )
        tenants = {c.tenant for c in classes if c.tenant is not None}
        if classes and self._tenant_margin_ns and not tenants & self._tenant_margin_ns.keys():
            raise PolicyError(
                f"deadline-fill: no request has a tenant that margins={self.margins!r} names "
                f"(tenants: {', '.join(sorted(tenants)) or 'none'})"
            )
        if predictor is None:
            return
        careful = with_margin(predictor, self.margin)
        least = careful.step_ns(1, 1, 1, 0, 0, 0)
        for c in classes:
            left = self._left_ns(c.slo_tpot_ns, c.tenant)
            if left is not None and left < least:
                what = f"D less the margin of tenant {c.tenant}" if c.tenant in self._tenant_margin_ns else "D"
                raise PolicyError(
                    f"deadline-fill: {what} is {left / MS:g} ms, smaller than any step can be: with one decode cost "
                    f"model {predictor.name} predicts {least / MS:g} ms"
                    + ("" if careful is predictor else " with margin")
                )

    def deadline_ns(self, request: RequestView) -> int | None:
        left = request.slo_tpot_ns if self._tpot_ns is None else self._tpot_ns
        if self._tenant_margin_ns:
            left = self._left_ns(request.slo_tpot_ns, request.tenant)
        if left is None or left >= FOREVER_NS:
            return None
        # A margin as large as D leaves no time: every deadline has passed as soon as it is set.
        return left if left > 0 else 1

    def _left_ns(self, slo_tpot_ns: int | None, tenant: str | None) -> int | None:
        d = slo_tpot_ns if self._tpot_ns is None else self._tpot_ns
        if d is None or d >= FOREVER_NS:
            return None
        return d if tenant is None else d - self._tenant_margin_ns.get(tenant, 0)

    def step_limit(self, max_num_seqs: int, max_model_len: int) -> int:
        return max_num_seqs + min(self.cap, max_model_len)

    def grant(self, batch: BatchView) -> Grant:
        now, n, context_sum, context_max, deadline, candidates, _ = batch
        request, context, remaining = candidates[0]
        limit = remaining if remaining < self.cap else self.cap
        if deadline is None or not n:
            return Grant(limit)
        slack = deadline - now
        tokens = self._max_chunk(n, context_sum, context_max, context, limit, slack)
        if tokens < limit and self._age_ns < now - request.arrival_ns:
            late = self._max_chunk(n, context_sum, context_max, context, limit, slack + self._overrun_ns)
            if late > tokens:
                return Grant(late, exception=True)
        return _grant((tokens, 1, None, False))


def _parse_tenant_margins(text: str) -> dict[str, int]:
    margins: dict[str, int] = {}
    for entry in filter(None, text.split("|")):
        tenant, _, number = (t.strip() for t in entry.rpartition(":"))
        try:
            ms = float(number)
        except ValueError:
            ms = math.nan
        if not tenant or not math.isfinite(ms) or ms < 0:
            raise PolicyError(f"margins={text!r} should read tenant:ms|tenant:ms, like interactive:2|batch:0.5")
        if tenant in margins:
            raise PolicyError(f"margins={text!r} gives tenant {tenant} twice")
        margins[tenant] = ns_from_ms(ms)
    return margins
