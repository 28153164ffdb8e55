"""The columnar request trace: what arrives, when, and with which content."""

from __future__ import annotations

import difflib
import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.int64]

LATEST_NS = 2**62
"""All times of a trace are below this, half of what 64 bits hold, so that sums of times fit too."""

NONE = -1
"""Stands for "no objective" in the integer columns ``slo_ttft_ns`` and ``slo_tpot_ns``."""


class TraceError(ValueError):
    """A trace that cannot be used; the message names file, line and column where they are known."""

    @classmethod
    def unknown(cls, what: str, name: str, known: Iterable[str]) -> TraceError:
        """Return the error of a name that is none of ``known``, with the nearest of them."""
        known = list(known)
        near = difflib.get_close_matches(name, known, 1, 0.5)
        hint = f"; did you mean {near[0]}?" if near else ""
        return cls(f"unknown {what} {name}{hint} ({what.split()[-1]}s: {', '.join(known)})")


@dataclass(frozen=True, eq=False)
class Segments:
    """Prompt content of all requests as runs of tokens, in compressed-row form.

    Request ``i`` is made of segments ``offsets[i]:offsets[i + 1]``. Equal ids mean equal tokens; a
    shorter use of an id is a prefix of a longer one. The tokens of a request's segments add up to its
    prompt length.
    """

    offsets: IntArray
    """Shape (requests + 1,), non-decreasing, starting at 0."""
    ids: IntArray
    """Shape (segments,), content ids."""
    tokens: IntArray
    """Shape (segments,), tokens of each segment, at least 1."""

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Segments):
            return NotImplemented
        return all(np.array_equal(getattr(self, c), getattr(other, c)) for c in ("offsets", "ids", "tokens"))

    def select(self, rows: IntArray) -> Segments:
        """Return the segments of the given requests, in the given order."""
        counts = np.diff(self.offsets)[rows]
        offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        within = np.arange(offsets[-1], dtype=np.int64) - np.repeat(offsets[:-1], counts)
        at = np.repeat(self.offsets[rows], counts) + within
        return Segments(offsets, self.ids[at], self.tokens[at])

    def of(self, row: int) -> list[tuple[int, int]]:
        """Return request ``row``'s ``(content id, tokens)`` pairs."""
        lo, hi = int(self.offsets[row]), int(self.offsets[row + 1])
        return list(zip(self.ids[lo:hi].tolist(), self.tokens[lo:hi].tolist(), strict=True))


@dataclass(frozen=True, eq=False)
class Trace:
    """Requests sorted by arrival, one array per column, all of length ``n``.

    Traces are equal where their columns, content and names are; warnings do not count.

    Raises:
        TraceError: if lengths differ, arrivals are unsorted or negative, a token count is below 1, or
            the segments do not add up to the prompts.
    """

    arrival_ns: IntArray
    prompt_tokens: IntArray
    output_tokens: IntArray
    segments: Segments | None = None
    """``None``: every prompt is unlike every other."""
    session: NDArray[Any] | None = None
    """Strings naming the user or conversation, ``None`` for none."""
    tenant: NDArray[Any] | None = None
    """Strings naming the service class, ``None`` for none; policies may reserve a margin for each."""
    slo_ttft_ns: IntArray | None = None
    slo_tpot_ns: IntArray | None = None
    id: NDArray[Any] | None = None
    """Unique labels; ``None`` means the request's position."""
    row: IntArray | None = None
    """Position of each request in its file, where sorting changed it."""
    name: str = "trace"
    warnings: tuple[str, ...] = ()
    """What a reader repaired or left out, one sentence each."""

    def __post_init__(self) -> None:
        n = len(self.arrival_ns)
        for column in self.COLUMNS:
            values = getattr(self, column)
            if values is not None and len(values) != n:
                raise TraceError(f"trace {self.name}: column {column} has {len(values)} rows instead of {n}")
        if n == 0:
            return
        if np.any(np.diff(self.arrival_ns) < 0):
            raise TraceError(f"trace {self.name}: arrival_ns is not sorted")
        if self.arrival_ns[0] < 0:
            raise TraceError(f"trace {self.name}: arrival_ns has negative times")
        if self.arrival_ns[-1] >= LATEST_NS:
            raise TraceError(f"trace {self.name}: arrival_ns has times of 2**62 ns or later")
        for column in ("prompt_tokens", "output_tokens"):
            low = np.flatnonzero(getattr(self, column) < 1)
            if len(low):
                raise TraceError(
                    f"trace {self.name}: request {low[0]} has {column} {getattr(self, column)[low[0]]}, "
                    "which must be at least 1"
                )
        for column in ("slo_ttft_ns", "slo_tpot_ns"):
            values = getattr(self, column)
            if values is not None and np.any((values < 1) & (values != NONE)):
                raise TraceError(f"trace {self.name}: {column} must be at least 1, or {NONE} for no objective")
        if self.id is not None and len(set(self.id.tolist())) != n:
            raise TraceError(f"trace {self.name}: request ids are not unique")
        if self.segments is not None:
            self._check_segments(self.segments)

    COLUMNS = (
        "arrival_ns",
        "prompt_tokens",
        "output_tokens",
        "session",
        "tenant",
        "slo_ttft_ns",
        "slo_tpot_ns",
        "id",
        "row",
    )

    def _check_segments(self, segments: Segments) -> None:
        if len(segments.offsets) != len(self) + 1:
            raise TraceError(
                f"trace {self.name}: segments describe {len(segments.offsets) - 1} of {len(self)} requests"
            )
        if len(segments.tokens) and segments.tokens.min() < 1:
            raise TraceError(f"trace {self.name}: a content segment has no tokens")
        ends = np.concatenate([[0], np.cumsum(segments.tokens)])[segments.offsets]
        wrong = np.flatnonzero(np.diff(ends) != self.prompt_tokens)
        if len(wrong):
            i = int(wrong[0])
            raise TraceError(
                f"trace {self.name}: the content segments of request {i} hold {int(ends[i + 1] - ends[i])} "
                f"tokens instead of {int(self.prompt_tokens[i])}"
            )

    def __len__(self) -> int:
        return len(self.arrival_ns)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Trace):
            return NotImplemented
        if self.name != other.name or self.segments != other.segments:
            return False
        for column in self.COLUMNS:
            ours, theirs = getattr(self, column), getattr(other, column)
            if (ours is None) != (theirs is None) or (ours is not None and ours.tolist() != theirs.tolist()):
                return False
        return True

    @property
    def ids(self) -> NDArray[Any]:
        """Labels of the requests, shape (n,)."""
        return np.arange(len(self), dtype=np.int64) if self.id is None else self.id

    def select(self, rows: IntArray) -> Trace:
        """Return the trace of the given rows, in the given order."""
        changes: dict[str, Any] = {c: v[rows] for c in self.COLUMNS if (v := getattr(self, c)) is not None}
        if self.segments is not None:
            changes["segments"] = self.segments.select(rows)
        return replace(self, **changes)

    def limit(self, n: int) -> Trace:
        """Return the first ``n`` requests, all of them where there are fewer.

        Raises:
            TraceError: if ``n`` is negative.
        """
        if n < 0:
            raise TraceError(f"a trace cannot be limited to {n} requests")
        return self if n >= len(self) else self.select(np.arange(n, dtype=np.int64))

    def scale_rate(self, factor: float) -> Trace:
        """Return the trace with arrivals ``factor`` times as dense (gaps divided by ``factor``).

        Raises:
            TraceError: if the factor is not a positive number, or so small that times do not fit into 64 bits.
        """
        if not (np.isfinite(factor) and factor > 0):
            raise TraceError(f"the rate scale must be a positive number, not {factor}")
        if len(self) and float(self.arrival_ns[-1]) >= LATEST_NS * factor:
            raise TraceError(f"the rate scale {factor} puts arrivals later than 64 bits of nanoseconds can say")
        return replace(self, arrival_ns=np.rint(self.arrival_ns / factor).astype(np.int64))

    def with_arrivals(self, arrivals: Callable[[int], IntArray]) -> Trace:
        """Return the trace with the arrival times that ``arrivals(n)`` gives, requests in the same order."""
        return replace(self, arrival_ns=arrivals(len(self)))

    def digest(self) -> str:
        """Return a hash of everything a run can depend on, equal across machines."""
        h = hashlib.sha256()
        parts: list[tuple[str, Any]] = [(c, getattr(self, c)) for c in self.COLUMNS if c != "row"]
        if self.segments is not None:
            parts += [("offsets", self.segments.offsets), ("ids", self.segments.ids), ("tokens", self.segments.tokens)]
        for column, values in parts:
            if values is None:
                continue
            h.update(column.encode())
            if values.dtype.kind in "iu":
                h.update(np.ascontiguousarray(values, dtype="<i8").tobytes())
            else:
                # The spelling of a string in Python tells where it ends, and None from "None".
                h.update(repr(values.tolist()).encode())
        return h.hexdigest()[:16]
