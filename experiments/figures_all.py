"""``prefillsim figures all``: every part into its own folder, resumed step by step."""

from __future__ import annotations

import json
import shutil
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from experiments.cells import json_bytes
from experiments.config import ConfigError
from experiments.figures_parts import How, Part, Step
from experiments.figures_sources import runs_hash
from experiments.sweep import Interrupted
from sim.store import atomic_write

STAMP = "part.json"
"""What of a part is finished, and what it was made from."""

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


def make_all(chosen: Sequence[Part], out: Path, how: How, *, resume: bool = False, told: Told = lambda _: None) -> Made:
    """Make every part in ``out/PART``; what fails is told, and the others go on.

    With ``resume``, a step is kept whose stamp holds the hash of everything that it depends on: the package's version,
    the simulator, its own modules and their data. Runs that were finished in a step that was not are kept where what
    runs depend on is the same; else the part begins anew.

    Args:
        chosen: the parts.
        out: for their folders.
        how: with how many processes, and whether bars are drawn.
        resume: go on in folders that exist.
        told: called with a line before each step.

    Raises:
        ConfigError: if a folder exists and is not to be resumed, or is none of a part.
        Interrupted, KeyboardInterrupt: on Ctrl-C.
        OSError: if a stamp cannot be read or written.
    """
    made = Made()
    clock = _Clock([(f"{p.name}/{s.name}", s.seconds) for p in chosen for s in p.steps])
    for part in chosen:
        folder = out / part.name
        stamp = _opened(folder, resume)
        for step in part.steps:
            _make(part, step, folder, how, stamp, made, clock, told)
    return made


def _make(
    part: Part, step: Step, folder: Path, how: How, stamp: dict[str, Any], made: Made, clock: _Clock, told: Told
) -> None:
    name, trace = f"{part.name}/{step.name}", folder / f"failed-{step.name}.txt"
    trace.unlink(missing_ok=True)
    if (reason := step.why_not()) is not None:
        made.skipped[name] = reason
        clock.skip(name)
        return
    sources, known = step.sources(), stamp["steps"].get(step.name, {})
    files = [folder / file for file in known.get("files", ())]
    if known.get("sources") == sources and not step.always and all(file.is_file() for file in files):
        made.kept.append(name)
        made.files += files
        clock.skip(name)
        return
    told(f"{name}: {clock.left()}")
    begun = time.monotonic()
    try:
        files = step.make(folder, how)
    except Interrupted:
        raise
    except Exception as e:
        # Whatever it is: the other parts are worth having, and the whole story is in the file.
        made.failed[name] = f"{e}" if isinstance(e, ConfigError) else f"{type(e).__name__}: {e} (see {trace})"
        atomic_write(trace, traceback.format_exc().encode())
        clock.skip(name)
        return
    seconds = time.monotonic() - begun
    clock.done(name, seconds)
    made.seconds[name] = seconds
    made.files += files
    stamp["steps"][step.name] = {
        "sources": sources,
        "seconds": round(seconds, 1),
        "files": [file.relative_to(folder).as_posix() for file in files],
    }
    atomic_write(folder / STAMP, json_bytes(stamp))


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

    def __init__(self, steps: Sequence[tuple[str, float]]) -> None:
        self._expected = dict(steps)
        self._count = len(steps)
        self._took = self._would = 0.0

    def done(self, name: str, seconds: float) -> None:
        self._took += seconds
        self._would += self._expected.pop(name)

    def skip(self, name: str) -> None:
        self._expected.pop(name)

    def left(self) -> str:
        at = f"{self._count - len(self._expected) + 1} of {self._count} steps"
        if not self._would:
            return at
        minutes = sum(self._expected.values()) * self._took / self._would / 60
        return f"{at}, " + ("less than a minute" if minutes < 1 else f"about {minutes:.0f} min") + " to go"
