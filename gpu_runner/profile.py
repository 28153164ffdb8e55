"""Measures the steps of an engine over a grid, in rounds of random order, and writes them as a profile table."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from costmodels.profile import FEATURES, Profile, ProfileError, write_profile
from gpu_runner.profiling.bench import Bench, CellError
from gpu_runner.profiling.grid import Cell
from gpu_runner.profiling.journal import CHECK, Entry, Journal
from gpu_runner.profiling.quality import Quality, assess

REPEATS = 5

CHECKED = 20
"""The first cells, as many as this, are measured again at the end."""

Visit = tuple[int | None, Cell]
"""A round and a cell; ``None`` for warming up."""

Progress = Callable[[int], Any]


class ProfileStopped(ProfileError):
    """The user has stopped it; what was measured is kept, and the message says how to go on."""

    status = 130
    """Exit status of the command."""


@dataclass(frozen=True, eq=False)
class Plan:
    """What is to be measured, and in which order.

    Every round visits all cells once. Cells with the same decodes follow one another, since those are made once for
    all of them; their groups, and the cells in each, are in another random order in each round, so that a machine that
    slows down does not look like a property of some cells.
    """

    cells: tuple[Cell, ...]
    repeats: int = REPEATS
    seed: int = 0
    skipped: Mapping[Cell, str] = field(default_factory=dict)
    """Cells that do not fit, and why."""

    @staticmethod
    def of(bench: Bench, cells: Sequence[Cell], repeats: int = REPEATS, seed: int = 0) -> Plan:
        """Sort out the cells that do not fit.

        Raises:
            ProfileError: if none does, or repeats are fewer than 1.
        """
        if repeats < 1:
            raise ProfileError(f"--repeats is {repeats}; it must be at least 1")
        why = {cell: bench.why_not(cell) for cell in cells}
        skipped = {cell: reason for cell, reason in why.items() if reason is not None}
        fitting = tuple(cell for cell in cells if cell not in skipped)
        if not fitting:
            reason = next(iter(skipped.values()), "there is none")
            raise ProfileError(f"no cell of the grid fits the engine; the first {reason}")
        return Plan(fitting, repeats, seed, skipped)

    def order(self, number: int) -> list[Cell]:
        """Return the cells in the order of a round."""
        rng = np.random.default_rng((self.seed, number))
        groups: dict[tuple[int, int], list[Cell]] = {}
        for cell in self.cells:
            groups.setdefault(cell[:2], []).append(cell)
        names = list(groups)
        return [
            groups[names[g]][c] for g in rng.permutation(len(names)) for c in rng.permutation(len(groups[names[g]]))
        ]

    def visits(self, entries: Sequence[Entry]) -> list[Visit]:
        """Return what is left to do after the entries of a journal: warm up, then the rounds."""
        done = {(e.round, e.cell) for e in entries}
        rounds = [(r, c) for r in range(self.repeats) for c in self.order(r) if (r, c) not in done]
        needed = {c for _, c in rounds}
        return [*((None, c) for c in self.order(self.repeats) if c in needed), *rounds]

    def checks(self) -> list[Cell]:
        """Return the cells that are measured once more at the end, the first of the first round."""
        return self.order(0)[:CHECKED]


@dataclass(frozen=True, eq=False)
class Outcome:
    """What a session has brought."""

    profile: Profile
    quality: Quality
    skipped: Mapping[Cell, str]
    incomplete: int
    """Cells with fewer repeats than asked for, because of the time limit."""


def run_profile(
    bench: Bench,
    plan: Plan,
    out: Path,
    journal: Path,
    about: Mapping[str, Any],
    *,
    max_s: float | None = None,
    progress: Callable[[int, str], Progress] | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Outcome:
    """Measure what the plan asks for and the journal lacks, and write the table.

    Args:
        bench: the engine.
        plan: made for it.
        out: the table; written over.
        journal: where every step is kept as soon as it was measured; gone on with if it exists.
        about: provenance that need not be equal when a journal is gone on with, like date and command.
        max_s: no step starts after so many seconds, the check at the end apart.
        progress: called with the number of visits and a label, gives what is called with 1 after each.
        clock: in seconds.

    Raises:
        ProfileStopped: on Ctrl-C, after the table was written as far as it goes.
        ProfileError: if the journal is of other conditions, or too little was measured for a table.
    """
    book = Journal(journal, bench.facts())
    skipped = dict(plan.skipped)
    stopped = False
    begin = clock()

    def late() -> bool:
        return max_s is not None and clock() - begin >= max_s

    def run(visits: Sequence[Visit], label: str, limited: bool) -> Iterator[Entry]:
        tick = progress(len(visits), label) if progress and visits else (lambda _: None)
        for number, cell in visits:
            if limited and late():
                break
            if cell not in skipped:
                try:
                    sample = bench.measure(cell)
                    power = bench.power_mw(cell) if number == 0 else None
                    if number is not None:
                        yield Entry(cell, number, sample, power, clock() - begin)
                except CellError as e:
                    skipped[cell] = str(e)
            tick(1)

    try:
        left = plan.visits(book.entries)
        for entry in run(left, "steps", limited=True):
            book.add(entry)
        if left:
            for entry in run([(CHECK, c) for c in plan.checks()], "drift check", limited=False):
                book.add(entry)
    except KeyboardInterrupt:
        stopped = True
    finally:
        book.close()
    quality = assess(book.entries)
    provenance = {
        **about,
        **dict(bench.facts().key),
        "repeats": plan.repeats,
        "seed": plan.seed,
        "quality": quality.to_dict(),
        "skipped": {str(cell): why for cell, why in skipped.items()},
        "notes": quality.notes(len(book.entries)),
    }
    go_on = f"every step is in {journal}; give --resume to go on"
    try:
        profile = write_profile(out, tabulate(book.entries, bench.facts().setting), provenance)
    except ProfileError as e:
        if stopped:
            raise ProfileStopped(f"interrupted before there was a table; {go_on}") from None
        raise ProfileError(f"{e}; {go_on}") from None
    if stopped:
        raise ProfileStopped(f"interrupted; {out} has {len(profile)} steps, and {go_on}")
    per_cell = pd.Series([e.cell for e in book.entries if e.round != CHECK]).value_counts()
    incomplete = sum(int(per_cell.get(c, 0)) < plan.repeats for c in plan.cells if c not in skipped)
    return Outcome(profile, quality, skipped, incomplete)


def tabulate(entries: Sequence[Entry], setting: Mapping[str, Any]) -> pd.DataFrame:
    """Return entries as the rows of a profile table, the repeats of a shape numbered as they were measured.

    ``host_ns`` and ``energy_mj`` are there if every step has them; the energy of a step is its cell's power times its
    duration.
    """
    power = {e.cell: e.power_mw for e in entries if e.power_mw is not None}
    counted: dict[tuple[int, ...], int] = {}
    rows = []
    for e in entries:
        repeat = counted.get(e.sample.features, 0)
        counted[e.sample.features] = repeat + 1
        rows.append((*e.sample.features, e.sample.duration_ns, repeat))
    frame = pd.DataFrame(rows, columns=[*FEATURES, "duration_ns", "repeat"])
    for column, value in setting.items():
        frame[column] = value
    if entries and all(e.sample.host_ns is not None for e in entries):
        frame["host_ns"] = [e.sample.host_ns for e in entries]
    if entries and all(e.cell in power for e in entries):
        # mW times ns are 1e-12 J.
        frame["energy_mj"] = [round(power[e.cell] * e.sample.duration_ns / 10**9) for e in entries]
    return frame
