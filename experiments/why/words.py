"""One request's story in words, equal steps in one line."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import Any

import numpy as np

from experiments.output import number
from experiments.why.reasons import ARRIVED, BUDGET, KV, MEANINGS, PHASES, PREFILLS, RANK, REASONS, SEATS, Lane, Stay
from policies.units import MS
from sim.records import FINISHED, NULL, REDIRECTED, REJECTED, Columns

NAMED = 3
"""Others that a line names."""

SIZES = 8
"""Chunks that a line gives one by one."""

Event = dict[str, Any]


class Teller:
    """Tells of the requests of one replica."""

    def __init__(self, lane: Lane, requests: Columns) -> None:
        self._lane, self._requests = lane, requests

    def story(self, request: int) -> list[Event]:
        """Return what happened to a request, in order of time: waiting by reason, chunks, preemptions, its end."""
        requests, lane = self._requests, self._lane
        arrival, outcome = int(requests["arrival_ns"][request]), int(requests["outcome"][request])
        if outcome in (REJECTED, REDIRECTED):
            what = "rejected" if outcome == REJECTED else "redirected"
            return [self._event(arrival, arrival, None, what, what, str(requests["reason"][request]))]
        visible = int(requests["visible_step"][request])
        if visible == NULL:
            return [self._event(arrival, arrival, None, "unseen", REASONS[ARRIVED], "no step has seen it")]
        events = []
        if unseen := lane.unseen_ns(request):
            text = f"{MEANINGS[ARRIVED]}: step {visible} is the first that sees it"
            events.append(self._event(arrival, arrival + unseen, None, PHASES[0], REASONS[ARRIVED], text))
        lives = [life for life in lane.lives if life.request == request]
        for stay in (s for s in lane.stays if s.request == request):
            events += self._stay(stay)
        for k, life in enumerate(lives):
            for pause in lane.pauses(life):
                events += self._stay(pause)
            events += self._chunks(life.chunks, again=k > 0)
        events += self._end(request)
        return sorted(events, key=lambda e: (e["from_ms"], e["to_ms"]))

    def _event(self, begin: int, end: int, steps: tuple[int, int] | None, state: str, reason: str, text: str) -> Event:
        first = self._lane.first
        return {
            "from_ms": begin / MS,
            "to_ms": end / MS,
            "steps": None if steps is None else [steps[0] + first, steps[1] + first],
            "state": state,
            "reason": reason,
            "text": text,
        }

    def _stay(self, stay: Stay) -> Iterator[Event]:
        lane = self._lane
        at = stay.begin
        for code, equal in groupby(lane.reasons(stay).tolist()):
            end = at + len(list(equal))
            text = self._why(stay.request, code, at, end)
            times = int(lane.edges[at]), int(lane.edges[end])
            yield self._event(*times, (at, end - 1), PHASES[stay.phase], REASONS[code], text)
            at = end

    def _why(self, request: int, code: int, begin: int, end: int) -> str:
        lane, steps = self._lane, self._lane.steps
        if code == RANK:
            return self._overtaken(request, begin, end)
        if code in (BUDGET, PREFILLS):
            granted = steps["granted_tokens"][begin:end]
            most = int(granted.max())
            if most <= 0:
                return "no tokens were granted for prefills"
            what = "the tokens of the grant went to" if code == BUDGET else "the step's prefills were"
            return f"{what} {self._prefilling(begin, end)}, {_range(granted)} tokens a step"
        if code == SEATS:
            return f"{lane.schedule.seats} requests ran, as many as may at once"
        if code == KV:
            return self._short(request, begin, end)
        return MEANINGS[code]

    def _overtaken(self, request: int, begin: int, end: int) -> str:
        arrival = self._requests["arrival_ns"]
        started = [life.request for life in self._lane.lives if begin <= life.begin < end and life.request != request]
        later = sum(bool((arrival[r], r) > (arrival[request], request)) for r in started)
        tail = f"; {later} of them arrived later" if later else ""
        return f"{len(started)} other{'s'[: len(started) != 1]} started: {self._named(started)}{tail}"

    def _prefilling(self, begin: int, end: int) -> str:
        table = self._lane.chunks
        lo, hi = np.searchsorted(table["step"], [begin, end])
        return self._named(list(dict.fromkeys(table["request"][lo:hi].tolist()))) or "nobody"

    def _short(self, request: int, begin: int, end: int) -> str:
        schedule = self._lane.schedule
        used, blocks = self._lane.steps["kv_blocks"][begin:end], schedule.blocks
        if blocks is None or used.min() < 0:
            return MEANINGS[KV]
        fills = -(-int(self._requests["prompt_tokens"][request]) // schedule.block_size)
        return f"{_range(blocks - used)} of {blocks:,} KV blocks free; its prompt fills {fills:,}"

    def _named(self, requests: list[int]) -> str:
        shown = ", ".join(str(self._requests["id"][r]) for r in requests[:NAMED])
        more = len(requests) - NAMED
        return f"{shown} and {more} more" if more > 0 else shown

    def _chunks(self, chunks: tuple[tuple[int, int], ...], again: bool) -> Iterator[Event]:
        """Yield an event for each stretch of steps in which it prefilled."""
        for _, part in groupby(enumerate(chunks), key=lambda item: item[1][0] - item[0]):
            row = [chunk for _, chunk in part]
            first, last = row[0][0], row[-1][0]
            sizes = ", ".join(f"{tokens:,}" for _, tokens in row[:SIZES])
            more = f" and {len(row) - SIZES} more chunks" if len(row) > SIZES else ""
            text = f"prefilled {'again, ' if again else ''}{sizes}{more} tokens"
            times = int(self._lane.edges[first]), int(self._lane.ends[last])
            yield self._event(*times, (first, last), "prefilling", "", text)

    def _end(self, request: int) -> Iterator[Event]:
        requests = self._requests
        first, last = int(requests["first_token_ns"][request]), int(requests["finished_ns"][request])
        arrival = int(requests["arrival_ns"][request])
        if first >= 0:
            yield self._event(first, first, None, "first token", "", f"{_ms(first - arrival)} after arrival")
        if requests["outcome"][request] == FINISHED:
            yield self._event(last, last, None, "finished", "", f"{_ms(last - arrival)} after arrival")


def _range(values: Any) -> str:
    least, most = int(values.min()), int(values.max())
    return f"{least:,}" if least == most else f"{least:,} to {most:,}"


def _ms(ns: int) -> str:
    return f"{number(ns / MS)} ms"
