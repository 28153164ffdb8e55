"""Why a request did not run in a step: found for whole runs at once, replica by replica.

In each step one thing ended the handing out of tokens (its *limit*): the tokens were used up, as many requests
prefilled in the step or ran at once as may, or there were no blocks. Whoever waited then did so for that reason, unless
somebody else who had been waiting started in the very step: then it was its place in the policy's order, its *rank*,
for as the first it would have had a turn.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from policies.views import Grant
from sim.records import FINISHED, NULL, REDIRECTED, REJECTED, Columns
from traces.schema import IntArray

BoolArray = NDArray[np.bool_]

ARRIVED, RANK, BUDGET, PREFILLS, SEATS, KV = range(6)
REASONS = ("not yet visible", "rank", "budget", "prefills", "seats", "kv")
MEANINGS = (
    "it arrived while a step was under way",
    "others that waited came first in the policy's order and started",
    "the granted tokens were used up, or none were granted",
    "as many requests prefilled as the policy lets in one step",
    "as many requests ran as may at once",
    "there were no free KV blocks",
)

BEFORE, BETWEEN, AGAIN = range(3)
PHASES = ("before its start", "between its chunks", "after a preemption")


@dataclass(frozen=True)
class Schedule:
    """What is known of a run's decisions; steps are numbered through, replica after replica."""

    requests: Columns
    steps: Columns
    chunks: Columns
    preemptions: Columns
    grants: Mapping[int, Grant] | None
    """By step; ``None`` where only the tables are there, so that what the policy granted besides tokens is inferred."""
    seats: int | None
    """Most requests that may run at once."""
    deep: bool
    """Whether a step is decided while the one before it runs."""
    blocks: int | None
    """KV blocks that can be taken; ``None`` for memory without bounds."""
    block_size: int


@dataclass(frozen=True)
class Stay:
    """A request's stretch of steps in one state: from ``begin`` up to, but not including, ``end``."""

    request: int
    begin: int
    end: int
    phase: int


@dataclass(frozen=True)
class Life:
    """From the step in which a request started its prefill, or started it again, to the one that ended it."""

    request: int
    begin: int
    end: int
    """The last step in which it prefilled or could have."""
    chunks: tuple[tuple[int, int], ...]
    """Steps and tokens."""
    whole: bool
    """Whether the prefill came to its end."""


class Lane:
    """One replica: its steps in order, and who waited and prefilled in them. Steps count from its first one."""

    def __init__(self, schedule: Schedule, replica: int) -> None:
        own = np.flatnonzero(schedule.steps["replica"] == replica)
        self.first, self.replica, self.schedule = int(own[0]), replica, schedule
        self.steps: Columns = {name: values[own] for name, values in schedule.steps.items()}
        self.size = len(own)
        ends = self.steps["start_ns"] + self.steps["duration_ns"]
        self.edges = np.append(self.steps["start_ns"], ends.max())
        """When each step begins, and the end of the last; shape (steps + 1,)."""
        self.ends = ends
        mine = (schedule.chunks["step"] >= self.first) & (schedule.chunks["step"] < self.first + self.size)
        self.chunks: Columns = {name: values[mine] for name, values in schedule.chunks.items()}
        self.chunks["step"] = self.chunks["step"] - self.first
        self.stays: list[Stay] = []
        self.lives: list[Life] = []
        for request in np.flatnonzero(schedule.requests["replica"] == replica).tolist():
            self._follow(request)
        begins = np.array([life.begin for life in self.lives], dtype=np.int64)
        self.starting = np.bincount(begins, minlength=self.size)
        """How many requests that had waited started in each step."""
        self.limit = self._limits()
        """What ended the handing out in each step, a code of :data:`REASONS`."""
        self.reason = np.where(self.starting > 0, RANK, self.limit)
        """Why somebody who waited through a step did."""

    @cached_property
    def _chunks_of(self) -> dict[int, list[tuple[int, int]]]:
        """Steps and tokens by request."""
        found: dict[int, list[tuple[int, int]]] = {}
        columns = (self.chunks[c].tolist() for c in ("request", "step", "tokens"))
        for request, step, tokens in zip(*columns, strict=True):
            found.setdefault(request, []).append((step, tokens))
        return found

    @cached_property
    def _lost_by(self) -> dict[int, list[tuple[int, int, int]]]:
        """By preempted request the steps of each preemption, of its last token before and of its next after, or -1."""
        found: dict[int, list[tuple[int, int, int]]] = {}
        columns = (self.schedule.preemptions[c].tolist() for c in ("request", "step", "after", "until"))
        for request, *row in zip(*columns, strict=True):
            step, after, until = (NULL if v == NULL else v - self.first for v in row)
            found.setdefault(request, []).append((step, after, until))
        return found

    def _follow(self, request: int) -> None:
        """Enter a request's stays and lives."""
        requests = self.schedule.requests
        outcome = int(requests["outcome"][request])
        done = outcome == FINISHED
        visible = int(requests["visible_step"][request])
        own = self._chunks_of.get(request, [])
        if visible == NULL or (outcome in (REJECTED, REDIRECTED) and not own):
            return
        # Such as by a client that went away; when that was is not in the tables.
        given_up = not done and requests["reason"][request] is not None
        begin, phase, taken = visible - self.first, BEFORE, 0
        goes_on = bool(requests["first_token_ns"][request] >= 0)
        breaks: list[tuple[int, int, int] | None] = [*sorted(self._lost_by.get(request, [])), None]
        for broken in breaks:
            cut = self.size + 1 if broken is None else broken[0]
            life = []
            while taken < len(own) and own[taken][0] < cut:
                life.append(own[taken])
                taken += 1
            if life:
                self._stay(request, begin, life[0][0], phase)
                last = life[-1][0]
                if broken is None:
                    whole = done or goes_on
                    end = last if whole or given_up else self.size - 1
                else:
                    whole = broken[1] >= last
                    end = last if whole else broken[0] - 1
                self.lives.append(Life(request, life[0][0], end, tuple(life), whole))
            elif broken is None and not done and not given_up:
                self._stay(request, begin, self.size, phase)
            if broken is not None:
                begin, phase, goes_on = broken[0], AGAIN, broken[2] >= 0

    def _stay(self, request: int, begin: int, end: int, phase: int) -> None:
        if begin < end:
            self.stays.append(Stay(request, begin, end, phase))

    def _limits(self) -> IntArray:
        """Return what ended the handing out of each step."""
        at, tokens = self.chunks["step"], self.chunks["tokens"]
        count = np.bincount(at, minlength=self.size)
        used = np.bincount(at, tokens, self.size).astype(np.int64)
        prefilling = np.zeros(self.size + 1, dtype=np.int64)
        uncut = set()
        for life in self.lives:
            prefilling[life.begin] += 1
            prefilling[life.end + 1] -= 1
            if life.whole:
                uncut.add((life.end, life.request))
        prefilling = np.cumsum(prefilling)[: self.size]
        # A request that resumes with one token is a decode in the steps table, and a chunk here.
        running = self.steps["n_decode"] - (count - self.steps["n_prefill"]) + prefilling
        if self.schedule.deep:
            running = running + self._leaving()
        cut = np.zeros(self.size, dtype=bool)
        for step, request in zip(at.tolist(), self.chunks["request"].tolist(), strict=True):
            cut[step] = (step, request) not in uncut
        full = np.zeros(self.size, dtype=bool) if self.schedule.seats is None else running >= self.schedule.seats
        squeezed = self._squeezed()
        if self.schedule.grants is None:
            return np.where(squeezed, KV, self._inferred(count, used, prefilling, cut, full))
        limits = np.where(full & ~squeezed, SEATS, KV)
        for step in np.flatnonzero(~squeezed).tolist():
            grant = self.schedule.grants.get(self.first + step)
            if grant is None:
                continue
            left = grant.tokens - int(used[step])
            limited = grant.prefills is not None and count[step] >= grant.prefills
            if grant.tokens <= 0 or (left <= 0 and (cut[step] or not limited)):
                limits[step] = BUDGET
            elif limited:
                limits[step] = PREFILLS
        return limits

    def _inferred(
        self, count: IntArray, used: IntArray, prefilling: IntArray, cut: BoolArray, full: BoolArray
    ) -> IntArray:
        """Return the limits where the tables have to tell: the grant's tokens are there, its prefills are not."""
        granted = self.steps["granted_tokens"]
        spent, alone = (used >= granted) & (count > 0), bool((count <= 1).all())
        limits = np.where(prefilling > 0, PREFILLS, BUDGET)
        limits = np.where(full, SEATS, np.where(self._short_of_blocks(), KV, limits))
        if alone:  # in no step of the run had two requests a chunk
            limits = np.where(count > 0, np.where(spent & cut, BUDGET, PREFILLS), limits)
        else:
            limits = np.where(spent, BUDGET, limits)
        return np.where((count == 0) & (granted <= 0) & (prefilling > 0), BUDGET, limits)

    def _short_of_blocks(self) -> BoolArray:
        """Return whether the request that starts next could not have had its blocks, by step."""
        blocks, size = self.schedule.blocks, self.schedule.block_size
        if blocks is None:
            return np.zeros(self.size, dtype=bool)
        requests = self.schedule.requests
        order = sorted(self.lives, key=lambda life: life.begin)
        begins = np.array([life.begin for life in order], dtype=np.int64)
        cached = np.maximum(requests["cached_tokens"], 0)
        needs = np.array(
            [-(-int(requests["prompt_tokens"][x.request] - cached[x.request]) // size) for x in order] + [0]
        )
        following = np.searchsorted(begins, np.arange(self.size), side="right")
        short: BoolArray = needs[following] > blocks - self.steps["kv_blocks"]
        return short

    def _squeezed(self) -> BoolArray:
        """Return in which steps somebody lost its blocks, so that nobody could start."""
        lost = self.schedule.preemptions["step"] - self.first
        squeezed = np.zeros(self.size, dtype=bool)
        squeezed[lost[(lost >= 0) & (lost < self.size)]] = True
        return squeezed

    def _leaving(self) -> IntArray:
        """Return how many requests got their last token in the step before, so that they hold their seats still."""
        finished = self.schedule.requests["finished_ns"]
        mine = (self.schedule.requests["replica"] == self.replica) & (finished >= 0)
        last = np.searchsorted(self.ends, finished[mine])
        under_way = np.append(False, self.steps["decided_ns"][1:] < self.ends[:-1])
        return np.where(under_way, np.bincount(last + 1, minlength=self.size + 1)[: self.size], 0)

    def unseen_ns(self, request: int) -> int:
        """Return how long a request was there before the first step that saw it began."""
        visible = int(self.schedule.requests["visible_step"][request]) - self.first
        return max(0, int(self.edges[visible]) - int(self.schedule.requests["arrival_ns"][request]))

    def pauses(self, life: Life) -> Iterator[Stay]:
        """Yield the stretches in which a started prefill got no tokens."""
        begin = life.begin
        for step in [*(step for step, _ in life.chunks), life.end + 1]:
            if begin < step:
                yield Stay(life.request, begin, step, BETWEEN)
            begin = step + 1

    def every_stay(self) -> Iterator[Stay]:
        """Yield all stretches in which somebody did not run."""
        yield from self.stays
        for life in self.lives:
            yield from self.pauses(life)

    def reasons(self, stay: Stay) -> IntArray:
        """Return why, step by step: those that have started are not overtaken."""
        table = self.limit if stay.phase == BETWEEN else self.reason
        return table[stay.begin : stay.end]

    def waited_ns(self) -> IntArray:
        """Return the time that each request of the run waited, of shape (phases, requests, reasons)."""
        n = len(self.schedule.requests["arrival_ns"])
        waited = np.zeros((len(PHASES), n, len(REASONS)), dtype=np.int64)
        spans = np.diff(self.edges)
        upto = {
            between: np.stack([np.append(0, np.cumsum(spans * (table == k))) for k in range(len(REASONS))], axis=1)
            for between, table in ((True, self.limit), (False, self.reason))
        }
        for stay in self.every_stay():
            table = upto[stay.phase == BETWEEN]
            waited[stay.phase, stay.request] += table[stay.end] - table[stay.begin]
        seen = self.schedule.requests["visible_step"] != NULL
        for request in np.flatnonzero(seen & (self.schedule.requests["replica"] == self.replica)).tolist():
            if int(self.schedule.requests["outcome"][request]) not in (REJECTED, REDIRECTED):
                waited[BEFORE, request, ARRIVED] = self.unseen_ns(request)
        return waited

    def waiting_at(self, step: int) -> list[Stay]:
        """Return the stays that a step is part of, in order of request."""
        return sorted((s for s in self.every_stay() if s.begin <= step < s.end), key=lambda s: s.request)


def lanes_of(schedule: Schedule) -> list[Lane]:
    """Return the replicas that have run a step."""
    return [Lane(schedule, r) for r in np.unique(schedule.steps["replica"]).tolist()]
