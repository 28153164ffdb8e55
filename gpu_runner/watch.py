"""Which waiting requests a cache event touches."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence


class CacheWatch:
    """Waiting requests by the hashes of their blocks.

    Telling what an event touches costs a lookup per block that was stored or evicted, whatever the queue.
    """

    def __init__(self) -> None:
        self._numbers: dict[Hashable, set[int]] = {}
        self._hashes: dict[int, Sequence[Hashable]] = {}

    def __contains__(self, number: int) -> bool:
        return number in self._hashes

    def watch(self, number: int, hashes: Sequence[Hashable]) -> None:
        """Report events of these blocks as touching request ``number``."""
        self._hashes[number] = hashes
        for h in hashes:
            self._numbers.setdefault(h, set()).add(number)

    def unwatch(self, number: int) -> None:
        """Stop doing so; not to watch it is no error."""
        for h in self._hashes.pop(number, ()):
            numbers = self._numbers.get(h)
            if numbers is not None:
                numbers.discard(number)
                if not numbers:
                    del self._numbers[h]

    def shared(self, hashes: Sequence[Hashable]) -> int:
        """Return how many leading ones of these blocks some watched request has too."""
        for i, h in enumerate(hashes):
            if h not in self._numbers:
                return i
        return len(hashes)

    def touched(self, changed: Iterable[Hashable | None]) -> list[int]:
        """Return the requests that events touch, in order; ``None`` among the hashes touches all."""
        numbers: set[int] = set()
        for h in changed:
            if h is None:
                return sorted(self._hashes)
            numbers |= self._numbers.get(h, set())
        return sorted(numbers)
