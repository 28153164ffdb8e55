"""A fitted cost model with what is known about its errors: its range, its residuals, its coverage."""

from __future__ import annotations

import warnings
from bisect import bisect_left
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from costmodels.base import CostModel, CostModelError
from costmodels.margin import WithMargin

FEATURES = ("n_decode", "decode_context", "decode_context_max", "n_prefill", "prefill_tokens", "prefill_pairs")

PPM = 10**6


class RangeWarning(UserWarning):
    """A cost model is used for steps larger than those that it was fitted to."""


@dataclass(frozen=True)
class ResidualTable:
    """δ(n, c) as a share of the prediction in millionths, by decode batch and prefill tokens (SLOWeave §5.1).

    ``shares_ppm[i][j]`` holds for batches up to ``batches[i]`` and chunks up to ``chunks[j]``, the last of each for
    all larger ones. Shares rise along both, so that prediction and margin together do.

    Raises:
        CostModelError: if knots or shares are not whole numbers, or do not rise.
    """

    batches: tuple[int, ...]
    chunks: tuple[int, ...]
    shares_ppm: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        for what, knots in (("batches", self.batches), ("chunks", self.chunks)):
            if not knots or any(type(k) is not int or k < 0 for k in knots) or any(a >= b for a, b in pairwise(knots)):
                raise CostModelError(f"residuals: {what} must be whole numbers that rise")
        rows = [len(row) for row in self.shares_ppm]
        if rows != [len(self.chunks)] * len(self.batches):
            raise CostModelError(
                "residuals: shares_ppm must have a row for each of batches, a share for each of chunks"
            )
        if any(type(v) is not int or not 0 <= v <= 1000 * PPM for row in self.shares_ppm for v in row):
            raise CostModelError("residuals: shares_ppm must be whole numbers from 0 to 10**9")
        grid = np.array(self.shares_ppm)
        if (np.diff(grid, axis=0) < 0).any() or (np.diff(grid, axis=1) < 0).any():
            raise CostModelError("residuals: shares_ppm fall along batches or chunks; they must not")

    def ppm(self, n_decode: int, prefill_tokens: int) -> int:
        """Return the share for such a step in millionths."""
        i = bisect_left(self.batches, n_decode)
        j = bisect_left(self.chunks, prefill_tokens)
        row = self.shares_ppm[i if i < len(self.batches) else -1]
        return row[j if j < len(row) else -1]

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            "batches": list(self.batches),
            "chunks": list(self.chunks),
            "shares_ppm": [list(row) for row in self.shares_ppm],
        }


@dataclass(frozen=True)
class WithResiduals(CostModel):
    """``T + ceil(δ(n, c) * T)``, exact in integers."""

    model: CostModel
    residuals: ResidualTable

    @property
    def name(self) -> str:  # type: ignore[override]
        """The wrapped model's name."""
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
        return t - (-t * self.residuals.ppm(n_decode, prefill_tokens) // PPM)

    def decode_run_ns(
        self, n_decode: int, decode_context: int, decode_context_max: int, steps: int
    ) -> NDArray[np.int64]:
        run = self.model.decode_run_ns(n_decode, decode_context, decode_context_max, steps)
        ppm = self.residuals.ppm(n_decode, 0)
        if not ppm:
            return run
        if steps and int(run.max()) * ppm >= 1 << 62:
            return super().decode_run_ns(n_decode, decode_context, decode_context_max, steps)
        return np.asarray(run - (-run * ppm // PPM), dtype=np.int64)

    def to_dict(self) -> dict[str, Any]:
        return {"kind": "with-residuals", "model": self.model.to_dict(), "residuals": self.residuals.to_dict()}


@dataclass(frozen=True)
class CalibratedCost(CostModel):
    """A fitted model; it predicts what the model predicts, and knows margins.

    ``within`` are the largest features that it was fitted to; the first use beyond warns, once per object, with
    :class:`RangeWarning`. ``residuals`` are tables by quantile, like ``"0.99"``, for ``margin=p99``; ``coverage``
    shares of the prediction by the share of steps that they cover, for ``margin=c99`` (see ``costmodels.conformal``).

    Raises:
        CostModelError: if ``within`` is not six whole numbers, or a share is negative.
    """

    model: CostModel
    within: tuple[int, ...] = ()
    residuals: tuple[tuple[str, ResidualTable], ...] = ()
    coverage: tuple[tuple[str, Fraction], ...] = ()
    _warned: list[str] = field(default_factory=list, init=False, repr=False, compare=False, hash=False)

    def __post_init__(self) -> None:
        whole = all(type(v) is int and v >= 0 for v in self.within)
        if len(self.within) not in (0, len(FEATURES)) or not whole:
            raise CostModelError(f"cost model {self.name}: within must be six whole numbers: {', '.join(FEATURES)}")
        for text, share in self.coverage:
            if share < 0:
                raise CostModelError(f"cost model {self.name}: the share that covers {text} is negative")

    @property
    def name(self) -> str:  # type: ignore[override]
        """The fitted model's name."""
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
        within = self.within
        if within and (
            n_decode > within[0]
            or decode_context > within[1]
            or decode_context_max > within[2]
            or n_prefill > within[3]
            or prefill_tokens > within[4]
            or prefill_pairs > within[5]
        ):
            self._warn(
                (n_decode, decode_context, decode_context_max, n_prefill, prefill_tokens, prefill_pairs),
            )
        return self.model.step_ns(
            n_decode, decode_context, decode_context_max, n_prefill, prefill_tokens, prefill_pairs
        )

    def max_chunk(
        self,
        n_decode: int,
        decode_context: int,
        decode_context_max: int,
        context: int,
        limit: int,
        budget_ns: int,
    ) -> int:
        c = self.model.max_chunk(n_decode, decode_context, decode_context_max, context, limit, budget_ns)
        if self.within and c > self.within[4]:
            self._warn((n_decode, decode_context, decode_context_max, 1, c, c * context + c * (c + 1) // 2))
        return c

    def decode_run_ns(
        self, n_decode: int, decode_context: int, decode_context_max: int, steps: int
    ) -> NDArray[np.int64]:
        if steps and self.within:
            more = steps - 1
            last = (n_decode, decode_context + more * n_decode, decode_context_max + more, 0, 0, 0)
            if any(v > most for v, most in zip(last, self.within, strict=True)):
                self._warn(last)
        return self.model.decode_run_ns(n_decode, decode_context, decode_context_max, steps)

    def at_quantile(self, quantile: float) -> CostModel:
        for text, table in self.residuals:
            if text == repr(quantile):
                return WithResiduals(self, table)
        return self.model.at_quantile(quantile)

    def at_coverage(self, coverage: float) -> CostModel:
        """Return the model with the margin that covers this share of steps.

        Raises:
            CostModelError: if none was calibrated for it.
        """
        for text, share in self.coverage:
            if text == repr(coverage):
                return WithMargin(self, relative=share)
        known = ", ".join(text for text, _ in self.coverage) or "none"
        raise CostModelError(
            f"cost model {self.name} has no margin that covers {coverage!r} of the steps (calibrated: {known})"
        )

    def _warn(self, step: tuple[int, ...]) -> None:
        if self._warned:
            return
        beyond = [
            f"{feature} = {value} (at most {most})"
            for feature, value, most in zip(FEATURES, step, self.within, strict=True)
            if value > most
        ]
        if beyond:
            self._warned.append(beyond[0])
            warnings.warn(
                f"cost model {self.name} was fitted to smaller steps than one with {', '.join(beyond)}; beyond that "
                "range it extrapolates",
                RangeWarning,
                stacklevel=3,
            )

    def to_dict(self) -> dict[str, Any]:
        return {
            "kind": "calibrated",
            "model": self.model.to_dict(),
            "within": dict(zip(FEATURES, self.within, strict=False)),
            "residuals": {text: table.to_dict() for text, table in self.residuals},
            "coverage": {text: str(share) for text, share in self.coverage},
        }
