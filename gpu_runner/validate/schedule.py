"""Level 2 as a section of the report: the engine's own clocks, and whether the simulator makes its batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from costmodels.base import CostModel
from gpu_runner.identity import Agreement, Batch, agreement, batches_of
from gpu_runner.validate.replayed import simulate_recorded
from gpu_runner.validate.sections import Grid, Section
from policies.base import Policy
from sim.kvcache import KVCache
from sim.limits import Limits
from sim.objectives import Objectives
from sim.records import NULL
from sim.tables import LoggedRun
from traces.schema import Trace


@dataclass(frozen=True)
class Schedule:
    """One run's schedule on both sides."""

    label: str
    requests: int
    agreement: Agreement
    cached: int = 0
    """Tokens that the engine found cached, over all requests."""
    other_hits: int = 0
    """How many requests found another number of tokens cached in the simulator."""

    @property
    def identical(self) -> bool:
        """Whether batches and prefix hits are the same."""
        return self.agreement.identical and not self.other_hits


def compare_schedules(
    label: str,
    trace: Trace,
    run: LoggedRun,
    batches: Sequence[Batch],
    policy: Policy,
    *,
    predictor: CostModel | None,
    objectives: Objectives,
    limits: Limits,
    cache: KVCache | None,
) -> Schedule:
    """Simulate a recorded run on its own clocks, and compare what was decided step by step.

    Args:
        label: names the run.
        trace: the requests as the engine saw them.
        run: the engine's, one step in flight at a time.
        batches: what it really ran.
        policy: a fresh one.
        predictor: what the policy believed; needed even where it predicts nothing, ``None`` for such.
        objectives: of requests that bring none.
        limits: as the engine's.
        cache: as the engine's, fresh, for ``trace``.
    """
    visible = run.requests["visible_step"]
    simulated = simulate_recorded(
        trace,
        policy,
        decided_ns=run.steps["decided_ns"],
        duration_ns=run.steps["duration_ns"],
        visible_step=visible,
        predictor=predictor,
        objectives=objectives,
        limits=limits,
        cache=cache,
    )
    hits, theirs = run.requests["cached_tokens"], simulated.requests["cached_tokens"]
    return Schedule(
        label,
        int((visible != NULL).sum()),
        agreement(batches, batches_of(simulated)),
        int(hits.sum()),
        int((hits != theirs).sum()),
    )


def schedule_section(title: str, schedules: Sequence[Schedule]) -> Section:
    """Return the section on the batches of some runs, level L2: all must be the same, in order, time and hits."""
    steps = sum(s.agreement.steps for s in schedules)
    same = sum(s.agreement.same for s in schedules)
    wrong = [s for s in schedules if not s.identical]
    summary = f"{same:,} of {steps:,} steps are identical: the same requests, tokens, order and times."
    if cached := sum(s.cached for s in schedules):
        other = sum(s.other_hits for s in schedules)
        summary += f" {cached:,} tokens were cached, " + (
            f"but {other:,} requests found another number in the simulator." if other else "the same for each request."
        )
    columns = ["run", "requests", "steps", "identical", "cached tokens"]
    rows = [
        [s.label, f"{s.requests:,}", f"{s.agreement.steps:,}", f"{s.agreement.same:,}", f"{s.cached:,}"]
        for s in schedules
    ]
    first = next((s for s in wrong if s.agreement.first is not None), None)
    return Section(
        "L2",
        title,
        not wrong,
        summary,
        tables=[Grid(columns, rows, [s.identical for s in schedules])],
        verbatim="" if first is None else f"{first.label}\n{first.agreement.first}",
        misses=[f"L2 {title}: {s.label} differs in {_what(s)}" for s in wrong],
        data={
            "runs": [
                {
                    "run": s.label,
                    "requests": s.requests,
                    "steps": s.agreement.steps,
                    "identical_steps": s.agreement.same,
                    "cached_tokens": s.cached,
                    "other_hits": s.other_hits,
                    "first_difference": None if s.agreement.first is None else str(s.agreement.first),
                }
                for s in schedules
            ]
        },
    )


def _what(schedule: Schedule) -> str:
    found = schedule.agreement
    if found.first is None:
        return f"the cached tokens of {schedule.other_hits} requests"
    return f"{found.steps - found.same} of {found.steps} steps, first in step {found.first.step}"
