"""Has a change made anything worse? The same runs as those of a committed baseline, judged figure by figure."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

from experiments.axes import Experiment, plan
from experiments.config import ConfigError
from experiments.draft import Draft
from experiments.regress.baseline import Baseline, CellFigures, baseline_of, baseline_path, read_baseline
from experiments.regress.metrics import METRICS, Metric, Tolerances
from experiments.run import check_cells
from experiments.sweep import Interrupted, Stopped, run_sweep
from sim.stats import Interval, paired

Verdict = Literal["worse", "better", "changed", "unchanged"]
"""Beyond the tolerance, in the one direction or the other; within it, or not judged; the same."""

ROUNDING = 1e-8
"""Relative difference that the last digits that are kept may have."""

NAMED = 3
"""Cells that a sentence names; it counts the rest."""


class _Draft(Draft):
    """A draft that keeps ``[tolerance]`` apart."""

    def __init__(self) -> None:
        super().__init__()
        self.tolerances: dict[str, tuple[Any, str]] = {}

    def put(self, key: str, value: Any, origin: str, layer: str = "") -> None:
        table, _, name = key.partition(".")
        if table != "tolerance" or (not name and isinstance(value, dict)):
            super().put(key, value, origin, layer)
        elif not name:
            raise ConfigError(f"{origin}: tolerance is {value!r}, but it should be a table")
        else:
            self.tolerances[name] = value, f"{origin}: tolerance"


@dataclass(frozen=True)
class Check:
    """A file of runs, ready to be made and held against its baseline."""

    file: Path
    baseline_file: Path
    experiment: Experiment
    tolerances: Tolerances
    baseline: Baseline | None
    """``None`` where there is none yet, or it is to be written anew."""

    @classmethod
    def of(cls, file: Path, baseline_file: Path | None, tolerance: str | None, *, update: bool) -> Check:
        """Read a file, in the words of sweeps besides ``[tolerance]``, and its baseline.

        Raises:
            ConfigError, PolicyError, ObjectiveError, CostModelError, TraceError: in one sentence.
        """
        draft = _Draft()
        draft.put_file(file)
        tolerances = Tolerances.of(draft.tolerances, tolerance)
        draft.put("keep", "summary", "regress")
        path = baseline_path(file) if baseline_file is None else baseline_file
        try:
            baseline = read_baseline(path)
        except ConfigError:
            if not update:
                raise
            baseline = None
        if baseline is None and not update:
            raise ConfigError(f"{file} has no baseline {path}; --update writes it")
        if update and not os.access(path.absolute().parent, os.W_OK | os.X_OK):
            what = "cannot be written" if path.parent.is_dir() else "does not exist"
            raise ConfigError(f"--update: the folder {path.parent} of {path.name} {what}")
        experiment = plan(draft)
        check_cells(experiment.cells)
        return cls(file, path, experiment, tolerances, baseline)

    def run(self, jobs: int | None = None, *, progress: bool = False) -> Outcome:
        """Make the runs and judge them.

        Raises:
            KeyboardInterrupt: on Ctrl-C; nothing is kept.
            Stopped: if a process was killed.
            OSError: if there is no room for temporary files.
        """
        with TemporaryDirectory(prefix="prefillsim-regress-") as folder:
            try:
                sweep = run_sweep(self.experiment, out=Path(folder) / "runs", jobs=jobs, progress=progress)
            except Interrupted:
                raise KeyboardInterrupt from None
            except Stopped as e:
                raise Stopped(str(e).partition(":")[0]) from None
            except OSError as e:
                # What is finished goes with the folder, whatever the sweep has noted.
                e.__notes__ = []
                raise
        now = baseline_of(self.experiment.cells, sweep.results)
        rows = [] if self.baseline is None else judge(self.baseline, now, self.tolerances)
        failures = sweep.failure_lines
        faults = [] if self.baseline is None else misfits(self.baseline, now, failed=bool(failures))
        return Outcome(self, now, rows, faults, failures)


@dataclass(frozen=True)
class Row:
    """One figure of one cell, then and now."""

    cell: CellFigures
    """As it is now."""
    metric: Metric
    then: float | None
    """Mean over the seeds; ``None`` where no seed has measured it."""
    now: float | None
    difference: Interval
    """Of now - then, paired by seed."""
    tolerance: float | None
    """In percent of ``then``; ``None`` is not judged."""
    verdict: Verdict

    @property
    def percent(self) -> Interval:
        """The difference in percent of the baseline's mean; nothing where that is zero."""
        if not self.then:
            return Interval(None, None, None)
        return Interval(*(None if x is None else 100 * x / abs(self.then) for x in self.difference))


@dataclass(frozen=True)
class Outcome:
    """What a check has found."""

    check: Check
    now: Baseline
    rows: list[Row]
    faults: list[str]
    """Where baseline and file are not about the same runs, a sentence each."""
    failures: list[str]
    """Runs that failed, a line each."""

    @property
    def counts(self) -> Counter[Verdict]:
        """How many figures there are of each verdict."""
        return Counter(row.verdict for row in self.rows)

    @property
    def passed(self) -> bool:
        """Whether nothing is worse, and everything was compared."""
        return not (self.counts["worse"] or self.faults or self.failures)

    @property
    def other_version(self) -> str | None:
        """The version of prefillsim that made the baseline, where it is another."""
        then = self.check.baseline
        return None if then is None or then.package == self.now.package else then.package

    @property
    def stale(self) -> bool:
        """Whether the baseline differs from what the runs came to, beyond rounding."""
        return self.check.baseline is None or bool(self.faults) or len(self.rows) != self.counts["unchanged"]


def judge(then: Baseline, now: Baseline, tolerances: Tolerances) -> list[Row]:
    """Compare every figure of the cells that both have, on the seeds that both have."""
    before = then.by_key()
    rows = []
    for cell in now.cells:
        old = before.get(cell.key)
        seeds = [] if old is None else [seed for seed in cell.seeds if seed in old.seeds]
        if old is None or not seeds:
            continue
        for metric in METRICS:
            was = [old.seeds[seed].metrics.get(metric.name) for seed in seeds]
            is_ = [cell.seeds[seed].metrics.get(metric.name) for seed in seeds]
            row = _row(cell, metric, was, is_, tolerances.percent(metric))
            if row is not None:
                rows.append(row)
    return rows


def _row(
    cell: CellFigures, metric: Metric, was: list[float | None], is_: list[float | None], tolerance: float | None
) -> Row | None:
    """Return the comparison of a figure, ``None`` if it was never measured."""
    both = [(a, b) for a, b in zip(was, is_, strict=True) if a is not None and b is not None]
    then = _mean([a for a, _ in both] or was)
    now = _mean([b for _, b in both] or is_)
    if then is None and now is None:
        return None
    difference = paired(is_, was).difference
    lost = sum(1 for a, b in zip(was, is_, strict=True) if a is not None and b is None)
    gained = sum(1 for a, b in zip(was, is_, strict=True) if a is None and b is not None)
    if all(abs(b - a) <= ROUNDING * abs(a) for a, b in both) and not lost and not gained:
        verdict: Verdict = "unchanged"
    elif tolerance is None:
        verdict = "changed"
    elif lost:
        # Nothing finishes any more, or has a second token.
        verdict = "worse"
    else:
        gain = (difference.mean or 0.0) * (1 if metric.higher_is_better else -1)
        beyond = abs(gain) > tolerance / 100 * abs(then or 0.0)
        verdict = "changed" if not beyond else "better" if gain > 0 else "worse"
    return Row(cell, metric, then, now, difference, tolerance, verdict)


def _mean(values: Sequence[float | None]) -> float | None:
    measured = [value for value in values if value is not None]
    return sum(measured) / len(measured) if measured else None


def misfits(then: Baseline, now: Baseline, *, failed: bool = False) -> list[str]:
    """Return a sentence for each way in which a baseline and a file are not about the same runs.

    Args:
        then: the baseline.
        now: what the file came to.
        failed: some runs have failed, so that what is missing is their fault.
    """
    before, after = then.by_key(), now.by_key()
    sentences: list[str] = []
    if new := [cell.name for key, cell in after.items() if key not in before]:
        sentences.append(f"the baseline does not have {_named(new)}")
    if gone := [cell.name for key, cell in before.items() if key not in after and not failed]:
        sentences.append(f"the baseline has {_named(gone)}, which the file no longer asks for")
    seeds: list[str] = []
    traces: list[str] = []
    figures: dict[str, list[str]] = {}
    changed: dict[str, dict[str, None]] = {}
    for key in before.keys() & after.keys():
        old, cell = before[key], after[key]
        if old.seeds.keys() != cell.seeds.keys() and not failed:
            seeds.append(cell.name)
        for name, _ in old.configuration.items() ^ cell.configuration.items():
            changed.setdefault(name.replace("_", " "), {})[cell.name] = None
        both = old.seeds.keys() & cell.seeds.keys()
        if any(old.seeds[s].trace != cell.seeds[s].trace for s in both):
            traces.append(cell.name)
        for figure in {figure for s in both for figure in old.seeds[s].metrics.keys() ^ cell.seeds[s].metrics.keys()}:
            figures.setdefault(figure, []).append(cell.name)
    if seeds:
        sentences.append(f"the baseline has other seeds of {_named(sorted(seeds))}")
    for part, names in sorted(changed.items()):
        sentences.append(f"{part}: the configuration of {_named(sorted(names))} is not that of the baseline")
    if traces:
        sentences.append(f"the requests of {_named(sorted(traces))} are not those of the baseline")
    for figure, cells in sorted(figures.items()):
        sentences.append(f"baseline and runs do not both have {figure} of every seed of {_named(sorted(cells))}")
    return sentences


def _named(names: Sequence[str]) -> str:
    more = len(names) - NAMED
    return "; ".join(names[:NAMED]) + (f" and {more} more" if more > 0 else "")
