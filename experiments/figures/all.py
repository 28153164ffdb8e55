"""``prefillsim figures all``: every part into its own folder, resumed step by step."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from experiments.cells import json_bytes
from experiments.config import ConfigError
from experiments.figures.parts import How, Part, Step
from experiments.figures.pool import Outcome, make_step, make_steps
from experiments.figures.sources import runs_hash
from experiments.sweep import Interrupted
from sim.store import atomic_write

STAMP = "part.json"
"""What of a part is finished, and what it was made from."""

MOST_AT_ONCE = 4
"""Steps that are made beside each other; with more processes, each has several."""

Told = Callable[[str], None]


@dataclass
class Made:
    """What came of all parts; steps are named ``PART/STEP``."""

    files: list[Path] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    """How long each took that was made."""
    kept: list[str] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class _Todo:
    name: str
    part: Part
    step: Step
    folder: Path
    sources: str


def make_all(chosen: Sequence[Part], out: Path, how: How, *, resume: bool = False, told: Told = lambda _: None) -> Made:
    """Make every part in ``out/PART``; what fails is told, and the others go on.

    With ``resume``, a step is kept whose stamp holds the hash of everything that it depends on: the package's version,
    the simulator, its own modules and their data. Runs that were finished in a step that was not are kept where what
    runs depend on is the same; else the part begins anew. With several processes steps are made beside each other, for
    drawing takes one.

    Args:
        chosen: the parts; with several processes, those of :func:`experiments.figures.parts.parts`.
        out: for their folders.
        how: with how many processes, and whether bars are drawn.
        resume: go on in folders that exist.
        told: called with a line after each step.

    Raises:
        ConfigError: if a folder exists and is not to be resumed, or is none of a part.
        Interrupted: on Ctrl-C.
        OSError: if a stamp cannot be read or written.
    """
    made = Made()
    stamps = {part.name: _opened(out / part.name, resume) for part in chosen}
    todo = [found for part in chosen for found in _todo(part, out / part.name, stamps[part.name], made)]
    clock = _Clock({found.name: found.step.seconds for found in todo})
    for found, outcome in _outcomes(todo, how):
        trace = found.folder / f"failed-{found.step.name}.txt"
        trace.unlink(missing_ok=True)
        if outcome.interrupted:
            raise Interrupted("interrupted")
        line = f"{found.name}: {clock.done(found.name)}"
        if outcome.error is not None:
            made.failed[found.name] = f"{outcome.error} (see {trace})"
            atomic_write(trace, outcome.trace.encode())
            told(f"{line}; it has failed")
            continue
        made.seconds[found.name] = outcome.seconds
        made.files += outcome.files
        stamp = stamps[found.part.name]
        stamp["steps"][found.step.name] = {
            "sources": found.sources,
            "seconds": round(outcome.seconds, 1),
            "files": [file.relative_to(found.folder).as_posix() for file in outcome.files],
        }
        atomic_write(found.folder / STAMP, json_bytes(stamp))
        told(line)
    return made


def _todo(part: Part, folder: Path, stamp: dict[str, Any], made: Made) -> Iterator[_Todo]:
    """Yield the steps of a part that are to be made, and note the others."""
    for step in part.steps:
        name = f"{part.name}/{step.name}"
        if (reason := step.why_not()) is not None:
            made.skipped[name] = reason
            continue
        sources, known = step.sources(), stamp["steps"].get(step.name, {})
        files = [folder / file for file in known.get("files", ())]
        if known.get("sources") == sources and not step.always and all(file.is_file() for file in files):
            made.kept.append(name)
            made.files += files
        else:
            yield _Todo(name, part, step, folder, sources)


def _outcomes(todo: Sequence[_Todo], how: How) -> Iterator[tuple[_Todo, Outcome]]:
    """Make steps and yield each as it ends; those that are always made come last, when all else is there."""
    first = [found for found in todo if not found.step.always]
    jobs = how.jobs or os.cpu_count() or 1
    at_once = min(jobs, MOST_AT_ONCE, len(first))
    if at_once > 1:
        by_name = {(found.part.name, found.step.name): found for found in first}
        longest_first = sorted(first, key=lambda found: -found.step.seconds)
        tasks = [(found.part.name, found.step.name, found.folder) for found in longest_first]
        for part, step, outcome in make_steps(tasks, at_once, How(jobs // at_once)):
            yield by_name[part, step], outcome
    else:
        for found in first:
            yield found, make_step(found.step, found.folder, how)
    for found in todo:
        if found.step.always:
            yield found, make_step(found.step, found.folder, how)


def _opened(folder: Path, resume: bool) -> dict[str, Any]:
    """Return the stamp of a part's folder, a new one where nothing is to be kept."""
    new = {"runs": runs_hash(), "steps": {}}
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        if not resume:
            raise ConfigError(f"{folder} exists and is not empty; give another folder, or --resume to go on with it")
        if not (folder / STAMP).is_file():
            raise ConfigError(f"--resume: {folder} is not the folder of a part (it has no {STAMP})")
        stamp: dict[str, Any] = json.loads((folder / STAMP).read_bytes())
        if stamp["runs"] == new["runs"]:
            return stamp
        shutil.rmtree(folder)
    folder.mkdir(parents=True, exist_ok=True)
    atomic_write(folder / STAMP, json_bytes(new))
    return new


class _Clock:
    """How long the rest will take: what steps are known to take, times how fast this machine has been so far."""

    def __init__(self, expected: dict[str, float]) -> None:
        self._left = dict(expected)
        self._would = 0.0
        self._begun = time.monotonic()

    def done(self, name: str) -> str:
        """Note that a step has ended, and return how far that is."""
        self._would += self._left.pop(name)
        left = f"{len(self._left)} steps to go"
        if not self._left or not self._would:
            return left
        minutes = sum(self._left.values()) * (time.monotonic() - self._begun) / self._would / 60
        return f"{left}, " + ("less than a minute" if minutes < 1 else f"about {minutes:.0f} min")
