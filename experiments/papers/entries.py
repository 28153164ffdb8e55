"""What ``docs/papers.md`` is made of: an entry per figure, table and claim, and the committed tables behind them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from experiments.documents_text import anchor
from experiments.findings.table import Table, read_table

DOCS = Path(__file__).resolve().parents[2] / "docs"

HOLDS, IN_PART, NOT, NOT_COMPARABLE = "holds", "holds in part", "does not hold", "not comparable"
INPUT, NONE = "taken as given", "no counterpart"

VERDICTS = {
    HOLDS: "all comparisons hold; of numbers that chance may move, at least nine in ten agree",
    IN_PART: "some do and some do not; the text says which",
    NOT: "none does",
    NOT_COMPARABLE: "ours is about something else; the text says why",
    INPUT: "a setting of the paper, which we use",
    NONE: "nothing is there to be made again",
}

MOST = 0.9
"""Share of numbers with intervals that must agree for a claim to hold."""


@dataclass(frozen=True)
class Entry:
    """One row of the page; texts are Markdown."""

    item: str
    """``Figure 3``, or the claim in few words."""
    shows: str
    """What the paper shows."""
    ours: str
    """What ours is, with a link to where it is."""
    verdict: str
    """Of :data:`VERDICTS`."""


@cache
def committed(part: str, name: str) -> Table:
    """Return a committed table.

    Raises:
        OSError: if it is not there; `prefillsim figures all --update` makes it.
    """
    return read_table(DOCS / "figures" / part / f"{name}.csv")


def link(part: str, name: str, text: str = "") -> str:
    """Return a link to a committed table, relative to ``docs``."""
    return f"[{text or f'{name}.csv'}](figures/{part}/{name}.csv)"


def page_link(page: str, text: str, heading: str = "") -> str:
    """Return a link to another page of ``docs``, or a part of it."""
    return f"[{text}]({page}{f'#{anchor(heading)}' if heading else ''})"


def of_numbers(agree: int, of: int) -> str:
    """Return the verdict on numbers of which so many lie in an interval."""
    return HOLDS if of and agree >= MOST * of else IN_PART if agree else NOT


def of_comparisons(agree: int, of: int) -> str:
    """Return the verdict on comparisons of which so many hold."""
    return HOLDS if of and agree == of else IN_PART if agree else NOT


def listed(texts: Iterable[str]) -> str:
    """Return texts as a list within a sentence: ``a, b and c``."""
    *first, last = list(texts) or ["none"]
    return f"{', '.join(first)} and {last}" if first else last


def times(low: float, high: float) -> str:
    """Return a range of ratios."""
    return f"{low:.2f} to {high:.2f}"
