"""KV-cache memory as the engine asks for it."""

from __future__ import annotations

from typing import Protocol


class KVCache(Protocol):
    """What the engine asks of KV memory and the prefix cache."""

    tracks: bool
    """False: the cache never hits and keeps no account, so the engine need not ask."""

    def hit_tokens(self, index: int) -> int:
        """Return how many leading tokens of request ``index`` are cached now; no side effect."""

    def start(self, index: int) -> int:
        """Take the hit blocks of a request that starts, and return its cached tokens."""

    def finish(self, index: int) -> None:
        """Give back the blocks of a request that has finished."""


class NullCache:
    """Unlimited memory that never hits."""

    tracks = False

    def hit_tokens(self, index: int) -> int:
        """Return 0."""
        return 0

    def start(self, index: int) -> int:
        """Return 0."""
        return 0

    def finish(self, index: int) -> None:
        """Do nothing."""
