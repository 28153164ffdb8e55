"""Why requests waited: totals over a run, one request's whole story, and everybody who waited in one step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from experiments.chunks import chunks_of
from experiments.config import ConfigError
from experiments.recorded import HOSTS, Recorded
from experiments.why.again import CannotRemake, Remade, remake
from experiments.why.reasons import ARRIVED, BETWEEN, MEANINGS, PHASES, REASONS, Lane, Schedule, lanes_of
from experiments.why.words import Teller
from policies.base import PolicyError
from policies.registry import nearest
from policies.spec import PolicySpec
from policies.units import MS, NS
from sim.records import NULL, REDIRECTED, REJECTED, Columns
from sim.store import StoreError
from traces.schema import IntArray

SLOWEST = 10
"""Requests that the totals name."""

Document = dict[str, Any]


@dataclass(frozen=True)
class Why:
    """A run with what is known of its decisions."""

    run: Recorded
    lanes: list[Lane]
    remade: Remade | None
    note: str | None
    """Why the run was not made again, ``None`` where it was."""
    waited: IntArray = field(repr=False)
    """Nanoseconds, of shape (phases, requests, reasons)."""

    @property
    def requests(self) -> Columns:
        """The requests table."""
        return self.run.tables.requests

    def totals(self) -> Document:
        """Return the time waited by reason, over all requests and for those that waited longest."""
        total = self.waited.sum(axis=1)
        everything = int(total.sum())
        each = self.waited.sum(axis=0)
        reasons = []
        for k, name in enumerate(REASONS):
            reasons.append(
                {
                    "reason": name,
                    "meaning": MEANINGS[k],
                    "waited_s": total[:, k].sum() / NS,
                    "share": total[:, k].sum() / everything if everything else None,
                    **{f"{phase.replace(' ', '_')}_s": total[p, k] / NS for p, phase in enumerate(PHASES)},
                    "requests": int((each[:, k] > 0).sum()),
                    "longest_ms": each[:, k].max(initial=0) / MS,
                }
            )
        own = each.sum(axis=1)
        slowest = [i for i in np.argsort(-own, kind="stable")[:SLOWEST].tolist() if own[i] > 0]
        return {
            **self._head(),
            "requests": len(own),
            "waited_s": everything / NS,
            "reasons": reasons,
            "turned_away": self._turned_away(),
            "slowest": [
                {
                    "request": str(self.requests["id"][i]),
                    "waited_ms": own[i] / MS,
                    "by_reason_ms": {name: each[i, k] / MS for k, name in enumerate(REASONS) if each[i, k]},
                }
                for i in slowest
            ],
        }

    def request(self, name: str) -> Document:
        """Return one request's story, step by step, equal steps in one line.

        Raises:
            ConfigError: if there is no such request.
        """
        ids = [str(v) for v in self.requests["id"].tolist()]
        if name not in ids:
            raise ConfigError(f"--request {name!r}: the run has no such request{nearest(name, ids)}")
        i = ids.index(name)
        told = Teller(self.lane(int(self.requests["replica"][i])), self.requests).story(i)
        waited = self.waited[:, i].sum(axis=0)
        return {
            **self._head(),
            "request": name,
            "arrived_ms": int(self.requests["arrival_ns"][i]) / MS,
            "prompt_tokens": int(self.requests["prompt_tokens"][i]),
            "cached_tokens": max(0, int(self.requests["cached_tokens"][i])),
            "waited_ms": waited.sum() / MS,
            "by_reason_ms": {name: waited[k] / MS for k, name in enumerate(REASONS) if waited[k]},
            "story": told,
        }

    def step(self, number: int) -> Document:
        """Return everybody who waited in one step, and why.

        Args:
            number: as in the steps table.

        Raises:
            ConfigError: if there is no such step.
        """
        check_step(self.run, number)
        steps, requests = self.run.tables.steps, self.requests
        lane = self.lane(int(steps["replica"][number]))
        at = number - lane.first
        place = {r: k + 1 for k, r in enumerate(self.remade.order)} if self.remade and self.remade.order else {}
        begin = int(lane.edges[at])
        waiting = []
        for stay in lane.waiting_at(at):
            reason = REASONS[int((lane.limit if stay.phase == BETWEEN else lane.reason)[at])]
            row = self._one(stay.request, PHASES[stay.phase], reason, begin)
            waiting.append({**row, "place": place.get(stay.request)})
        waiting.sort(key=lambda row: (row["state"] != PHASES[BETWEEN], row["place"] or len(waiting) + 1))
        visible, arrival = requests["visible_step"], requests["arrival_ns"]
        unseen = (arrival < lane.edges[at + 1]) & ((visible > number) | (visible == NULL))
        unseen &= (requests["replica"] == lane.replica) & (arrival >= begin)
        waiting += [self._one(r, PHASES[0], REASONS[ARRIVED], begin) for r in np.flatnonzero(unseen).tolist()]
        refused = np.flatnonzero((visible == number) & np.isin(requests["outcome"], (REJECTED, REDIRECTED)))
        for r in refused.tolist():
            what = "rejected" if requests["outcome"][r] == REJECTED else "redirected"
            waiting.append(self._one(r, what, str(requests["reason"][r]), begin))
        return {**self._head(), **state_of(lane, at, self.requests), "waiting": waiting}

    def _one(self, r: int, state: str, reason: str, now_ns: int) -> Document:
        """Return one of those who wait in a step that began at a time."""
        requests, schedule = self.requests, self.lanes[0].schedule
        prompt, arrival = int(requests["prompt_tokens"][r]), int(requests["arrival_ns"][r])
        return {
            "request": str(requests["id"][r]),
            "place": None,
            "state": state,
            "arrived_ms": arrival / MS,
            "waited_ms": max(0, now_ns - arrival) / MS,
            "prompt_tokens": prompt,
            "prompt_blocks": None if schedule.blocks is None else -(-prompt // schedule.block_size),
            "reason": reason,
        }

    def lane(self, replica: int) -> Lane:
        """Return a replica.

        Raises:
            ConfigError: if it has run no step.
        """
        for lane in self.lanes:
            if lane.replica == replica:
                return lane
        raise ConfigError(f"replica {replica} has run no step, so there is nothing to tell")

    def _head(self) -> Document:
        return {"run": str(self.run.path), "policy": self.run.label, "trace": self.run.trace, "note": self.note}

    def _turned_away(self) -> list[Document]:
        """Return how many were turned away for what, equal but for the numbers in it; the words are the first one's."""
        found: dict[tuple[str, str], Document] = {}
        outcomes = self.requests["outcome"]
        for i in np.flatnonzero(np.isin(outcomes, (REJECTED, REDIRECTED))).tolist():
            what, reason = "rejected" if outcomes[i] == REJECTED else "redirected", str(self.requests["reason"][i])
            kind = what, "".join(c for c in reason if not c.isdigit())
            row = found.setdefault(kind, {"outcome": what, "reason": reason, "requests": 0})
            row["requests"] += 1
        return sorted(found.values(), key=lambda row: -int(row["requests"]))


def state_of(lane: Lane, at: int, requests: Columns) -> Document:
    """Return what one step was: times, decodes, who got how many tokens, and blocks."""
    row = {name: values[at] for name, values in lane.steps.items()}
    mine = lane.chunks["step"] == at
    pairs = zip(lane.chunks["request"][mine].tolist(), lane.chunks["tokens"][mine].tolist(), strict=True)
    grants = lane.schedule.grants
    grant = None if grants is None else grants.get(lane.first + at)
    blocks = int(row["kv_blocks"])
    return {
        "step": lane.first + at,
        "replica": lane.replica,
        "start_ms": int(row["start_ns"]) / MS,
        "duration_ms": int(row["duration_ns"]) / MS,
        "decodes": int(row["n_decode"]),
        "granted_tokens": int(row["granted_tokens"]),
        "prefills_at_most": None if grant is None else grant.prefills,
        "tokens_each_at_most": None if grant is None else grant.cap,
        "prefilled": [{"request": str(requests["id"][r]), "tokens": tokens} for r, tokens in pairs],
        "kv_blocks": None if blocks == NULL else blocks,
        "kv_blocks_at_most": lane.schedule.blocks,
        "ended_by": REASONS[int(lane.limit[at])] if lane.waiting_at(at) else None,
    }


def check_step(run: Recorded, number: int) -> None:
    """Refuse a step that a run does not have.

    Raises:
        ConfigError: if it does not.
    """
    steps = len(run.tables.steps["start_ns"])
    if not 0 <= number < steps:
        raise ConfigError(f"--step {number}: the run has {f'steps 0 to {steps - 1}' if steps else 'no steps'}")


def explain(run: Recorded, plugins: Sequence[Path] = (), watch: int | None = None) -> Why:
    """Find out why the requests of a run waited: by making it again, or else from its tables.

    Args:
        run: with its tables.
        plugins: files of the policy parts that it used.
        watch: a step for whose waiting requests their places in the policy's order are wanted.

    Raises:
        StoreError: if the tables do not tell either.
    """
    if watch is not None:
        check_step(run, watch)
    if run.host == "server":
        raise StoreError(f"{run.path} was measured by a client, who does not see steps; give a run of an engine")
    remade, note = None, None
    try:
        remade = remake(run, plugins, watch)
    except CannotRemake as e:
        note = f"told from the tables alone: {e}"
    schedule = schedule_of(run, remade)
    if schedule is None:
        raise StoreError(
            f"{run.path} cannot be explained: {note}; and its tables do not say who prefilled when, as they do with "
            "--batches"
        )
    lanes = lanes_of(schedule)
    n = len(schedule.requests["arrival_ns"])
    waited = sum((lane.waited_ns() for lane in lanes), np.zeros((len(PHASES), n, len(REASONS)), dtype=np.int64))
    return Why(run, lanes, remade, note, waited)


def schedule_of(run: Recorded, remade: Remade | None) -> Schedule | None:
    """Return what is known of a run's decisions, ``None`` where nothing tells who prefilled when."""
    chunks = chunks_of(run.tables) if remade is None else remade.tables.chunks
    if chunks is None:
        return None
    resolved = run.info.get("resolved")
    resolved = resolved if isinstance(resolved, dict) else {}
    engine = resolved.get("engine")
    engine = engine if isinstance(engine, dict) else {}
    memory = resolved.get("memory")
    memory = memory if isinstance(memory, dict) else {}
    pool = memory.get("regime") == "pool" and isinstance(memory.get("blocks"), int)
    return Schedule(
        run.tables.requests,
        run.tables.steps,
        chunks,
        run.tables.preemptions,
        None if remade is None else remade.grants,
        _seats(resolved.get("policy"), engine.get("max_num_seqs"), memory.get("regime") == "store"),
        engine.get("pipeline_depth") == 2,
        memory["blocks"] - 1 if pool else None,
        int(memory.get("block_size", 1)),
    )


def _seats(policy: Any, max_num_seqs: Any, one_at_a_time: bool) -> int | None:
    given = max_num_seqs if isinstance(max_num_seqs, int) else None
    try:
        return PolicySpec.from_dict(policy).build().chunking.seat_limit(1 if one_at_a_time else given)
    except PolicyError:
        return given


def host_of(run: Recorded) -> str:
    """Return what a run was made on, for people."""
    return HOSTS.get(run.host, run.host) if run.host else "simulator"
