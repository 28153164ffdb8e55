"""Pictures that cost less, for tests that look at what is beside them."""

from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure

from experiments.plotting import draw_table

savefig = Figure.savefig


def draw_short_table(header: list[str], cells: list[list[str]], *rest: Any, **options: Any) -> list[Path]:
    """Draw a table's first lines; a hundred take longer than the runs behind them. The CSV file keeps all."""
    return draw_table(header, cells[:8], *rest, **options)


def save_coarsely(figure: Figure, file: Any, *, format: str, metadata: dict[str, Any]) -> None:
    """Save few dots, and no PDF, whose fonts take longer than all else; ``test_plotting.py`` looks at both."""
    if format == "png":
        savefig(figure, file, format=format, metadata=metadata, dpi=40)
    else:
        file.write(b"%PDF")


def leave_undrawn(patch: pytest.MonkeyPatch) -> None:
    """Let pictures be put together, but neither laid out nor drawn."""
    patch.setattr("experiments.plotting._lay_out", lambda figure: None)
    patch.setattr(Figure, "savefig", lambda self, file, **_: file.write(b"drawn"))
