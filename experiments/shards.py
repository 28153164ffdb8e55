"""Shards: a sweep divided among the tasks of a job array."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from experiments.config import ConfigError

T = TypeVar("T")


@dataclass(frozen=True)
class Shard:
    """One of ``count`` parts that together are everything."""

    index: int
    """From 1 to ``count``."""
    count: int

    @classmethod
    def parse(cls, text: str) -> Shard:
        """Read ``i/n``.

        Raises:
            ConfigError: unless 1 ≤ i ≤ n.
        """
        match = re.fullmatch(r"([0-9]{1,9})/([0-9]{1,9})", text)
        shard = cls(int(match[1]), int(match[2])) if match else cls(0, 0)
        if not 1 <= shard.index <= shard.count:
            raise ConfigError(f"--shard {text}: it should be i/n with i from 1 to n, like 1/8 for the first of eight")
        return shard

    def of(self, items: Sequence[T]) -> list[T]:
        """Return this part: every ``count``-th, so that neighbours, which take about as long, are spread."""
        return list(items[self.index - 1 :: self.count])

    @property
    def lock(self) -> str:
        """Name of the file that says that the shard is running."""
        return f"shard-{self.index}-of-{self.count}.lock"

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"
