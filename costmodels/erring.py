"""A cost model that is wrong on purpose: biased, noisy, in tiles, and now and then much too short."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import lru_cache
from math import exp
from statistics import NormalDist
from typing import Any

from costmodels.base import CostModel, CostModelError
from costmodels.margin import with_margin

ERRING = "erring:"
"""How the name of such a model begins."""

PARAMETERS = ("of", "bias", "noise", "overruns", "tile", "seed")

PPM = 10**6

LEVELS = 1 << 14
"""Equally likely sizes of noise, up to four standard deviations."""

RANGES = {
    "bias_ppm": (1 - PPM, 9 * PPM),
    "noise_ppm": (0, PPM),
    "overruns_ppm": (0, PPM),
    "longer_ppm": (0, 9 * PPM),
    "tile": (1, 1 << 16),
    "seed": (0, (1 << 63) - 1),
}

_SHARE = re.compile(r"([+-]?[0-9]{1,9}(?:\.[0-9]{1,9})?)%")
_MIX = 0x9E3779B97F4A7C15
_FULL = (1 << 64) - 1


@dataclass(frozen=True)
class ErringCost(CostModel):
    """Another model with prefill tokens rounded up to ``tile``, times 1 + bias, times noise, now and then longer still.

    Noise is log-normal of median 1, ``noise_ppm`` the standard deviation of its logarithm; ``overruns_ppm`` of the
    steps take ``longer_ppm`` more on top. Both come from a hash of the step's features and ``seed``: equal steps take
    equal time, on every machine, and no two steps of a run are equal for long, because contexts grow. With either, a
    step with more to do can be shorter, and the chunk that :meth:`max_chunk` finds fits but need not be the largest
    that does. What is charged errs like a machine that keeps to no model; what is believed, like a poor model.

    Raises:
        CostModelError: if a number is not whole or out of range; shares are in millionths.
    """

    model: CostModel
    bias_ppm: int = 0
    noise_ppm: int = 0
    overruns_ppm: int = 0
    longer_ppm: int = 0
    tile: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        for field, (least, most) in RANGES.items():
            value = getattr(self, field)
            if type(value) is not int or not least <= value <= most:
                raise CostModelError(f"{field} is {value!r}; it must be a whole number from {least} to {most}")

    @property
    def name(self) -> str:  # type: ignore[override]
        """What :func:`costmodels.io.load_cost_model` reads, where it knows the other model by its name."""
        said = {
            "bias": _percent(self.bias_ppm) if self.bias_ppm else None,
            "noise": _percent(self.noise_ppm) if self.noise_ppm else None,
            "overruns": f"{_percent(self.overruns_ppm)}:{_percent(self.longer_ppm)}" if self.overruns_ppm else None,
            "tile": self.tile if self.tile > 1 else None,
            "seed": self.seed or None,
        }
        return f"{ERRING}of={self.model.name}" + "".join(f",{k}={v}" for k, v in said.items() if v is not None)

    def step_ns(
        self,
        n_decode: int,
        decode_context: int,
        decode_context_max: int,
        n_prefill: int,
        prefill_tokens: int,
        prefill_pairs: int,
    ) -> int:
        in_tiles = prefill_tokens + -prefill_tokens % self.tile
        t = self.model.step_ns(n_decode, decode_context, decode_context_max, n_prefill, in_tiles, prefill_pairs)
        factor, unit = PPM + self.bias_ppm, PPM
        if self.noise_ppm or self.overruns_ppm:
            h = mixed(self.seed, n_decode, decode_context, decode_context_max, prefill_tokens, prefill_pairs)
            factor, unit = factor * noise_levels(self.noise_ppm)[h * LEVELS >> 64], unit * PPM
            if mixed(h, 1) * PPM >> 64 < self.overruns_ppm:
                factor, unit = factor * (PPM + self.longer_ppm), unit * PPM
        return -(-t * factor // unit)

    def max_chunk(
        self,
        n_decode: int,
        decode_context: int,
        decode_context_max: int,
        context: int,
        limit: int,
        budget_ns: int,
    ) -> int:
        if self.noise_ppm or self.overruns_ppm or self.tile > 1:
            return super().max_chunk(n_decode, decode_context, decode_context_max, context, limit, budget_ns)
        # ceil(f t) <= b and t <= b / f are the same for integers t and b.
        budget_ns = budget_ns * PPM // (PPM + self.bias_ppm)
        return self.model.max_chunk(n_decode, decode_context, decode_context_max, context, limit, budget_ns)

    def at_quantile(self, quantile: float) -> CostModel:
        return replace(self, model=self.model.at_quantile(quantile))

    def at_coverage(self, coverage: float) -> CostModel:
        """Return the model with the margin that was calibrated for the other one, which errs no less for it.

        Raises:
            CostModelError: if none was calibrated for this coverage.
        """
        return replace(self, model=with_margin(self.model, f"c{Decimal(repr(coverage)) * 100:f}"))

    def stages(self) -> tuple[CostModel, ...]:
        stages = self.model.stages()
        return (self,) if len(stages) == 1 else tuple(replace(self, model=stage) for stage in stages)

    def to_dict(self) -> dict[str, Any]:
        numbers = {field: getattr(self, field) for field in RANGES}
        return {"kind": "erring", "model": self.model.to_dict(), **numbers}


def parse_erring(text: str) -> tuple[str, dict[str, int]]:
    """Read ``"erring:of=sloweave-paper,bias=5%,noise=3%,overruns=1%:30%,tile=128,seed=0"``.

    ``of`` names the other model, ``prefill:...`` with its own parameters included. Shares are in per cent.

    Returns:
        That name, and the fields of :class:`ErringCost` that are given.

    Raises:
        CostModelError: if a parameter is missing, unknown, given twice or not valid.
    """
    given: dict[str, str] = {}
    for part in text.removeprefix(ERRING).split(","):
        key, equals, value = part.partition("=")
        if equals and key in PARAMETERS:
            if key in given:
                raise CostModelError(f"cost model {text}: {key} is given twice")
            given[key] = value
        elif ":" in given.get("of", ""):
            given["of"] += f",{part}"
        else:
            near = difflib.get_close_matches(key, PARAMETERS, 1, 0.5)
            meant = f"; did you mean {near[0]}?" if near else ""
            what = "unknown parameter" if equals else "expected name=value, not"
            raise CostModelError(f"cost model {text}: {what} {part!r}{meant} (parameters: {', '.join(PARAMETERS)})")
    of = given.pop("of", "")
    if not of or of.startswith(ERRING):
        wrong = "of is missing" if not of else f"of is {of}, which errs already"
        raise CostModelError(f"cost model {text}: {wrong}; name the model that is right, as in of=sloweave-paper")
    try:
        return of, {field: number for key, value in given.items() for field, number in _fields(key, value).items()}
    except CostModelError as e:
        raise CostModelError(f"cost model {text}: {e}") from None


def with_other(text: str, change: Callable[[str], str]) -> str:
    """Return the name of a model that errs with what ``change`` makes of the other model's name.

    What :func:`parse_erring` refuses comes back as it is.
    """
    try:
        of, _ = parse_erring(text)
    except CostModelError:
        return text
    return text.replace(f"of={of}", f"of={change(of)}", 1)


def _fields(key: str, value: str) -> dict[str, int]:
    if key in ("tile", "seed"):
        least, most = RANGES[key]
        if not (value.isascii() and value.isdigit() and len(value) < 20 and least <= int(value) <= most):
            raise CostModelError(f"{key} is {value!r}; it must be a whole number from {least} to {most}")
        return {key: int(value)}
    if key != "overruns":
        return {f"{key}_ppm": _ppm(key, value, *RANGES[f"{key}_ppm"])}
    share, colon, longer = value.partition(":")
    if not colon:
        raise CostModelError(f"overruns is {value!r}; it should read 1%:30%, that 1 % of the steps take 30 % longer")
    return {f"{k}_ppm": _ppm(key, v, *RANGES[f"{k}_ppm"]) for k, v in (("overruns", share), ("longer", longer))}


def _ppm(key: str, text: str, least: int, most: int) -> int:
    match = _SHARE.fullmatch(text)
    if match is None:
        raise CostModelError(f"{key} is {text!r}; it must be a share in per cent, like 5%")
    share = Decimal(match[1]) * (PPM // 100)
    if share != share.to_integral_value() or not least <= share <= most:
        raise CostModelError(
            f"{key} is {text}; it must lie between {_percent(least)} and {_percent(most)}, in steps of {_percent(1)}"
        )
    return int(share)


def _percent(ppm: int) -> str:
    text = f"{Decimal(ppm).scaleb(-4):f}"
    return f"{text.rstrip('0').rstrip('.') if '.' in text else text}%"


@lru_cache(maxsize=64)
def noise_levels(ppm: int) -> tuple[int, ...]:
    """Return ``LEVELS`` equally likely log-normal factors, in millionths, rising; the same on every machine."""
    standard = NormalDist()
    return tuple(
        max(round(PPM * exp(ppm / PPM * standard.inv_cdf((level + 0.5) / LEVELS))), 1) for level in range(LEVELS)
    )


def mixed(*values: int) -> int:
    """Return 64 well-mixed bits of whole numbers by splitmix64, the same on every machine."""
    h = 0
    for value in values:
        h = (h ^ value) + _MIX & _FULL
        h = (h ^ h >> 30) * 0xBF58476D1CE4E5B9 & _FULL
        h = (h ^ h >> 27) * 0x94D049BB133111EB & _FULL
        h ^= h >> 31
    return h
