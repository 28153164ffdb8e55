"""What has been measured so far: a line of JSON per step, so that nothing is lost when a profile is stopped."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from costmodels.profile import ProfileError
from gpu_runner.profiling.bench import Facts, Sample
from gpu_runner.profiling.grid import Cell

FORMAT_VERSION = 1

CHECK = -1
"""In place of a round: the step was measured once more at the end."""


@dataclass(frozen=True)
class Entry:
    """A measured step."""

    cell: Cell
    round: int
    sample: Sample
    power_mw: int | None = None
    at_s: float = 0.0
    """Since the session's start."""


class Journal:
    """A file of entries under one setting, read when it is opened and added to line by line.

    A last line that is cut off, as a crash leaves it, is removed.

    Raises:
        ProfileError: if the file is no journal, or was measured under other conditions.
    """

    def __init__(self, path: Path, facts: Facts) -> None:
        self.path = path
        self.entries: list[Entry] = []
        head = {"version": FORMAT_VERSION, "setting": dict(facts.setting), "key": dict(facts.key)}
        if path.exists() and path.stat().st_size:
            self._read(json.loads(json.dumps(head)))
            self._file: TextIO = path.open("a", encoding="utf-8")
        else:
            self._file = path.open("w", encoding="utf-8")
            self._write(head)

    def add(self, entry: Entry) -> None:
        """Append an entry; it is with the operating system when this returns."""
        self.entries.append(entry)
        line: dict[str, Any] = {
            "cell": list(entry.cell),
            "round": entry.round,
            "features": list(entry.sample.features),
            "duration_ns": entry.sample.duration_ns,
            "host_ns": entry.sample.host_ns,
            "at_s": round(entry.at_s, 3),
        }
        if entry.power_mw is not None:
            line["power_mw"] = entry.power_mw
        self._write(line)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _write(self, line: Mapping[str, Any]) -> None:
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()

    def _read(self, head: Mapping[str, Any]) -> None:
        raw = self.path.read_bytes()
        whole = raw[: raw.rfind(b"\n") + 1]
        lines = whole.decode("utf-8", errors="replace").splitlines()
        try:
            was = json.loads(lines[0])
            if not isinstance(was, dict) or was["version"] != FORMAT_VERSION:
                raise ValueError
        except (ValueError, KeyError, IndexError):
            raise ProfileError(f"{self.path} is no journal of a profile; give another --out") from None
        changed = differences({**was["setting"], **was["key"]}, {**head["setting"], **head["key"]})
        if changed:
            shown = "; ".join(changed[:4]) + (f"; and {len(changed) - 4} more" if len(changed) > 4 else "")
            raise ProfileError(f"{self.path} was measured under other conditions, so give a new --out: {shown}")
        for number, text in enumerate(lines[1:], 2):
            try:
                line = json.loads(text)
                sample = Sample(tuple(line["features"]), line["duration_ns"], line["host_ns"])
                entry = Entry(Cell(*line["cell"]), line["round"], sample, line.get("power_mw"), line["at_s"])
            except (ValueError, KeyError, TypeError):
                raise ProfileError(f"{self.path}: line {number} is damaged; remove it to go on without it") from None
            self.entries.append(entry)
        if len(whole) < len(raw):
            with self.path.open("r+b") as file:
                file.truncate(len(whole))


def differences(was: Any, now: Any, name: str = "") -> list[str]:
    """Return what differs between two JSON documents, as ``name: was -> now``."""
    if isinstance(was, dict) and isinstance(now, dict):
        found: list[str] = []
        for k in [*was, *(k for k in now if k not in was)]:
            found += differences(was.get(k), now.get(k), f"{name}.{k}" if name else str(k))
        return found
    return [] if was == now else [f"{name}: {json.dumps(was)} -> {json.dumps(now)}"]
