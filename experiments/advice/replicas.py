"""How many replicas: about, from a few runs; then surely, from a test at each number that is looked at."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from experiments.capacity.search import Verdict

GAIN = 0.01
"""Attainment that twice the replicas must add, or no number of them will do."""

IDLE = 4
"""Only then is that believed: with so many times the replicas that prefilling keeps busy."""


@dataclass(frozen=True)
class Rough:
    """About how many replicas reach a level."""

    replicas: int
    reached: bool
    """Whether they do; else they are those that come about as near as any."""
    looked: int
    """The largest number that was looked at."""


def roughly(attains: Callable[[int], float], level: float, start: int, most: int) -> Rough:
    """Return the least number of replicas that attains a level, by doubling and bisection.

    Args:
        attains: the attainment on so many replicas; asked once for each.
        level: what is wanted.
        start: where to begin.
        most: no more than this is looked at.
    """
    known: dict[int, float] = {}

    def see(n: int) -> bool:
        if n not in known:
            known[n] = attains(n)
        return known[n] >= level

    first = here = min(max(start, 1), most)
    below = 0
    while not see(here):
        below = here
        before = known.get(here // 2)
        if here >= most or (here >= IDLE * first and before is not None and known[here] - before < GAIN):
            near = max(known.values()) - GAIN
            return Rough(min(n for n, value in known.items() if value >= near), False, max(known))
        here = min(2 * here, most)
    while here - below > 1:
        middle = (below + here) // 2
        if see(middle):
            here = middle
        else:
            below = middle
    return Rough(here, True, max(known))


@dataclass(frozen=True)
class Span:
    """Between how many replicas the answer lies."""

    holds: int | None
    """The least number looked at that surely holds the level; ``None`` where none does."""
    breaks: int | None
    """The largest below it that surely does not; ``None`` where none does not."""
    verdicts: dict[int, Verdict]
    """By number of replicas, of all that were looked at."""

    @classmethod
    def of(cls, verdicts: Mapping[int, Verdict]) -> Span:
        """Return what verdicts by number of replicas say together."""
        return cls(*_ends(verdicts), dict(verdicts))

    @property
    def uneven(self) -> bool:
        """Whether a number surely holds the level and a larger one surely does not."""
        held = [n for n, v in self.verdicts.items() if v is Verdict.HOLDS]
        broken = [n for n, v in self.verdicts.items() if v is Verdict.BREAKS]
        return bool(held and broken) and min(held) < max(broken)


def surely(judge: Callable[[int], Verdict], start: int, most: int, visits: int) -> Span:
    """Find the least number of replicas that surely holds a level, and the largest that surely does not.

    Args:
        judge: what a test says of so many replicas; asked once for each.
        start: where to begin.
        most: no more than this is looked at.
        visits: how many numbers are looked at, at most: as many as share the error probability.
    """
    verdicts: dict[int, Verdict] = {}
    while len(verdicts) < visits and (here := _next(verdicts, start, most)) is not None:
        verdicts[here] = judge(here)
    return Span.of(verdicts)


def _ends(verdicts: Mapping[int, Verdict]) -> tuple[int | None, int | None]:
    breaks = max((n for n, v in verdicts.items() if v is Verdict.BREAKS), default=None)
    holds = min((n for n, v in verdicts.items() if v is Verdict.HOLDS and n > (breaks or 0)), default=None)
    return holds, breaks


def _next(verdicts: Mapping[int, Verdict], start: int, most: int) -> int | None:
    """Return the number to look at next; ``None`` at the end."""
    if not verdicts:
        return start
    holds, breaks = _ends(verdicts)
    top, bottom = max(verdicts), min(verdicts)
    if holds is None:
        return None if top >= most else min(top + max(1, top // 4), most)
    if breaks is None and bottom > 1:
        return max(bottom - max(1, bottom // 4), 1)
    low = breaks or 0
    unclear = [n for n, v in sorted(verdicts.items()) if low < n < holds and v is Verdict.UNCLEAR]
    gaps = [(unclear[-1] if unclear else low, holds), (low, unclear[0] if unclear else holds)]
    return next(((a + b) // 2 for a, b in gaps if b - a > 1), None)
