"""A bound on P99 latency, as the command line has it."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from experiments.config import ConfigError


@dataclass(frozen=True)
class Bound:
    """What P99 latency must keep: a time, or a multiple of what it is first come, first served."""

    text: str
    ms: float | None = None
    times_fcfs: float | None = None

    @classmethod
    def parse(cls, text: str) -> Bound:
        """Read ``30s``, ``30000ms`` or ``1.2x``.

        Raises:
            ConfigError: if it reads otherwise, or is not positive.
        """
        found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)(s|ms|x)", text)
        value = float(found[1]) if found else 0.0
        if found is None or not 0 < value < math.inf:
            raise ConfigError(
                f"--p99-bound is {text!r}, but it should be a time like 30s or 30000ms, or a multiple of "
                "first come, first served's P99 like 1.2x"
            )
        if found[2] == "x":
            return cls(text, times_fcfs=value)
        return cls(text, ms=value * (1000 if found[2] == "s" else 1))

    def excess(self, p99: Sequence[float | None], fcfs: Sequence[float | None]) -> list[float | None]:
        """Return, by seed, by how many ms a P99 overshoots the bound; ``None`` where one was not measured."""
        excess: list[float | None] = []
        for value, reference in zip(p99, fcfs, strict=True):
            bound = self.ms if reference is None or self.times_fcfs is None else self.times_fcfs * reference
            excess.append(None if value is None or bound is None else value - bound)
        return excess
