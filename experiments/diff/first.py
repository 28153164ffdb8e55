"""Where two runs of the same requests part: the first step that differs, both states, and what it came to."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path

import numpy as np

from experiments.config import ConfigError
from experiments.diff.states import Document, Known, differing, state
from experiments.recorded import Recorded
from policies.units import MS
from sim.records import NULL, OUTCOMES, Columns
from traces.schema import IntArray

TIMES = ("decided_ns", "start_ns", "duration_ns")

COUNTS = ("n_decode", "decode_context", "n_prefill", "prefill_tokens")
"""What steps are compared by where nobody knows who was in them."""

SUMMARY = (
    *("goodput", "slo_attainment", "ttft_mean_ms", "ttft_p99_ms", "tpot_p99_ms", "jct_mean_ms", "jct_p99_ms"),
    *("longest_wait_ms", "queue_mean", "preemptions", "hit_rate", "rejected", "unfinished"),
)

CHANGED = 5
"""Requests that the totals name on either side."""


@dataclass(frozen=True)
class Parting:
    """The first step in which two runs differ. Steps count from the replica's first one."""

    replica: int
    step: int
    what: str


@dataclass(frozen=True)
class Diff:
    """Two runs of the same requests compared."""

    a: Known = field(repr=False)
    b: Known = field(repr=False)
    decisions: Parting | None
    """``None`` where every step had the same requests with the same tokens in the same order."""
    times: Parting | None
    """``None`` where every step was decided, began and ended at the same time."""
    with_times: bool
    """Whether times must be equal too for the runs to be."""

    @property
    def equal(self) -> bool:
        """Whether the runs are the same as far as was asked for."""
        return self.decisions is None and not self._other_ends() and not (self.with_times and self.times is not None)

    def _other_ends(self) -> list[int]:
        """Return the requests that only one of the runs has finished, or turned away."""
        one, other = self.a.requests["outcome"], self.b.requests["outcome"]
        n = min(len(one), len(other))
        found: list[int] = np.flatnonzero(one[:n] != other[:n]).tolist()
        return found

    def document(self) -> Document:
        """Return the JSON form."""
        return {
            "equal": self.equal,
            "a": self.a.head(),
            "b": self.b.head(),
            "requests": min(len(self.a.requests["arrival_ns"]), len(self.b.requests["arrival_ns"])),
            "notes": self._notes(),
            "decisions": self._first(self.decisions),
            "times": self._first(self.times) if self.with_times else None,
            "totals": self._totals(),
        }

    def _first(self, parting: Parting | None) -> Document | None:
        if parting is None:
            return None
        sides = {name: state(known, parting.replica, parting.step) for name, known in (("a", self.a), ("b", self.b))}
        return {
            "replica": parting.replica,
            "step_of_replica": parting.step,
            "what": parting.what,
            "before": state(self.a, parting.replica, parting.step - 1),
            **sides,
            "only": differing(sides["a"], sides["b"]),
        }

    def _notes(self) -> list[str]:
        notes = [known.note for known in (self.a, self.b) if known.note is not None]
        n, m = (len(known.requests["arrival_ns"]) for known in (self.a, self.b))
        if n != m:
            notes.append(f"one has {n} requests and the other {m}: the first {min(n, m)} are compared")
        paces = [_pace(known.run) for known in (self.a, self.b)]
        if paces[0] != paces[1]:
            notes.append(f"requests came {paces[0]} in the one and {paces[1]} in the other")
        return notes

    def _totals(self) -> Document:
        one, other = self.a.requests, self.b.requests
        n = min(len(one["arrival_ns"]), len(other["arrival_ns"]))
        ids = [str(v) for v in one["id"][:n].tolist()]
        begin = self._parted_ns()
        summaries = {}
        for key in SUMMARY:
            mine, theirs = self.a.run.summary.get(key), self.b.run.summary.get(key)
            if mine is not None or theirs is not None:
                change = None if mine is None or theirs is None else theirs - mine
                summaries[key] = {"a": mine, "b": theirs, "change": change}
        return {
            "steps": {"a": len(self.a.steps["start_ns"]), "b": len(self.b.steps["start_ns"])},
            "started_before": None if begin is None else self._started_before(begin, n),
            "ttft": _changes(one["ttft_ns"][:n], other["ttft_ns"][:n], ids),
            "jct": _changes(one["jct_ns"][:n], other["jct_ns"][:n], ids),
            "outcomes": [
                {"request": ids[i], "a": OUTCOMES[one["outcome"][i]], "b": OUTCOMES[other["outcome"][i]]}
                for i in self._other_ends()
            ],
            "summary": summaries,
        }

    def _parted_ns(self) -> int | None:
        """Return when the decisions part, on the clock of the first run; ``None`` where they do not."""
        if self.decisions is None:
            return None
        starts = self.a.of_replica(self.decisions.replica)["start_ns"]
        return int(starts[self.decisions.step]) if self.decisions.step < len(starts) else int(starts[-1])

    def _started_before(self, begin: int, n: int) -> int:
        started = self.a.requests["first_scheduled_ns"][:n]
        return int(((started >= 0) & (started < begin)).sum())


def diff(a: Recorded, b: Recorded, times: bool | None = None, plugins: Sequence[Path] = ()) -> Diff:
    """Compare two runs step by step.

    Args:
        a: with its tables.
        b: another run of the same requests.
        times: whether the times of steps must be equal too; by default where both are simulations.
        plugins: files of the policy parts that they used.

    Raises:
        ConfigError: if the two are runs of different requests, or were measured where steps are not seen.
    """
    _check_same_trace(a, b)
    one, other = Known.of(a, plugins), Known.of(b, plugins)
    with_times = times if times is not None else not (a.host or b.host)
    decisions = _earliest(_decisions(one, other, r) for r in _replicas(one, other))
    timed = _earliest(_times(one, other, r) for r in _replicas(one, other))
    return Diff(one, other, decisions and decisions[1], timed and timed[1], with_times)


def _check_same_trace(a: Recorded, b: Recorded) -> None:
    for run in (a, b):
        if run.host == "server":
            raise ConfigError(f"{run.path} was measured by a client, who does not see steps; give a run of an engine")
    if a.trace_hash != b.trace_hash:
        raise ConfigError(
            f"the runs are of different requests: {a.path} is of {a.trace}{_seed(a)} (hash {a.trace_hash}), "
            f"{b.path} of {b.trace}{_seed(b)} (hash {b.trace_hash}); give two runs of one trace and seed"
        )
    n = min(len(run.tables.requests["id"]) for run in (a, b))
    if (a.tables.requests["id"][:n] != b.tables.requests["id"][:n]).any():
        raise ConfigError(f"{a.path} and {b.path} say that they are of one trace, but their requests have other names")


def _seed(run: Recorded) -> str:
    return "" if run.seed is None else f", seed {run.seed}"


def _pace(run: Recorded) -> str:
    pace = run.info.get("replay")
    if not isinstance(pace, dict):
        return "at their times"
    if pace.get("saturate"):
        return "all at once"
    return f"at {pace['speed']} times the speed" if pace.get("speed", 1) != 1 else "at their times"


def _replicas(a: Known, b: Known) -> list[int]:
    found: list[int] = np.union1d(a.steps["replica"], b.steps["replica"]).tolist()
    return found


def _earliest(found: Iterable[tuple[int, Parting] | None]) -> tuple[int, Parting] | None:
    """Return the parting with the earliest time; replicas count their steps on their own."""
    return min((f for f in found if f is not None), key=lambda f: (f[0], f[1].replica), default=None)


def _timed(a: Known, b: Known, replica: int, step: int, what: str) -> tuple[int, Parting]:
    starts = [known.of_replica(replica)["start_ns"] for known in (a, b)]
    times = [int(s[step]) for s in starts if step < len(s)]
    return min(times, default=0), Parting(replica, step, what)


def _decisions(a: Known, b: Known, replica: int) -> tuple[int, Parting] | None:
    one, other = a.of_replica(replica), b.of_replica(replica)
    if a.batches is None or b.batches is None:
        step = _first_other([one[c] for c in COUNTS], [other[c] for c in COUNTS])
        return None if step is None else _timed(a, b, replica, step, _which(COUNTS, one, other, step))
    rows = [known.batches_of(replica) for known in (a, b)]
    columns = [[row[c] for c in ("step", "request", "tokens")] for row in rows]
    parted = _first_other(*columns)
    found = []
    if parted is not None:
        step = min(int(row["step"][parted]) for row in rows if parted < len(row["step"]))
        found.append((step, _what(rows, step, [len(one["start_ns"]), len(other["start_ns"])])))
    for mine, theirs in zip_longest(*(known.preempted_of(replica) for known in (a, b))):
        if mine != theirs:
            found.append((min(row[0] for row in (mine, theirs) if row is not None), "the preempted requests differ"))
            break
    if not found and len(one["start_ns"]) != len(other["start_ns"]):
        found.append((min(len(one["start_ns"]), len(other["start_ns"])), "only one of the two has such a step"))
    if not found:
        return None
    step, what = min(found)
    return _timed(a, b, replica, step, what)


def _what(rows: Sequence[Columns], step: int, sizes: Sequence[int]) -> str:
    if step >= min(sizes):
        return "only one of the two has such a step"
    batches = []
    for row in rows:
        own = row["step"] == step
        batches.append(list(zip(row["request"][own].tolist(), row["tokens"][own].tolist(), strict=True)))
    if sorted(batches[0]) == sorted(batches[1]):
        return "the order within the batch differs"
    names = [{request for request, _ in batch} for batch in batches]
    return "the same requests got other tokens" if names[0] == names[1] else "the batches have other requests"


def _times(a: Known, b: Known, replica: int) -> tuple[int, Parting] | None:
    one, other = a.of_replica(replica), b.of_replica(replica)
    step = _first_other([one[c] for c in TIMES], [other[c] for c in TIMES])
    return None if step is None else _timed(a, b, replica, step, _which(TIMES, one, other, step))


def _which(names: Sequence[str], one: Columns, other: Columns, step: int) -> str:
    if step >= min(len(one["start_ns"]), len(other["start_ns"])):
        return "only one of the two has such a step"
    name = next(n for n in names if one[n][step] != other[n][step])
    mine, theirs = int(one[name][step]), int(other[name][step])
    if name.endswith("_ns"):
        return f"{name.removesuffix('_ns')}: {mine / MS:.6f} ms and {theirs / MS:.6f} ms"
    return f"{name}: {mine} and {theirs}"


def _first_other(one: Sequence[IntArray], other: Sequence[IntArray]) -> int | None:
    """Return the first row in which columns differ, the end of the shorter ones included; ``None`` for none."""
    n, m = len(one[0]), len(other[0])
    common = min(n, m)
    differ = np.zeros(common, dtype=bool)
    for mine, theirs in zip(one, other, strict=True):
        differ |= mine[:common] != theirs[:common]
    if differ.any():
        return int(np.argmax(differ))
    return None if n == m else common


def _changes(one: IntArray, other: IntArray, ids: Sequence[str]) -> Document:
    """Return how many requests were earlier and later in the second run, and the ones that changed most; in ms."""
    both = (one != NULL) & (other != NULL)
    change = np.where(both, other - one, 0)
    order = np.argsort(change, kind="stable")
    named = [
        [{"request": ids[i], "a_ms": one[i] / MS, "b_ms": other[i] / MS} for i in chosen if sign * change[i] > 0]
        for sign, chosen in ((-1, order[:CHANGED].tolist()), (1, order[::-1][:CHANGED].tolist()))
    ]
    return {
        "earlier": int((change < 0).sum()),
        "later": int((change > 0).sum()),
        "same": int(both.sum() - (change != 0).sum()),
        "mean_change_ms": float(change[both].mean()) / MS if both.any() else None,
        "most_earlier": named[0],
        "most_later": named[1],
    }
