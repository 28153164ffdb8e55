"""KV-cache memory as the engine asks for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from sim.least import FAR


class KVCache(Protocol):
    """What the engine asks of KV memory and the prefix cache.

    Requests are named by their index in the trace. ``tokens`` is what a request has to prefill: its prompt, and after
    a preemption its outputs so far. ``computed`` tokens are in the cache or scheduled in this step.
    """

    tracks: bool
    """False: the cache never hits and keeps no account, so the engine need not ask."""
    paged: bool
    """Whether running requests hold blocks, so that they may have to wait for them, or be preempted."""
    block_size: int
    """Tokens of a block."""
    free: int
    """Blocks that can be taken now, cached ones that nobody holds included."""
    capacity: int
    """Blocks that can be taken when nobody holds any."""
    stall_ns: int
    """How long the step about to run waits for blocks that are on their way from CPU memory; the engine resets it."""

    def refusal(self, index: int) -> str | None:
        """Return why request ``index`` could never run, ``None`` where it can."""

    def hit_tokens(self, index: int, tokens: int) -> int:
        """Return how many leading tokens of a request with ``tokens`` to prefill are cached now; no side effect."""

    def fits(self, index: int, tokens: int, reserve: int) -> bool:
        """Return whether a request that waits can start while ``reserve`` free blocks are spoken for."""

    def start(self, index: int, tokens: int, now: int) -> int:
        """Take the hit blocks of a request that starts and fits, and return its cached tokens."""

    def missing(self, index: int, computed: int) -> int:
        """Return how many more blocks a started request needs to hold ``computed`` tokens."""

    def extend(self, index: int, computed: int) -> None:
        """Take those blocks, which must be free; the prompt's full ones can be hit at once."""

    def take(self, blocks: int) -> None:
        """Take free blocks for tokens that are decoded; :meth:`finish` tells later whose they were."""

    def finish(self, index: int, computed: int, known: int | None = None) -> None:
        """Give back all blocks of a request that has finished or is preempted.

        Of its ``computed`` tokens only the ``known`` ones can be hit, all by default: what it has just decoded may not
        be there yet.
        """

    def watch(self, index: int) -> None:
        """Report, in :meth:`changes`, when the cached tokens of a waiting request may have changed."""

    def unwatch(self, index: int) -> None:
        """Stop doing so."""

    def changes(self) -> Sequence[int]:
        """Return the watched requests whose hits may have changed since the last call, in any order."""

    def prefetch(self, index: int, tokens: int, now: int) -> None:
        """Begin to bring the blocks of the request about to run into GPU memory, while another one runs."""


class NullCache:
    """Unlimited memory that never hits."""

    tracks = paged = False
    block_size = 1
    free = capacity = FAR
    stall_ns = 0

    def refusal(self, index: int) -> str | None:
        """Return ``None``."""
        return None

    def hit_tokens(self, index: int, tokens: int) -> int:
        """Return 0."""
        return 0

    def fits(self, index: int, tokens: int, reserve: int) -> bool:
        """Return that it does."""
        return True

    def start(self, index: int, tokens: int, now: int) -> int:
        """Return 0."""
        return 0

    def missing(self, index: int, computed: int) -> int:
        """Return 0."""
        return 0

    def extend(self, index: int, computed: int) -> None:
        """Do nothing."""

    def take(self, blocks: int) -> None:
        """Do nothing."""

    def finish(self, index: int, computed: int, known: int | None = None) -> None:
        """Do nothing."""

    def watch(self, index: int) -> None:
        """Do nothing."""

    def unwatch(self, index: int) -> None:
        """Do nothing."""

    def changes(self) -> Sequence[int]:
        """Return that nothing ever changes."""
        return ()

    def prefetch(self, index: int, tokens: int, now: int) -> None:
        """Do nothing."""
