"""What a run on a GPU has found so far, in one file that is whole after every row."""

from __future__ import annotations

import json
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from gpu_runner.profile import ProfileStopped

Item = TypeVar("Item")

Say = Callable[[str], None]


class Part:
    """One question with a time limit: rows as they are measured, and what follows from them.

    Attributes:
        rows: measurements, JSON types.
        summary: what they say, JSON types.
        ended: ``done``, ``out of time``, or how it failed; empty while it runs.
    """

    def __init__(self, budget_s: float, flush: Callable[[], None], clock: Callable[[], float]) -> None:
        self.budget_s = budget_s
        self.rows: list[dict[str, Any]] = []
        self.summary: dict[str, Any] = {}
        self.ended = ""
        self.left_out = 0
        self._flush = flush
        self._clock = clock
        self._begin = clock()

    @property
    def seconds(self) -> float:
        """Since it began."""
        return self._clock() - self._begin

    @property
    def left_s(self) -> float:
        """What its limit leaves."""
        return self.budget_s - self.seconds

    def add(self, **row: Any) -> None:
        """Keep a row; it is in the file when this returns."""
        self.rows.append(row)
        self._flush()

    def cases(self, items: Iterable[Item], seconds: Callable[[Item], float] | None = None) -> Iterator[Item]:
        """Yield items as long as there is time, the first in any case, and count those left out.

        Args:
            items: in order of worth.
            seconds: what one will take; one that takes longer than what is left is left out, the first too.
        """
        started = False
        for item in items:
            late = self.left_s <= 0 if seconds is None else seconds(item) > self.left_s
            if late and (started or seconds is not None):
                self.left_out += 1
                continue
            started = True
            yield item

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON types."""
        return {
            "ended": self.ended or "unfinished",
            "seconds": round(self.seconds, 2),
            "budget_s": round(self.budget_s, 2),
            "left_out": self.left_out,
            "summary": self.summary,
            "rows": self.rows,
        }


class Book:
    """Parts one after another within one time limit, written to a file of JSON.

    Args:
        path: the file.
        about: provenance, JSON types.
        seconds: for all parts together.
        say: what tells the user how far it is.
        clock: in seconds.
    """

    def __init__(
        self,
        path: Path,
        about: Mapping[str, Any],
        seconds: float,
        say: Say,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.path = path
        self.about = dict(about)
        self.parts: dict[str, Part] = {}
        self._done: dict[str, dict[str, Any]] = {}
        self._say = say
        self._clock = clock
        self._end = clock() + seconds
        self.flush()

    @property
    def failed(self) -> bool:
        """Whether any part has broken off with an error."""
        return any(part["ended"].startswith("failed") for part in self._done.values())

    def run(self, shares: Mapping[str, tuple[int, Callable[[Part], None]]]) -> None:
        """Run parts in order; each may take its share of what is left for it and those behind it.

        A part that fails is noted, and the others go on: a GPU is at hand only once.

        Args:
            shares: by name, the share of time and what is done.
        """
        waiting = sum(share for share, _ in shares.values())
        for name, (share, do) in shares.items():
            part = Part((self._end - self._clock()) * share / waiting, self.flush, self._clock)
            waiting -= share
            self.parts[name] = part
            try:
                do(part)
                part.ended = "out of time" if part.left_out else "done"
            except (KeyboardInterrupt, ProfileStopped):
                part.ended = "interrupted"
                raise
            except Exception as e:
                part.ended = f"failed: {type(e).__name__}: {str(e).strip().partition(chr(10))[0]}"
                part.summary["traceback"] = traceback.format_exc().splitlines()
            finally:
                self._done[name] = part.to_dict()
                self.flush()
            self._say(f"{name}: {part.ended}, {part.seconds:.0f} s")

    def flush(self) -> None:
        """Write everything, whole or not at all."""
        parts = {name: self._done.get(name) or part.to_dict() for name, part in self.parts.items()}
        text = json.dumps({"provenance": self.about, "parts": parts}, indent=1, allow_nan=False) + "\n"
        partial = self.path.with_name(f".{self.path.name}.partial")
        partial.write_text(text, encoding="utf-8")
        partial.replace(self.path)
