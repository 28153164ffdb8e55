"""Fair queueing between tenants by weight."""

from __future__ import annotations

import math
from fractions import Fraction

from costmodels.base import CostModel
from policies.base import PolicyError, QueueObserver
from policies.registry import register
from policies.views import RequestView


@register
class Fair(QueueObserver):
    """Start-time fair queueing: tenants that wait share prefill tokens by weight, each tenant's in order of arrival.

    A request's tag is where its tenant's last one ended on the virtual clock, or that clock itself if it is ahead; the
    clock shows the tag of the last that was taken. So a tenant that was away saves nothing up. Tags are given once, at
    arrival, and are the keys of a heap.
    """

    name = "fair"
    source = "start-time fair queueing (Goyal et al., SIGCOMM 1996), by tokens as in VTC (OSDI'24)"
    key_at_arrival = True

    weights: str = ""
    """Shares by tenant, interactive:3|batch:1; all others have 1."""

    def __post_init__(self) -> None:
        weights = _parse_weights(self.weights)
        # Work over weight in whole units for every tenant.
        unit = math.lcm(*(w.numerator for w in weights.values()))
        self._per_token = {t: unit // w.numerator * w.denominator for t, w in weights.items()}
        self._per_token_of_others = unit
        self._forget()

    def _forget(self) -> None:
        self._clock = 0
        self._ends: dict[str | None, int] = {}
        self._tags: dict[int, int] = {}

    def reset(self, predictor: CostModel | None) -> None:
        self._forget()

    def _tag(self, request: RequestView) -> int:
        return max(self._clock, self._ends.get(request.tenant, 0))

    def entered(self, request: RequestView) -> None:
        tag = self._tag(request)
        per_token = self._per_token.get(request.tenant or "", self._per_token_of_others)
        self._tags[request.number] = tag
        self._ends[request.tenant] = tag + request.uncached_tokens * per_token

    def taken(self, request: RequestView) -> None:
        self._clock = self._tags.pop(request.number)

    def withdrawn(self, request: RequestView) -> None:
        del self._tags[request.number]

    def key(self, request: RequestView) -> int:
        tag = self._tags.get(request.number)
        return self._tag(request) if tag is None else tag


def _parse_weights(text: str) -> dict[str, Fraction]:
    weights: dict[str, Fraction] = {}
    for entry in filter(None, text.split("|")):
        tenant, _, number = (t.strip() for t in entry.rpartition(":"))
        try:
            sound = 0 < float(number) < math.inf
        except ValueError:
            sound = False
        if not tenant or not sound:
            raise PolicyError(f"weights={text!r} should read tenant:weight|tenant:weight, like interactive:3|batch:0.5")
        if tenant in weights:
            raise PolicyError(f"weights={text!r} gives tenant {tenant} twice")
        weights[tenant] = Fraction(number)
    return weights
