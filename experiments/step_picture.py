"""Steps as bars, as in SLOWeave's Figure 2: as wide as they last, as high as their prefill; decodes are a line."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from experiments.plotting import BLUE, RED, WIDE, new_figure, take_texts_as_they_are
from experiments.recorded import Recorded
from experiments.tables import Rows
from policies.units import MS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_STEPS = 5000
"""Bars of a panel; more cannot be told apart."""


def step_rows(run: Recorded, window_ns: tuple[int, int]) -> Rows:
    """Return the steps of a run's first replica that begin in a window; late are those over the TPOT objective."""
    steps = run.tables.steps
    start = steps["start_ns"]
    own = (start >= window_ns[0]) & (start < window_ns[1])
    if own.any():
        own &= steps["replica"] == steps["replica"][own].min()
    target = run.objectives.deadline_ns
    rows = []
    for k in np.flatnonzero(own).tolist():
        duration = int(steps["duration_ns"][k])
        rows.append(
            {
                "start_ms": float(start[k] / MS),
                "duration_ms": duration / MS,
                "prefill_tokens": int(steps["prefill_tokens"][k]),
                "n_decode": int(steps["n_decode"][k]),
                "late": target is not None and duration > target and bool(steps["n_decode"][k] > 0),
            }
        )
    return rows


def draw_steps(figure: Figure, panels: Sequence[tuple[str, Rows]], window_ms: tuple[float, float]) -> None:
    """Draw one panel per run under another: its heading and the rows of its steps."""
    axes = figure.subplots(len(panels), 1, sharex=True, sharey=True, squeeze=False)[:, 0]
    most = max((r["n_decode"] for _, rows in panels for r in rows), default=0)
    for axis, (heading, rows) in zip(axes, panels, strict=True):
        axis.bar(
            [r["start_ms"] for r in rows],
            [r["prefill_tokens"] for r in rows],
            [r["duration_ms"] for r in rows],
            align="edge",
            color=[RED if r["late"] else BLUE for r in rows],
            edgecolor="white",
            linewidth=0.4,
        )
        decodes = axis.twinx()
        decodes.step(
            [r["start_ms"] for r in rows], [r["n_decode"] for r in rows], where="post", color="black", linewidth=0.9
        )
        decodes.grid(False)
        decodes.spines["right"].set_visible(True)
        decodes.set_ylim(0, 1.25 * max(most, 1))
        decodes.set_ylabel("decodes")
        axis.set_xlim(*window_ms)
        axis.set_ylabel("prefill tokens")
        axis.set_title(heading, fontsize=9)
    axes[-1].set_xlabel("time (ms)")


def steps_svg(runs: Sequence[Recorded], window_ns: tuple[int, int]) -> str:
    """Return the picture of a window of several runs as SVG; equal runs make equal text."""
    panels = []
    for run in runs:
        rows = step_rows(run, window_ns)[:MOST_STEPS]
        late = sum(r["late"] for r in rows)
        target = run.objectives.deadline_ns
        over = "" if target is None else f", {late} longer than {target / MS:g} ms"
        # A dollar would begin a formula.
        panels.append((f"{run.label}: {len(rows)} steps{over}".replace("$", r"\$"), rows))
    with new_figure(WIDE, 0.6 + 1.25 * len(panels)) as figure:
        draw_steps(figure, panels, (window_ns[0] / MS, window_ns[1] / MS))
        buffer = io.StringIO()
        take_texts_as_they_are(figure)
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    return buffer.getvalue()
