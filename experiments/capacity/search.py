"""The highest rate at which a share of requests meets its objectives: a sequential test at each rate, then bisection.

Attainment at a rate is the mean over seeds of a run's share of arrived requests that meet every objective. The
capacity at a level is the rate up to which attainment stays at or above it. Rates lie on a geometric grid that all
policies share, so that they see the same requests. At each rate seeds are added until a t-test says on which side of
the level attainment is, or the seeds are used up. The tests of one search share its error probability by Bonferroni,
over rates and looks, so the interval between a rate that surely holds the level and one that surely breaks it has the
confidence that it states, as far as means over seeds are Normal. Both ends are run on all seeds, and must tell the same
then: where few seeds are bad ones, the first may all be good.

A run's variance is taken to be at least that of as many independent requests at the level: seeds in which every request
meets its objectives have no spread to go by.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import special

FloatArray = NDArray[np.float64]

Values = Mapping[int, Sequence[float]]
"""Attainments by place on the grid, in order of seed."""

OCTAVES = 5
"""So many doublings above and halvings below its start a search goes on."""

FEWEST = 8
"""Seeds of the first look, where there are so many."""

LEAST_SEEDS = 4
"""With fewer seeds a t-test at these error probabilities never says anything."""

AROUND = (0.5, 0.7, 0.85, 1.2, 1.5)
"""Where to look, in units of the capacity found, for attainment that does not fall with the rate."""


class Verdict(Enum):
    """What is known of attainment at a rate."""

    HOLDS = "holds"
    """It is surely at least the level."""
    BREAKS = "breaks"
    """It is surely less."""
    UNCLEAR = "unclear"
    """All seeds do not tell."""
    OPEN = "open"
    """More seeds may tell."""


class Want(NamedTuple):
    """A place on the grid, and how many seeds are wanted there."""

    place: int
    seeds: int


@dataclass(frozen=True)
class Grid:
    """Rates, each ``ratio`` times the one before."""

    lowest: float
    ratio: float
    size: int
    """The place of the highest rate; the lowest has place 0."""
    start: tuple[int, ...]
    """Where a search begins."""
    stride: int
    """How far it goes on from there while all rates lie on one side."""

    @classmethod
    def around(cls, base: float, precision: float) -> Grid:
        """Return a grid that is searched from ``base`` on, in steps of at most ``precision`` (0.02 is 2 %)."""
        stride = math.ceil(math.log(2) / math.log1p(precision))
        return cls(base / 2**OCTAVES, 2 ** (1 / stride), 2 * OCTAVES * stride, (OCTAVES * stride,), stride)

    @classmethod
    def between(cls, lowest: float, highest: float, precision: float) -> Grid:
        """Return a grid of a range that is not left, in steps of at most ``precision``."""
        size = max(1, math.ceil(math.log(highest / lowest) / math.log1p(precision)))
        return cls(lowest, (highest / lowest) ** (1 / size), size, (0, size), size)

    def rate(self, place: int) -> float:
        """Return a rate, to six digits."""
        return float(f"{self.lowest * self.ratio**place:.6g}")

    def places(self, factor: float) -> int:
        """Return how many places a rate ``factor`` times as high is away."""
        return round(math.log(factor) / math.log(self.ratio))

    @property
    def most_rates(self) -> int:
        """How many rates a search visits at most, apart from those at which it only looks around."""
        ends = len(self.start) + 2 * (OCTAVES if len(self.start) == 1 else 0)
        return ends + 2 * math.ceil(math.log2(max(self.stride, 2)))


@dataclass(frozen=True)
class Design:
    """How rates are tested."""

    grid: Grid
    seeds: int
    """The most that are run at one rate; 1 where there is only one trace, which is then taken as it is."""
    requests: int
    """Of a run."""
    confidence: float = 0.95
    """Of the interval of one policy at one level."""

    @cached_property
    def looks(self) -> tuple[int, ...]:
        """The numbers of seeds after which a rate is tested: all of them, halves of that, and so on."""
        looks = [self.seeds]
        while looks[0] >= 2 * FEWEST:
            looks.insert(0, math.ceil(looks[0] / 2))
        return tuple(looks)

    @cached_property
    def error(self) -> float:
        """The probability that one test of one rate errs."""
        return (1 - self.confidence) / self.most_tests

    @property
    def most_tests(self) -> int:
        """How many tests a search makes at most, over rates and looks."""
        return self.grid.most_rates * len(self.looks)

    def verdict(self, values: Sequence[float], level: float) -> Verdict:
        """Return what the first look that tells, tells; later values change nothing."""
        for look in self.looks:
            if len(values) < look:
                return Verdict.OPEN
            if (told := self.told(values[:look], level)) is not Verdict.UNCLEAR:
                return told
        return Verdict.UNCLEAR

    def confirmed(self, values: Sequence[float], level: float) -> Verdict:
        """Return what a look that tells and the last look, with all seeds, agree on."""
        first = self.verdict(values, level)
        if first in (Verdict.OPEN, Verdict.UNCLEAR):
            return first
        if len(values) < self.seeds:
            return Verdict.OPEN
        return first if self.told(values[: self.seeds], level) is first else Verdict.UNCLEAR

    def told(self, values: Sequence[float], level: float) -> Verdict:
        """Return what a t-test of these values tells; a single value is taken as it is."""
        score = self.score(values, level)
        if len(values) == 1:
            return Verdict.HOLDS if score >= 0 else Verdict.BREAKS
        if special.stdtr(len(values) - 1, -abs(score)) > self.error:
            return Verdict.UNCLEAR
        return Verdict.HOLDS if score > 0 else Verdict.BREAKS

    def score(self, values: Sequence[float], level: float) -> float:
        """Return by how many standard errors the mean of values exceeds the level."""
        sample = np.asarray(values, dtype=np.float64)
        least = level * (1 - level) / self.requests
        variance = max(float(np.var(sample, ddof=1)) if len(sample) > 1 else 0.0, least)
        # A mean of equal values may differ from them in its last digit.
        return (math.fsum(sample.tolist()) / len(sample) - level) / math.sqrt(variance / len(sample))


@dataclass(frozen=True)
class Capacity:
    """What a search has found."""

    level: float
    holds: int | None
    """The highest place that surely holds the level, below all that break it; ``None`` where none does."""
    breaks: int | None
    """The lowest place that surely breaks it; ``None`` where none does."""
    visited: int
    """Rates that were tested."""
    rises: tuple[int, int] | None
    """Places of a rate that surely breaks the level and of a higher one that surely holds it, if there are such."""
    spent: bool
    """Whether the search ended because it had visited as many rates as the error probability was shared among."""


@dataclass
class Search:
    """The search for one policy's capacity at one level; it asks for runs until it has found it."""

    design: Design
    level: float
    asked: dict[int, None] = field(default_factory=dict)
    ends: dict[int, None] = field(default_factory=dict)
    """Places that were an end of the interval: what they tell must hold with all seeds."""
    around: dict[int, None] = field(default_factory=dict)
    """Where it only looked around, at the first look's seeds."""
    _looked: bool = False

    def wanted(self, values: Values) -> list[Want]:
        """Return how many seeds must be run where before it can go on; nothing at the end."""
        first = self.design.looks[0]
        while True:
            verdicts = self._verdicts(values)
            missing = [
                Want(place, next(n for n in self.design.looks if n > len(values.get(place, ()))))
                for place, verdict in verdicts.items()
                if verdict is Verdict.OPEN
            ]
            missing += [Want(place, first) for place in self.around if len(values.get(place, ())) < first]
            if missing:
                return missing
            left = self.design.grid.most_rates - len(self.asked)
            more = self._next(verdicts)[:left]
            if not more and (ends := [p for p in _bracket(verdicts) if p is not None and p not in self.ends]):
                self.ends.update(dict.fromkeys(ends))
                continue
            if not more and not self._looked:
                self._looked = True
                self._look_around(verdicts)
                continue
            more = more or self._contradiction(values, verdicts)[:left]
            if not more:
                return []
            self.asked.update(dict.fromkeys(more))

    def found(self, values: Values) -> Capacity:
        """Return what the runs so far say."""
        verdicts = self._verdicts(values)
        holds, breaks = _bracket(verdicts)
        known = verdicts | {p: self._at_first_look(values, p) for p in self.around if p not in verdicts}
        low = min((p for p, v in known.items() if v is Verdict.BREAKS), default=None)
        high = max((p for p, v in known.items() if v is Verdict.HOLDS), default=None)
        rises = (low, high) if low is not None and high is not None and low < high else None
        spent = bool(self._next(verdicts)) and len(self.asked) >= self.design.grid.most_rates
        return Capacity(self.level, holds, breaks, len(known), rises, spent)

    def _verdicts(self, values: Values) -> dict[int, Verdict]:
        verdicts = {place: self.design.verdict(values.get(place, ()), self.level) for place in self.asked}
        firm = {place: self.design.confirmed(values.get(place, ()), self.level) for place in self.ends}
        if any(firm[place] is Verdict.UNCLEAR is not verdicts[place] for place in firm):
            # The first seeds have misled once, so none are believed by themselves any more.
            return {place: self.design.confirmed(values.get(place, ()), self.level) for place in verdicts}
        return verdicts | firm

    def _at_first_look(self, values: Values, place: int) -> Verdict:
        return self.design.verdict(values.get(place, ())[: self.design.looks[0]], self.level)

    def _next(self, verdicts: Mapping[int, Verdict]) -> list[int]:
        """Return the places to visit next."""
        grid = self.design.grid
        if not verdicts:
            return list(grid.start)
        holds, breaks = _bracket(verdicts)
        more = []
        if breaks is None and (top := max(verdicts)) < grid.size:
            more.append(min(top + grid.stride, grid.size))
        if holds is None and (bottom := min(verdicts)) > 0:
            more.append(max(bottom - grid.stride, 0))
        if more:
            return more
        unclear = sorted(
            place
            for place, verdict in verdicts.items()
            if verdict is Verdict.UNCLEAR and (holds is None or place > holds) and (breaks is None or place < breaks)
        )
        gaps = {(holds, unclear[0] if unclear else breaks), (unclear[-1] if unclear else holds, breaks)}
        return sorted((a + b) // 2 for a, b in gaps if a is not None and b is not None and b - a > 1)

    def _look_around(self, verdicts: Mapping[int, Verdict]) -> None:
        """Look at rates far from those visited; where one below the capacity breaks the level, search on below it."""
        holds, breaks = _bracket(verdicts)
        if holds is None or breaks is None:
            return
        grid, middle = self.design.grid, (holds + breaks) // 2
        for factor in AROUND:
            place = middle + grid.places(factor)
            if 0 <= place <= grid.size and not holds <= place <= breaks:
                self.around[place] = None

    def _contradiction(self, values: Values, verdicts: Mapping[int, Verdict]) -> list[int]:
        """Return the lowest rate, of those looked at, that breaks the level below the interval, if there is one."""
        holds, _ = _bracket(verdicts)
        low = [
            place
            for place in self.around
            if holds is not None
            and place < holds
            and place not in verdicts
            and self._at_first_look(values, place) is Verdict.BREAKS
        ]
        return [min(low)] if low else []


def _bracket(verdicts: Mapping[int, Verdict]) -> tuple[int | None, int | None]:
    """Return the highest place that holds the level below all that break it, and the lowest that breaks it."""
    breaks = min((p for p, v in verdicts.items() if v is Verdict.BREAKS), default=None)
    holds = (p for p, v in verdicts.items() if v is Verdict.HOLDS and (breaks is None or p < breaks))
    return max(holds, default=None), breaks
