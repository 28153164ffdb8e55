"""What a mutant is: one small mistake in one file that some test must notice."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]


class Mutant(NamedTuple):
    """A piece of code, which stands in its file exactly once, and what is put in its place."""

    file: str
    """Relative to the repository."""
    old: str
    new: str
    breaks: str
    """What no longer holds."""
    group: str = ""
    """The entry of the design's list (verification plan, 4.4) that it belongs to; empty for one of our own."""

    @property
    def source(self) -> str:
        """The file's text as it is."""
        return (ROOT / self.file).read_text(encoding="utf-8")

    @property
    def mutated(self) -> str:
        """The file's text with the mistake."""
        return self.source.replace(self.old, self.new)

    @property
    def name(self) -> str:
        """File and line."""
        return f"{self.file}:{self.source[: self.source.index(self.old)].count(chr(10)) + 1}"


GROUPS = (
    "swap < and <= in the chunk search",
    "drop the -1 of a prefix hit",
    "forget to restore the budget",
    "age with the wrong sign",
    "use the arrival of the wrong clock",
    "skip the free on finish",
    "count the first token as a decode",
    "off by one in TPOT's denominator",
    "admit two prefills",
    "ignore decode tokens in the budget",
)
"""The design's list, in its order."""

(
    CHUNK_SEARCH,
    PREFIX_HIT,
    RESTORE,
    SIGN,
    CLOCK,
    FREE,
    FIRST_TOKEN,
    DENOMINATOR,
    TWO_PREFILLS,
    DECODE_BUDGET,
) = GROUPS
