"""Service-level objectives: ``ttft:1000,tpot_p99:25`` in milliseconds."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from policies.registry import nearest
from policies.sentences import one_line
from policies.units import MS, ns_from_ms


class ObjectiveError(ValueError):
    """An objective that cannot be read; the message, one line, says what would be right."""

    def __init__(self, message: str) -> None:
        super().__init__(one_line(message))


LONGEST_ENTRY = 60
"""No objective takes more characters; messages repeat no more of one."""


@dataclass(frozen=True)
class Objectives:
    """Upper bounds in nanoseconds; ``None`` means no such objective.

    A request's own objectives (``slo_ttft_ns``, ``slo_tpot_ns`` of the trace) take the place of ``ttft`` and
    ``tpot_p99``.
    """

    ttft: int | None = None
    """First token minus arrival."""
    tpot: int | None = None
    """Mean gap between tokens, vLLM bench's TPOT."""
    tpot_p99: int | None = None
    """P99 of the request's own gaps, SLOWeave's TPOT."""
    itl_max: int | None = None
    """Longest gap between two tokens."""
    jct: int | None = None
    """Finish minus arrival."""

    @classmethod
    def parse(cls, text: str) -> Objectives:
        """Read ``KEY:MS,KEY:MS``.

        Raises:
            ObjectiveError: naming the key or number that is wrong.
        """
        known = [f.name for f in fields(cls)]
        values: dict[str, int] = {}
        for entry in filter(None, (e.strip() for e in text.split(","))):
            entry = entry if len(entry) <= LONGEST_ENTRY else f"{entry[:LONGEST_ENTRY]}..."
            key, colon, number = entry.partition(":")
            if key not in known:
                raise ObjectiveError(
                    f"--slo {entry!r}: unknown objective {key}{nearest(key, known)} (objectives: {', '.join(known)})"
                )
            try:
                ms = float(number)
            except ValueError:
                ms = math.nan
            ns = ns_from_ms(ms) if math.isfinite(ms) else 0
            if not colon or ns < 1:
                raise ObjectiveError(
                    f"--slo {entry!r} should read {key}:MILLISECONDS, a positive number, at least {1 / MS:f}"
                )
            if key in values:
                raise ObjectiveError(f"--slo gives {key} twice")
            values[key] = ns
        return cls(**values)

    def __str__(self) -> str:
        """Return the form that :meth:`parse` reads."""
        return ",".join(f"{f.name}:{_ms(v)}" for f in fields(self) if (v := getattr(self, f.name)) is not None)

    @property
    def deadline_ns(self) -> int | None:
        """D for policies that fill deadlines, where neither policy nor request has one."""
        return next((v for v in (self.tpot_p99, self.itl_max, self.tpot) if v is not None), None)


def _ms(ns: int) -> str:
    """Return nanoseconds as milliseconds, with as many digits as it takes to read them back; exact to 10**15 ns."""
    short = f"{ns / MS:g}"
    return short if ns_from_ms(float(short)) == ns else repr(ns / MS)
