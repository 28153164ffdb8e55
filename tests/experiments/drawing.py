"""Pictures that cost less, for tests that look at what is beside them."""

from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure

from experiments import plotting
from experiments.plotting import draw_table


def draw_short_table(header: list[str], cells: list[list[str]], *rest: Any, **options: Any) -> list[Path]:
    """Draw a table's first lines; a hundred take longer than the runs behind them. The CSV file keeps all."""
    return draw_table(header, cells[:8], *rest, **options)


def draw_lightly(patch: pytest.MonkeyPatch) -> None:
    """Let one picture of each kind be laid out and drawn, but without a dot: that finds what cannot be drawn.

    Pictures of a size, with as many panels, are of a kind. ``test_plotting.py`` looks at what comes of it.
    """
    lay_out = plotting._lay_out
    seen: set[Any] = set()

    def lay_out_first(figure: Figure) -> None:
        kind = (*figure.get_size_inches(), len(figure.axes))
        if kind not in seen:
            seen.add(kind)
            lay_out(figure)
            figure.set_layout_engine()
            figure.draw_without_rendering()

    patch.setattr(plotting, "_lay_out", lay_out_first)
    _write_nothing(patch)


def leave_undrawn(patch: pytest.MonkeyPatch) -> None:
    """Let pictures be put together, but neither laid out nor drawn."""
    patch.setattr(plotting, "_lay_out", lambda figure: None)
    _write_nothing(patch)


def _write_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Figure, "savefig", lambda self, file, **_: file.write(b"drawn"))
