"""A question: what is run, which numbers are drawn and how, and the answer in words."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.findings.table import Table
from experiments.plotting import WIDE
from experiments.tables import Rows
from sim.store import StoredRun

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FOLDER = Path(__file__).parent / "questions"


@dataclass(frozen=True)
class Question:
    """One question. Everything but ``measure`` works on the table of runs, so that words and picture cannot drift."""

    name: str
    """Stem of its module, its TOML files and what is written."""
    place: int
    """Where it stands on the page."""
    asks: str
    """The question, as a heading."""
    metrics: tuple[str, ...]
    """What is kept of each run's summary."""
    drawn: Callable[[Table], Rows]
    """The numbers of the picture, with their intervals."""
    draw: Callable[[Rows, Figure], None]
    """Draws them; the figure has the common style and no axes yet."""
    answer: Callable[[Table], str]
    """Paragraphs in Markdown, every number of which is computed from the table; a blank line between two."""
    size: tuple[float, float] = (WIDE, 2.8)
    """Of the picture, in inches."""
    experiments: tuple[str, ...] = ()
    """Stems of its TOML files, the name alone by default; with several, the column ``experiment`` tells them apart."""
    measure: Callable[[StoredRun], dict[str, Any]] | None = None
    """What is computed from a run's tables besides, for instance by tenant."""

    @property
    def files(self) -> list[Path]:
        """The TOML files; `prefillsim sweep FILE` runs each by itself."""
        return [FOLDER / f"{stem}.toml" for stem in self.experiments or (self.name,)]
