"""What a run leaves behind: a log, compact as the engine writes it, and the tables that everything else reads.

A stretch of decode-only steps is one row of the log; :mod:`sim.tables` makes the tables of it.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field
from struct import Struct
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Columns = dict[str, NDArray[Any]]

FINISHED, REJECTED, REDIRECTED, UNFINISHED = range(4)
OUTCOMES = ("finished", "rejected", "redirected", "unfinished")

NULL = -1
"""Stands for a missing value in integer columns; the tables on disk have nulls."""

STEP_ROW = (
    "start_ns",
    "n_decode",
    "decode_context",
    "decode_context_max",
    "n_prefill",
    "prefill_tokens",
    "prefill_pairs",
    "waiting",
    "granted_tokens",
    "exception",
    "repeat",
)
pack_step = Struct(f"{len(STEP_ROW)}q").pack

CHUNK_COLUMNS = ("step", "request", "tokens")

PREEMPTION_COLUMNS = ("step", "request", "after", "until")
"""The step that preempted a request, and the steps of its last token before and its next token after; -1: none."""

NO_PREEMPTIONS: Columns = {name: np.empty(0, dtype=np.int64) for name in PREEMPTION_COLUMNS}


def integers(values: Iterable[int] = ()) -> array[int]:
    """Return a growing column of 64-bit integers, which takes 8 bytes for each and no objects."""
    return array("q", values)


@dataclass
class RunLog:
    """What the engine writes while it runs; one slot per request, one packed row per step or stretch."""

    n: int
    steps: bytearray = field(default_factory=bytearray)
    durations: array[int] = field(default_factory=integers)
    predicted: array[int] = field(default_factory=integers)
    """Empty where the policy's cost model is the engine's: then prediction and duration are equal."""
    chunks: dict[str, array[int]] = field(default_factory=lambda: {c: integers() for c in CHUNK_COLUMNS})
    """What was prefilled, in batch order; ``request`` is the index in the trace."""
    reasons: dict[int, str] = field(default_factory=dict)
    kv_blocks: array[int] = field(default_factory=integers)
    """Blocks in use after each step's share was taken; empty where no cache counts blocks."""
    decided: array[int] = field(default_factory=integers)
    """When each row of ``steps`` was decided, and in a stretch every further step when the one before it started; empty
    where every step was decided at its start."""
    visible: list[int] = field(default_factory=list)
    """The step at which each request became visible; empty where it is the first decided at or after its arrival."""
    stopped: dict[int, int] = field(default_factory=dict)
    """By request that was broken off between two of its tokens, the step of its latest one."""
    busy: array[int] = field(default_factory=integers)
    """The mean over a pipeline's stages of the time they worked on each step; empty without a pipeline."""
    stalls: dict[int, int] = field(default_factory=dict)
    """By step, how long it waited for blocks from CPU memory."""
    preemptions: list[list[int]] = field(default_factory=list)
    """See :data:`PREEMPTION_COLUMNS`."""
    interrupted: dict[int, list[int]] = field(default_factory=dict)
    """By preempted request, the rows of ``preemptions`` after which it has not got a token yet."""
    outcome: list[int] = field(init=False)
    first_token: list[int] = field(init=False)
    finished: list[int] = field(init=False)
    cached: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.outcome = [UNFINISHED] * self.n
        self.first_token = [NULL] * self.n
        self.finished = [NULL] * self.n
        self.cached = [0] * self.n

    def preempt(self, request: int, step: int, decoding: bool) -> None:
        """Note that ``request`` was preempted in ``step``."""
        open_rows = self.interrupted.setdefault(request, [])
        after = step - 1 if decoding else self.preemptions[open_rows[-1]][2] if open_rows else NULL
        open_rows.append(len(self.preemptions))
        self.preemptions.append([step, request, after, NULL])

    def resume(self, request: int, step: int) -> None:
        """Note that ``request`` got its next token after a preemption in ``step``."""
        for row in self.interrupted[request]:
            self.preemptions[row][3] = step
        self.interrupted[request].clear()


class Tables(Protocol):
    """The expanded tables as dictionaries of equally long columns, in trace and step order."""

    @property
    def requests(self) -> Columns:
        """One row per request; see :func:`sim.tables.request_table`."""

    @property
    def steps(self) -> Columns:
        """One row per step; see :func:`sim.tables.step_table`."""

    @property
    def chunks(self) -> Columns:
        """Columns ``step``, ``request`` (index) and ``tokens``: what was prefilled, in batch order.

        The one token that a preempted request lacks when it finds all others cached is here too, though its step counts
        it as a decode.
        """

    @property
    def preemptions(self) -> Columns:
        """One row per preemption: ``step``, ``request`` (index), ``after`` and ``until``.

        The last two are the steps of the request's last token before and of its next one after, -1 where there is
        none.
        """

    @property
    def reasons(self) -> dict[int, str]:
        """Why a request was turned away, by index."""
