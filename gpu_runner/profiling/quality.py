"""How good a set of measurements is: drift, spread, and steps that took far longer than their repeats."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from gpu_runner.profiling.grid import Cell
from gpu_runner.profiling.journal import CHECK, Entry

FAR = 1.5
"""A step is far off if it takes this many times the median of its repeats."""

MOST_DRIFT = 0.05

MOST_SPREAD = 0.1


@dataclass(frozen=True)
class Quality:
    """What a reader of a profile should know of its noise; ``None`` where it cannot be told."""

    drift: float | None
    """Median over the first cells of their time at the end ÷ in the first round, minus 1."""
    drift_cells: int
    drift_error: float | None
    """Standard error of the drift."""
    spread: float | None
    """Median over cells of the standard deviation of their repeats ÷ their median."""
    far_off: int
    """Steps that took more than 1.5 times the median of their repeats; they are kept."""
    rounds: tuple[float, ...]
    """Of each round, the median over cells of time ÷ the cell's median."""

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON types."""
        short = {k: round(v, 4) if isinstance(v, float) else v for k, v in asdict(self).items()}
        return {**short, "rounds": [round(r, 4) for r in self.rounds]}

    def notes(self, steps: int) -> list[str]:
        """Return warnings, a sentence each."""
        found = []
        if self.spread is not None and self.spread > MOST_SPREAD:
            found.append(f"repeats spread by {self.spread:.0%}; is other work running on this machine?")
        if self.drift is not None and abs(self.drift) > max(MOST_DRIFT, 2 * (self.drift_error or 0)):
            found.append(
                f"the machine drifted: the first {self.drift_cells} cells took {self.drift:+.1%} at the end, so "
                "measure again when it is idle and warm"
            )
        if self.far_off:
            found.append(
                f"{self.far_off} of {steps} steps took more than {FAR} times the median of their repeats; they are kept"
            )
        return found


def assess(entries: Sequence[Entry]) -> Quality:
    """Return how good a journal's entries are."""
    times: dict[Cell, list[int]] = defaultdict(list)
    for e in entries:
        times[e.cell].append(e.sample.duration_ns)
    median = {cell: float(np.median(ns)) for cell, ns in times.items()}
    spreads = [float(np.std(ns, ddof=1)) / median[cell] for cell, ns in times.items() if len(ns) > 2]
    first = {e.cell: e.sample.duration_ns for e in entries if e.round == 0}
    late = [e.sample.duration_ns / first[e.cell] for e in entries if e.round == CHECK and e.cell in first]
    by_round: dict[int, list[float]] = defaultdict(list)
    for e in entries:
        if e.round != CHECK:
            by_round[e.round].append(e.sample.duration_ns / median[e.cell])
    return Quality(
        drift=float(np.median(late)) - 1 if late else None,
        drift_cells=len(late),
        # 1.25: of a median, as a multiple of a mean's.
        drift_error=1.25 * float(np.std(late, ddof=1)) / len(late) ** 0.5 if len(late) > 1 else None,
        spread=float(np.median(spreads)) if spreads else None,
        far_off=sum(e.sample.duration_ns > FAR * median[e.cell] for e in entries),
        rounds=tuple(float(np.median(by_round[r])) for r in sorted(by_round)),
    )
