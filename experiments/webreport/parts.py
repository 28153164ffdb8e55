"""What a report is made of, before it becomes HTML."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from experiments.webreport.charts import Chart
from experiments.webreport.stories import Story

MOST_ROWS = 400
"""Rows of a table."""


@dataclass(frozen=True)
class Table:
    """A table of text; the first ``left`` columns are flush left."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str = ""
    left: int = 1


@dataclass(frozen=True)
class Section:
    """A heading with what comes under it."""

    title: str
    anchor: str
    text: list[str] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    charts: list[Chart] = field(default_factory=list)
    stories: list[tuple[str, str, list[Story]]] = field(default_factory=list)
    """Name of the run, a remark, and the stories."""
    listings: list[tuple[str, str]] = field(default_factory=list)
    """Headings and texts that must keep their lines."""
    definitions: dict[str, str] = field(default_factory=dict)
    cards: list[tuple[str, str, str]] = field(default_factory=list)
    """Name, value and unit."""
    folded: list[Table] = field(default_factory=list)
    """Tables that are shown on request."""

    @property
    def legend(self) -> list[tuple[str, str]]:
        """What the lines of all charts are, see :attr:`experiments.webreport.svg.Plot.legend`."""
        return list(dict.fromkeys(entry for chart in self.charts for entry in chart.plot.legend))
