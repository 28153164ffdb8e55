"""What all figures share: the style, and PNG + PDF + CSV files that equal inputs make byte for byte."""

from __future__ import annotations

import io
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from experiments.tables import Rows, csv_bytes
from sim.store import atomic_write

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BLUE, ORANGE, GREEN, RED, SKY, PURPLE = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#56B4E9", "#CC79A7"
"""Okabe and Ito's palette, distinct for the colour-blind."""

NARROW, WIDE = 3.33, 6.9
"""Widths of one and two columns of a paper, in inches."""

ROW_INCHES = 0.19
"""Height of a table's line."""


@contextmanager
def new_figure(width: float, height: float, laid_out: bool = True) -> Iterator[Figure]:
    """Make a figure of the given size in inches, in the style of all figures while the context lasts.

    What places everything itself need not be laid out.
    """
    from matplotlib import rc_context, style
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    look = style.context(str(resources.files("experiments") / "style.mplstyle"))
    # Saving a figure sets the layout anew from these parameters.
    with look, rc_context({"figure.constrained_layout.use": laid_out}):
        figure = Figure(figsize=(width, height))
        FigureCanvasAgg(figure)
        yield figure


def save_figure(figure: Figure, folder: Path, stem: str, rows: Rows) -> list[Path]:
    """Write ``STEM.png``, ``STEM.pdf`` and, with the numbers it shows, ``STEM.csv``; return their paths.

    Raises:
        OSError: if they cannot be written.
    """
    from matplotlib import rc_context

    take_texts_as_they_are(figure)
    paths = [folder / f"{stem}.csv"]
    atomic_write(paths[0], csv_bytes(rows))
    _lay_out(figure)
    # Else saving sets the layout anew.
    with rc_context({"figure.constrained_layout.use": False}):
        # Placed for good: what lays itself out is drawn twice for each file.
        figure.set_layout_engine()
        for suffix, metadata in (("png", {"Software": None}), ("pdf", {"CreationDate": None})):
            buffer = io.BytesIO()
            figure.savefig(buffer, format=suffix, metadata=metadata)
            paths.append(folder / f"{stem}.{suffix}")
            atomic_write(paths[-1], buffer.getvalue())
    return paths


def take_texts_as_they_are(figure: Figure) -> None:
    """Keep matplotlib from taking texts for mathematics that are none: in names, which are anybody's, $ may stand."""
    from matplotlib.mathtext import MathTextParser
    from matplotlib.text import Text

    parser = MathTextParser("path")
    for text in figure.findobj(Text):
        if text.get_parse_math() and "$" in text.get_text():
            try:
                parser.parse(text.get_text())
            except (ValueError, RecursionError):
                text.set_parse_math(False)


def _lay_out(figure: Figure) -> None:
    """Place everything as it is in the PNG file."""
    from matplotlib import rcParams

    layout = figure.get_layout_engine()
    if layout is not None:
        figure.set_dpi(rcParams["savefig.dpi"])
        layout.execute(figure)


def draw_table(
    header: list[str],
    cells: list[list[str]],
    title: str,
    folder: Path,
    stem: str,
    rows: Rows,
    width: float = WIDE,
    marked: Collection[str] = ("differs",),
) -> list[Path]:
    """Write a table as a picture, and the rows behind it as CSV.

    Args:
        header: of the columns; a line break starts a second line.
        cells: text of each row, likewise.
        title: above the table.
        folder: where to.
        stem: of the files' names.
        rows: what the CSV file holds.
        width: in inches.
        marked: texts in red.
    """
    padded = [[c.split("\n") for c in line] for line in [header, *cells]]
    heights = [max(map(len, line)) for line in padded]
    columns = [
        [
            text
            for line, height in zip(padded, heights, strict=True)
            for text in line[k] + [""] * (height - len(line[k]))
        ]
        for k in range(len(header))
    ]
    shares = np.array([max(map(len, column)) + 3 for column in columns], dtype=float)
    centres = (np.cumsum(shares) - shares / 2) / shares.sum()
    lines = sum(heights)
    with new_figure(width, 0.5 + ROW_INCHES * lines, laid_out=False) as figure:
        top = 1 - 0.4 / figure.get_figheight()
        axis = figure.add_axes((0, 0, 1, top), xlim=(0, 1), ylim=(lines + 0.5, 0))
        axis.axis("off")
        figure.text(0.5, (1 + top) / 2, title, ha="center", va="center", fontsize=10)
        # One text object per line and column: matplotlib's own tables take minutes for a hundred rows.
        for k, column in enumerate(columns):
            for at, text in enumerate(column):
                bold = "bold" if at < heights[0] else "normal"
                colour = RED if text in marked else "black"
                axis.text(centres[k], at + 0.5, text, ha="center", va="center", fontsize=8, weight=bold, color=colour)
        axis.hlines(np.concatenate([[0], np.cumsum(heights)]), 0.005, 0.995, color="0.8", linewidth=0.5)
        return save_figure(figure, folder, stem, rows)
