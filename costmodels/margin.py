"""Safety margins: a margin turns a cost model into a more careful one, T + δ (SLOWeave §3.3)."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from costmodels.base import CostModel, CostModelError


@dataclass(frozen=True)
class WithMargin(CostModel):
    """``T + constant + ceil(relative * T)``, exact in integers.

    Raises:
        CostModelError: if a margin is negative, which would be no margin.
    """

    model: CostModel
    constant_ns: int = 0
    relative: Fraction = Fraction(0)

    def __post_init__(self) -> None:
        if self.constant_ns < 0 or self.relative < 0:
            raise CostModelError(
                f"the margin on cost model {self.model.name} is {self.constant_ns} ns + {self.relative}; "
                "neither may be negative"
            )

    @property
    def name(self) -> str:  # type: ignore[override]
        """The wrapped model's name; a margin does not make it another device."""
        return self.model.name

    def step_ns(
        self,
        n_decode: int,
        decode_context: int,
        decode_context_max: int,
        n_prefill: int,
        prefill_tokens: int,
        prefill_pairs: int,
    ) -> int:
        t = self.model.step_ns(n_decode, decode_context, decode_context_max, n_prefill, prefill_tokens, prefill_pairs)
        return t + self.constant_ns - (-t * self.relative.numerator // self.relative.denominator)

    def max_chunk(
        self,
        n_decode: int,
        decode_context: int,
        decode_context_max: int,
        context: int,
        limit: int,
        budget_ns: int,
    ) -> int:
        # t + ceil(r t) <= b and t <= b / (1 + r) are the same for integers t and b.
        left = budget_ns - self.constant_ns
        if self.relative:
            left = left * self.relative.denominator // (self.relative.denominator + self.relative.numerator)
        return self.model.max_chunk(n_decode, decode_context, decode_context_max, context, limit, left)

    def at_quantile(self, quantile: float) -> CostModel:
        return replace(self, model=self.model.at_quantile(quantile))

    def to_dict(self) -> dict[str, Any]:
        return {
            "kind": "with-margin",
            "model": self.model.to_dict(),
            "constant_ns": self.constant_ns,
            "relative": str(self.relative),
        }


def parse_margin(text: str) -> tuple[str, Fraction]:
    """Read ``"0.5"`` (ms), ``"5%"`` (of the prediction), ``"p99"`` or ``"c99"``.

    The last two are the cost model's own: the quantile of its residuals, by batch and chunk, and the split-conformal
    margin that covers so many per cent of the steps.

    Returns:
        The kind (``constant``, ``relative``, ``quantile`` or ``coverage``) and its value (ms, share, quantile, share).

    Raises:
        CostModelError: if the text is none of the four.
    """
    match = re.fullmatch(r"\s*([pc]?)([0-9]{1,15}(?:\.[0-9]{1,15})?)(%?)\s*", text)
    if match is None or (match[1] and match[3]):
        raise CostModelError(
            f"margin {text!r} is not one of: milliseconds (0.5), a share of the prediction (5%), "
            "a quantile of the cost model (p99), or its coverage (c99)"
        )
    value = Fraction(match[2])
    if match[1]:
        if not 0 < value < 100:
            what = "quantile" if match[1] == "p" else "coverage"
            raise CostModelError(f"margin {text!r}: a {what} lies between {match[1]}0 and {match[1]}100")
        return ("quantile" if match[1] == "p" else "coverage"), value / 100
    return ("relative", value / 100) if match[3] else ("constant", value)


def with_margin(model: CostModel, margin: str) -> CostModel:
    """Return ``model`` made more careful by ``margin``; see :func:`parse_margin` for its forms."""
    kind, value = parse_margin(margin)
    if kind == "quantile":
        return model.at_quantile(float(value))
    if kind == "coverage":
        return _at_coverage(model, float(value))
    if not value:
        return model
    if kind == "relative":
        return WithMargin(model, relative=value)
    return WithMargin(model, constant_ns=-(-value.numerator * 1_000_000 // value.denominator))


def _at_coverage(model: CostModel, coverage: float) -> CostModel:
    if isinstance(model, WithMargin):
        return replace(model, model=_at_coverage(model.model, coverage))
    covering = getattr(model, "at_coverage", None)
    if covering is None:
        raise CostModelError(
            f"cost model {model.name} has no calibrated coverage; give the margin in ms (margin=0.5) or as a share of "
            "the prediction (margin=5%)"
        )
    covered: CostModel = covering(coverage)
    return covered
