"""The map of choices: a colour per policy, hatched grey where the best is not surely better than the others."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.choice import Axes, Choice, choice_rows
from experiments.output import say, table, wrapped
from experiments.plotting import BLUE, GREEN, ORANGE, PURPLE, RED, SKY, WIDE, new_figure, save_figure
from experiments.webreport.sweeps import axis_name

if TYPE_CHECKING:
    from matplotlib.axes import Axes as Drawing

COLOURS = (SKY, ORANGE, GREEN, PURPLE, RED, BLUE, "#F0E442", "0.4")

UNCLEAR = "0.88"

PER_LINE = 3
"""Panels side by side."""


def show_choices(found: Sequence[Choice], metric: str) -> None:
    """Print how often each policy is the choice, and how often none is."""
    labels = list(dict.fromkeys(label for c in found for label in c.means))
    rows = [
        [wrapped(label), str(sum(c.sure and c.best == label for c in found)), str(sum(c.best == label for c in found))]
        for label in labels
    ]
    say(f"Choice by {metric} at {len(found)} points")
    table(["policy", "surely best\npoints", "best mean\npoints"], rows)
    unclear = sum(not c.sure for c in found)
    say(
        f"At {unclear} of {len(found)} points no policy is surely best: paired t-tests of the best against each other, "
        "Holm over the points, 5 %."
    )


def write_map(found: Sequence[Choice], axes: Axes, metric: str, title: str, folder: Path) -> list[Path]:
    """Write ``map.png``, ``map.pdf`` and ``map.csv``.

    Raises:
        OSError: if they cannot be written.
    """
    from matplotlib.patches import Patch

    across, up, panels = (_values(found, name) for name in (axes.across, axes.up, axes.panels))
    labels = list(dict.fromkeys(label for c in found for label in c.means))
    columns = min(len(panels), PER_LINE)
    lines = -(-len(panels) // columns)
    with new_figure(WIDE, 1.1 + lines * (0.55 + 0.3 * max(len(up), 3))) as figure:
        drawn = figure.subplots(lines, columns, squeeze=False, sharex=True, sharey=True)
        for axis in drawn.ravel()[len(panels) :]:
            axis.axis("off")
        for axis, panel in zip(drawn.ravel(), panels, strict=False):
            own = [c for c in found if axes.panels is None or c.point[axes.panels] == panel]
            for c in own:
                row = 0 if axes.up is None else up.index(c.point[axes.up])
                _cell(axis, across.index(c.point[axes.across]), row, c, labels)
            axis.set_xlim(-0.5, len(across) - 0.5)
            axis.set_ylim(-0.5, len(up) - 0.5)
            axis.set_xticks(range(len(across)), [_text(v) for v in across], rotation=90 if len(across) > 8 else 0)
            axis.set_yticks(range(len(up)), [_text(v) for v in up] if axes.up else [""])
            axis.grid(False)
            if axes.panels is not None:
                axis.set_title(_panel_title(axes.panels, panel), fontsize=8)
        for axis in drawn[-1]:
            axis.set_xlabel(axis_name(axes.across))
        for axis in drawn[:, 0]:
            axis.set_ylabel(axis_name(axes.up) if axes.up else "")
        handles = [
            Patch(color=COLOURS[k % len(COLOURS)], label=label)
            for k, label in enumerate(labels)
            if any(c.sure and c.best == label for c in found)
        ]
        handles.append(Patch(facecolor=UNCLEAR, hatch="////", edgecolor="0.6", label="no policy surely best"))
        figure.legend(handles=handles, loc="outside lower center", ncols=3)
        figure.suptitle(f"{title}: best by {metric}; numbers: ahead of the second, in %")
        return save_figure(figure, folder, "map", choice_rows(found))


def _values(found: Sequence[Choice], axis: str | None) -> list[Any]:
    values = [None] if axis is None else list(dict.fromkeys(c.point[axis] for c in found))
    return sorted(values) if all(isinstance(v, int | float) for v in values) else values


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _panel_title(axis: str, value: Any) -> str:
    return _text(value) if axis.endswith("workload") else f"{axis_name(axis)}: {_text(value)}"


def _cell(axis: Drawing, x: int, y: int, choice: Choice, labels: Sequence[str]) -> None:
    from matplotlib.patches import Rectangle

    corner, size = (x - 0.5, y - 0.5), 1.0
    if choice.sure and choice.best is not None:
        colour = COLOURS[labels.index(choice.best) % len(COLOURS)]
        axis.add_patch(Rectangle(corner, size, size, facecolor=colour, edgecolor="white", linewidth=0.8))
    else:
        axis.add_patch(Rectangle(corner, size, size, facecolor=UNCLEAR, edgecolor="0.6", hatch="////", linewidth=0))
    second = None if choice.second is None else choice.means[choice.second]
    if choice.sure and second and choice.difference.mean is not None:
        axis.text(x, y, f"{100 * choice.difference.mean / second:+.0f}", ha="center", va="center", fontsize=6)
