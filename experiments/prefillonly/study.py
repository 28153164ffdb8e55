"""An experiment that the paper left out: what is run, and how it is drawn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from experiments.prefillonly.bench import METRICS, Point, aggregate, differences, run_all, runs_of
from experiments.prefillonly.panels import Panels, draw_panels
from experiments.tables import Rows, csv_bytes
from sim.store import atomic_write

Seeds = tuple[int, ...]


@dataclass(frozen=True)
class Study:
    """One experiment.

    ``points`` gets the seeds and the number of processes, for rates that have to be measured first.
    """

    stem: str
    title: str
    by: tuple[str, ...]
    """What tells the points apart."""
    points: Callable[[Seeds, int | None], list[Point]]
    panels: Panels
    over: str
    """The column whose values are compared, paired by seed."""
    base: str | float
    """The value that the others are compared with."""
    also: tuple[str, str | float] | None = None
    """A second such column and value."""
    compared: tuple[str, ...] = ("throughput", "hit_rate", "mean_s", "p99_s")
    beside: tuple[str, ...] = ()
    """Further columns of a point, for the tables."""
    setup: str = ""
    """Where it is run, for the title."""

    def run(self, folder: Path, seeds: Sequence[int], jobs: int | None = None) -> list[Path]:
        """Run everything and write ``STEM.{png,pdf,csv}`` and the paired differences, ``STEM-paired*.csv``.

        Raises:
            OSError: if they cannot be written.
        """
        points = self.points(tuple(seeds), jobs)
        rows = run_all(runs_of(points, seeds), jobs)
        return self.write(folder, rows)

    def write(self, folder: Path, rows: Rows) -> list[Path]:
        """Write picture and tables of rows per seed."""
        files = [self._compare(folder, rows, self.over, self.base, f"{self.stem}-paired")]
        if self.also is not None:
            files.append(self._compare(folder, rows, *self.also, f"{self.stem}-paired-by-{self.also[0]}"))
        n = len({row["seed"] for row in rows})
        title = f"{self.title}\n{self.setup}{', ' if self.setup else ''}{n} seeds, 95 % intervals"
        return [
            *files,
            *draw_panels(aggregate(rows, [*self.by, *self.beside], METRICS), self.panels, title, folder, self.stem),
        ]

    def _compare(self, folder: Path, rows: Rows, over: str, base: str | float, stem: str) -> Path:
        shared = [name for name in self.by if name != over]
        path = folder / f"{stem}.csv"
        atomic_write(path, csv_bytes(differences(rows, shared, over, base, self.compared)))
        return path
