"""Runs of an advice: policies on numbers of replicas, stage by stage, every one kept in a sweep's folder."""

from __future__ import annotations

import dataclasses
import sys
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from costmodels.calibrated import RangeWarning
from experiments.axes import Experiment, plan
from experiments.cells import Cell
from experiments.draft import Draft
from experiments.run import prepare
from experiments.sweep import Stopped, SweepResult, finished_cells, run_sweep
from policies.base import PolicyError
from sim.metrics import Summary

REPLICAS, ROUTER = "cluster.replicas", "cluster.router"


@dataclass
class Stage:
    """What has been run of one kind: a sweep over replicas and routers that grows."""

    draft: Draft
    cells: dict[tuple[str, int, str, int], Cell] = field(default_factory=dict)
    """By policy, replicas, router and seed."""
    sweep: SweepResult | None = None

    def cells_of(self, policies: Sequence[str], replicas: int, router: str, seeds: Iterable[int]) -> list[Cell]:
        """Return cells, and remember them; not run yet.

        Raises:
            ConfigError, PolicyError, CostModelError, TraceError: see :func:`experiments.axes.plan`.
        """
        seeds = list(seeds)
        new = [p for p in policies if any((p, replicas, router, seed) not in self.cells for seed in seeds)]
        if new:
            at = self.draft.copy()
            at.put(f"sweep.{REPLICAS}", [replicas], "--replicas", "advise")
            at.put(f"sweep.{ROUTER}", [router], "--router", "advise")
            at.put("policies", new, "--policy", "advise")
            at.put("seeds", seeds, "--seeds", "advise")
            for cell in plan(at).cells:
                self.cells[cell.label, replicas, router, cell.seed] = cell
        return [self.cells[p, replicas, router, seed] for p in policies for seed in seeds]

    def experiment(self) -> Experiment:
        """Return all that has been asked for so far."""
        cells = [self.cells[at] for at in sorted(self.cells)]
        points = [dict(cell.point) for cell in cells]
        axes = {axis: sorted({point[axis] for point in points}) for axis in (REPLICAS, ROUTER)}
        return Experiment(self.draft.finish(), axes, tuple(cells), ())


class Runs:
    """All runs of an advice, in one folder with a sweep for each stage.

    Args:
        out: the folder.
        resume: trust what is finished there.
        jobs: processes.
        progress: say on stderr what is being run, with bars.
    """

    def __init__(self, out: Path, *, resume: bool, jobs: int | None, progress: bool) -> None:
        self.out, self._resume, self._jobs, self._progress = out, resume, jobs, progress
        self.stages: dict[str, Stage] = {}

    def open(self, name: str, draft: Draft) -> None:
        """Begin a stage, whose runs are as the draft says."""
        self.stages[name] = Stage(draft)

    def usable(self, name: str, policies: Sequence[str]) -> dict[str, str]:
        """Return, by policy, why it cannot be run here; empty where all can."""
        reasons = {}
        for policy in policies:
            stage = Stage(self.stages[name].draft)
            seed = stage.draft.finish().seeds[0]
            try:
                prepare(stage.cells_of([policy], 1, "user", [seed])[0])
            except PolicyError as e:
                reasons[policy] = str(e)
        return reasons

    def run(
        self, name: str, policies: Sequence[str], replicas: int, router: str, seeds: Iterable[int], why: str
    ) -> dict[str, list[Summary]]:
        """Run policies on seeds, and return their summaries by policy, in order of seed.

        Raises:
            Interrupted: on Ctrl-C.
            Stopped: if a run has failed, or what runs them is gone.
            OSError: if results cannot be written.
        """
        stage, seeds = self.stages[name], list(seeds)
        wanted = stage.cells_of(policies, replicas, router, seeds)
        known = {} if stage.sweep is None else stage.sweep.results
        if any(cell.key not in known for cell in wanted):
            self._go_on(name, stage, f"{why}: {len(wanted)} runs on {replicas} replica{'s' * (replicas > 1)}")
        assert stage.sweep is not None
        results: dict[str, list[Summary]] = {policy: [] for policy in policies}
        for cell in wanted:
            summary = stage.sweep.results[cell.key].summary
            assert summary is not None
            results[cell.label].append(summary)
        return results

    def _go_on(self, name: str, stage: Stage, why: str) -> None:
        if self._progress:
            print(why, file=sys.stderr)
        again = self._resume or stage.sweep is not None
        with warnings.catch_warnings():
            # Told in words of its own, for the one model and trace that there are.
            warnings.simplefilter("ignore", RangeWarning)
            sweep = run_sweep(
                stage.experiment(),
                out=self.out / name,
                resume=again,
                jobs=self._jobs,
                progress=self._progress,
                within=self.out,
            )
        stage.sweep = sweep
        if sweep.failures:
            raise Stopped(f"{len(sweep.failures)} runs failed; the first: {sweep.failure_lines[0]}")

    def finished(self) -> int:
        """Return how many runs are finished in the folder."""
        return sum(finished_cells(self.out / name) for name in self.stages)

    def part(self, name: str, policy: str, replicas: int) -> SweepResult | None:
        """Return the part of a stage's sweep that is one policy on so many replicas; ``None`` where it was not run."""
        stage = self.stages[name]
        if stage.sweep is None:
            return None
        cells = tuple(c for (p, r, *_), c in sorted(stage.cells.items()) if (p, r) == (policy, replicas))
        if not cells:
            return None
        return dataclasses.replace(stage.sweep, experiment=dataclasses.replace(stage.experiment(), cells=cells))
