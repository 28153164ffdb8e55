"""How far a simulation may be from what was measured: ``ttft:10,jct_p99:15`` in percent."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from policies.registry import nearest

TIMES = ("ttft", "tpot", "itl", "jct")

STATISTICS = ("mean", "p50", "p90", "p99")

FIGURES = (*(f"{time}_{statistic}" for time in TIMES for statistic in STATISTICS), "goodput")
"""What is compared end to end: times in milliseconds, goodput in requests per second."""

OTHERS = ("knee", "step")
"""The largest stable rate, and the mean error of step times."""

DEFAULT = 0.10

SPREADS = 2.0
"""How many standard deviations of the engine's own repeats an error may be, where that is more."""


class ValidationError(ValueError):
    """Something that cannot be validated; the message says what is wrong and what would be right."""


@dataclass(frozen=True)
class Tolerances:
    """Largest relative error of each figure, a share; the more special name wins."""

    given: Mapping[str, float] = field(default_factory=dict)
    """By time (``ttft``), figure (``ttft_p99``), ``goodput``, ``knee`` or ``step``."""

    @classmethod
    def parse(cls, text: str) -> Tolerances:
        """Read ``NAME:PERCENT,NAME:PERCENT``.

        Raises:
            ValidationError: naming the name or number that is wrong.
        """
        known = (*TIMES, *FIGURES, *OTHERS)
        given: dict[str, float] = {}
        for entry in filter(None, (e.strip() for e in text.split(","))):
            name, _, number = (part.strip() for part in entry.partition(":"))
            if name not in known:
                raise ValidationError(
                    f"--tolerance {entry!r}: unknown figure {name}{nearest(name, known)} "
                    f"({', '.join(TIMES)}, each also with {', '.join('_' + s for s in STATISTICS)}; goodput, "
                    f"{', '.join(OTHERS)})"
                )
            try:
                percent = float(number)
            except ValueError:
                percent = math.nan
            if not (math.isfinite(percent) and percent >= 0):
                raise ValidationError(f"--tolerance {entry!r} should read {name}:PERCENT, a number of at least 0")
            if name in given:
                raise ValidationError(f"--tolerance gives {name} twice")
            given[name] = percent / 100
        return cls(given)

    def of(self, figure: str) -> float:
        """Return the tolerance of a figure."""
        time = figure.partition("_")[0]
        return self.given.get(figure, self.given.get(time, DEFAULT))

    def __str__(self) -> str:
        """Return the form that :meth:`parse` reads, all figures included."""
        return ",".join(f"{name}:{100 * self.of(name):g}" for name in (*TIMES, "goodput", *OTHERS)) + (
            "".join(f",{name}:{100 * value:g}" for name, value in self.given.items() if "_" in name)
        )
