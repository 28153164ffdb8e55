"""Admissions: which arrivals are turned away."""

from __future__ import annotations

from collections.abc import Collection
from fractions import Fraction
from typing import Annotated, Literal

from annotated_types import Ge, Gt
from pydantic import FiniteFloat

from costmodels.base import CostModel
from policies.base import ACCEPT, Admission, Decision, PolicyError
from policies.registry import register
from policies.units import FOREVER_NS, MS, ns_from_ms
from policies.views import LoadView, RequestView, ServiceClass


@register
class DecodeSaturation(Admission):
    """Turns an arrival away when decoding alone would take a given share of the TPOT objective."""

    name = "decode-saturation"
    source = "SLOWeave §3.4 (admission controller; the paper gives no threshold)"
    needs_predictor = True

    fraction: Annotated[FiniteFloat, Gt(0)] = 0.9
    """Share of D that the predicted decode-only step must stay below."""
    tpot: Annotated[float, Gt(0)] | None = None
    """D in ms; without it the request's own, else that of --slo."""
    action: Literal["reject", "redirect"] = "reject"
    """What becomes of the arrival: turned away, or sent to another replica."""

    def __post_init__(self) -> None:
        self._tpot_ns = None if self.tpot is None else ns_from_ms(self.tpot)
        # As it was typed: 0.9 of 25 ms is 22.5 ms to the nanosecond, which a float need not say.
        self._share = Fraction(str(self.fraction))

    def reset(self, predictor: CostModel | None) -> None:
        if predictor is None:
            raise PolicyError("decode-saturation needs a cost model to predict decode-only steps with")
        self._predictor = predictor

    def check_objectives(self, classes: Collection[ServiceClass], predictor: CostModel | None) -> None:
        ds = [c.slo_tpot_ns if self._tpot_ns is None else self._tpot_ns for c in classes]
        if ds and all(d is None for d in ds):
            raise PolicyError(
                "decode-saturation has no TPOT objective D to protect: give --slo tpot_p99:MS, or "
                "decode-saturation:tpot=MS"
            )
        if predictor is None or not ds or None in ds:
            return
        least = predictor.step_ns(1, 1, 1, 0, 0, 0)
        largest = max(d for d in ds if d is not None)
        if self._reached(least, largest):
            raise PolicyError(
                f"decode-saturation would turn every request away: a step with one decode takes {least / MS:g} ms by "
                f"cost model {predictor.name}, and {self.fraction:g} of D = {largest / MS:g} ms is allowed"
            )

    def admit(self, request: RequestView, load: LoadView) -> Decision:
        d = request.slo_tpot_ns if self._tpot_ns is None else self._tpot_ns
        if d is None or d >= FOREVER_NS:
            return ACCEPT
        # The arrival itself and every started prefill will decode beside those that do now. How much context started
        # prefills will hold is not in the view, so a cost model that looks at it predicts a little too little.
        n = load.n_decode + load.n_prefilling + 1
        predicted = self._predictor.step_ns(
            n,
            load.decode_context + request.prompt_tokens,
            max(load.decode_context_max, request.prompt_tokens),
            0,
            0,
            0,
        )
        if not self._reached(predicted, d):
            return ACCEPT
        return Decision(
            self.action,
            f"decode-saturation: a decode-only step of {n} requests would take {predicted / MS:.3f} ms, and less than "
            f"{self.fraction:g} of {d / MS:g} ms is allowed",
        )

    def _reached(self, predicted_ns: int, d_ns: int) -> bool:
        return predicted_ns * self._share.denominator >= d_ns * self._share.numerator


@register
class QueueLimit(Admission):
    """Turns an arrival away when too many requests wait."""

    name = "queue-limit"
    source = "common practice"

    limit: Annotated[int, Ge(1)] = 100
    """Most requests that may wait."""
    action: Literal["reject", "redirect"] = "reject"
    """What becomes of the arrival: turned away, or sent to another replica."""

    def admit(self, request: RequestView, load: LoadView) -> Decision:
        if load.n_waiting < self.limit:
            return ACCEPT
        return Decision(self.action, f"queue-limit: {load.n_waiting} requests wait, {self.limit} may")
