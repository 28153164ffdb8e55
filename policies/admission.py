"""Admissions: which arrivals are turned away."""

from __future__ import annotations

from typing import Annotated, Literal

from annotated_types import Ge, Gt

from costmodels.base import CostModel
from policies.base import ACCEPT, Admission, Decision, PolicyError
from policies.registry import register
from policies.views import LoadView, RequestView

MS = 1_000_000


@register
class DecodeSaturation(Admission):
    """Turns an arrival away when decoding alone would take a given share of the TPOT objective."""

    name = "decode-saturation"
    source = "SLOWeave §3.4 (admission controller; the paper gives no threshold)"
    needs_predictor = True

    fraction: Annotated[float, Gt(0)] = 0.9
    """Share of D that the predicted decode-only step may reach."""
    tpot: Annotated[float, Gt(0)] | None = None
    """D in ms; without it the request's own, else that of --slo."""
    action: Literal["reject", "redirect"] = "reject"

    def reset(self, predictor: CostModel | None) -> None:
        if predictor is None:
            raise PolicyError("decode-saturation needs a cost model to predict decode-only steps with")
        self._predictor = predictor

    def admit(self, request: RequestView, load: LoadView) -> Decision:
        d = request.slo_tpot_ns if self.tpot is None else round(self.tpot * MS)
        if d is None:
            return ACCEPT
        # The arrival itself and every started prefill will decode beside those that do now.
        n = load.n_decode + load.n_prefilling + 1
        predicted = self._predictor.step_ns(
            n,
            load.decode_context + request.prompt_tokens,
            max(load.decode_context_max, request.prompt_tokens),
            0,
            0,
            0,
        )
        if predicted < self.fraction * d:
            return ACCEPT
        return Decision(
            self.action,
            f"decode-saturation: a decode-only step of {n} requests would take {predicted / MS:.3f} ms, "
            f"{self.fraction:g} of {d / MS:g} ms is allowed",
        )


@register
class QueueLimit(Admission):
    """Turns an arrival away when too many requests wait."""

    name = "queue-limit"
    source = "common practice"

    limit: Annotated[int, Ge(0)] = 100
    """Most requests that may wait."""
    action: Literal["reject", "redirect"] = "reject"

    def admit(self, request: RequestView, load: LoadView) -> Decision:
        if load.n_waiting < self.limit:
            return ACCEPT
        return Decision(self.action, f"queue-limit: {load.n_waiting} requests wait, {self.limit} may")
