"""The least of values that leave one by one at known steps."""

from __future__ import annotations

import heapq

FAR = 1 << 62
"""Later than any time or step."""


class LeastActive:
    """The least value among requests that still decode; they leave by the step in which they finish."""

    __slots__ = ("_heap", "until", "value")

    def __init__(self) -> None:
        self.value, self.until = FAR, -1
        self._heap: list[tuple[int, int]] = []

    def clear(self) -> None:
        """Forget all."""
        self.value, self.until = FAR, -1
        self._heap.clear()

    def add(self, value: int, finish_step: int) -> None:
        """Enter a value that counts up to and including ``finish_step``."""
        if value <= self.value:
            if finish_step < self.until:
                heapq.heappush(self._heap, (self.value, self.until))
            self.value, self.until = value, finish_step
        elif finish_step > self.until:  # what is neither less nor lasts longer can never become the least
            heapq.heappush(self._heap, (value, finish_step))

    def least(self, step: int) -> int:
        """Return the least value of those that finish at ``step`` or later, ``FAR`` where there is none."""
        while self.until < step:
            if not self._heap:
                self.value, self.until = FAR, -1
                return FAR
            self.value, self.until = heapq.heappop(self._heap)
        return self.value
