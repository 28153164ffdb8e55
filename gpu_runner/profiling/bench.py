"""Makes an engine run exactly one wanted step, and says what ran and how long it took."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from costmodels.profile import ProfileError
from gpu_runner.profiling.grid import Capacity, Cell


class CellError(ProfileError):
    """A step that the engine would not run as wanted; the other cells go on."""


class Span(NamedTuple):
    """One request's share of a step."""

    start: int
    """Tokens that it had computed before."""
    tokens: int
    decode: bool


class Ran(NamedTuple):
    """A step that ran."""

    spans: tuple[Span, ...]
    duration_ns: int
    """From its decision to the next: scheduling, execution, sampling and what follows."""
    host_ns: int | None
    """Of these, outside the model's execution; ``None`` where the engine does not tell."""


class Sample(NamedTuple):
    """A measured step of a cell."""

    features: tuple[int, ...]
    """In the order of :data:`costmodels.profile.FEATURES`, of what really ran."""
    duration_ns: int
    host_ns: int | None


@dataclass(frozen=True)
class Facts:
    """What was measured, on what."""

    setting: Mapping[str, Any]
    """The columns of :data:`costmodels.profile.SETTING`."""
    key: Mapping[str, Any]
    """All that must be the same for rows of two sessions to be one profile, as JSON."""


class Bench(Protocol):
    """An engine whose steps can be measured one by one."""

    @property
    def capacity(self) -> Capacity:
        """What it can hold."""

    def facts(self) -> Facts:
        """Say what is measured."""

    def why_not(self, cell: Cell) -> str | None:
        """Say why a cell does not fit; ``None`` if it does."""

    def measure(self, cell: Cell) -> Sample:
        """Run one step of the cell.

        Raises:
            CellError: if the engine ran another step than the one wanted, however often it was tried.
        """

    def power_mw(self, cell: Cell) -> int | None:
        """Return the mean power of such steps in a row, in mW of all devices; ``None`` where none is known.

        Raises:
            CellError: as :meth:`measure`.
        """


class StepEngine(Protocol):
    """An engine that runs one step at a time, running requests first, then waiting ones in order of adding."""

    @property
    def capacity(self) -> Capacity:
        """What it can hold."""

    def facts(self) -> Facts:
        """Say what is measured."""

    def add(self, name: str, ids: Sequence[int], output_tokens: int) -> None:
        """Queue a request."""

    def drop(self, names: Sequence[str]) -> None:
        """Forget requests, finished ones included; their full blocks stay in the prefix cache."""

    def step(self, budget: int) -> Ran:
        """Run one step of at most so many tokens."""

    def clear_cache(self) -> None:
        """Empty the prefix cache; nothing is running."""


def features(spans: Sequence[Span]) -> tuple[int, ...]:
    """Return a step's features in the order of :data:`costmodels.profile.FEATURES`."""
    contexts = [s.start for s in spans if s.decode]
    chunks = [(s.tokens, s.start) for s in spans if not s.decode]
    pairs = sum(c * context + c * (c + 1) // 2 for c, context in chunks)
    return len(contexts), sum(contexts), max(contexts, default=0), len(chunks), sum(c for c, _ in chunks), pairs


def wanted(cell: Cell) -> tuple[Span, ...]:
    """Return the shares that a cell's step has, sorted."""
    decodes = [Span(cell.decode_context, 1, True)] * cell.n_decode
    return tuple(sorted([*decodes, *(Span(cell.prefill_context, c, False) for c in cell.chunks)]))
