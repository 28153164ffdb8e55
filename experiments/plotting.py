"""What all figures share: the style, and PNG + PDF + CSV files that equal inputs make byte for byte."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.tables import csv_bytes
from sim.store import atomic_write

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BLUE, ORANGE, GREEN, RED, SKY, PURPLE = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#56B4E9", "#CC79A7"
"""Okabe and Ito's palette, distinct for the colour-blind."""

NARROW, WIDE = 3.33, 6.9
"""Widths of one and two columns of a paper, in inches."""


@contextmanager
def new_figure(width: float, height: float) -> Iterator[Figure]:
    """Make a figure of the given size in inches, in the style of all figures while the context lasts."""
    from matplotlib import style
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with style.context(str(resources.files("experiments") / "style.mplstyle")):
        figure = Figure(figsize=(width, height))
        FigureCanvasAgg(figure)
        yield figure


def save_figure(figure: Figure, folder: Path, stem: str, rows: list[dict[str, Any]]) -> list[Path]:
    """Write ``STEM.png``, ``STEM.pdf`` and, with the numbers it shows, ``STEM.csv``; return their paths.

    Raises:
        OSError: if they cannot be written.
    """
    paths = [folder / f"{stem}.csv"]
    atomic_write(paths[0], csv_bytes(rows))
    for suffix, metadata in (("png", {"Software": None}), ("pdf", {"CreationDate": None})):
        buffer = io.BytesIO()
        figure.savefig(buffer, format=suffix, metadata=metadata)
        paths.append(folder / f"{stem}.{suffix}")
        atomic_write(paths[-1], buffer.getvalue())
    return paths
