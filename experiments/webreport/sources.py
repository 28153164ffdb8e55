"""The runs and sweeps that a report is about."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from os.path import realpath
from pathlib import Path

from experiments.config import ConfigError
from experiments.recorded import Described, Recorded, Swept, read_any


@dataclass(frozen=True)
class Sources:
    """What a report is about."""

    runs: list[Recorded]
    sweeps: list[Swept]

    @property
    def described(self) -> list[Described]:
        """Every run, and every run of every sweep."""
        return [*self.runs, *(cell for sweep in self.sweeps for cell in sweep.cells)]


def read_sources(paths: Sequence[Path]) -> Sources:
    """Read the folders of runs and sweeps.

    Raises:
        ConfigError: if there is none.
        StoreError: if one is neither, or damaged.
    """
    runs: list[Recorded] = []
    found: list[Swept] = []
    given: dict[str, Path] = {}
    for path in paths:
        given.setdefault(realpath(path), path)  # a link to itself is a path too
    for path in given.values():
        read = read_any(path)
        if isinstance(read, Swept):
            found.append(read)
        else:
            runs += read
    sources = Sources(runs, found)
    if not sources.described:
        raise ConfigError(f"{', '.join(map(str, paths))} has no run that succeeded, so there is nothing to report")
    return sources
