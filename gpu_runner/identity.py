"""Whether two schedulers made the same batches: the first step that differs, with both sides' state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from policies.units import MS
from sim.batches import batch_table
from sim.records import Tables


@dataclass(frozen=True)
class Batch:
    """One step as it was made. Times in nanoseconds."""

    decided: int
    start: int
    duration: int
    requests: tuple[tuple[int, int], ...]
    """Requests by their place in the trace, and their tokens, in batch order."""
    preempted: tuple[int, ...] = ()
    """In any order of the engine's; sorted here."""

    def __str__(self) -> str:
        shown = " ".join(f"{number}:{tokens}" for number, tokens in self.requests)
        lost = f"; preempted {', '.join(map(str, self.preempted))}" if self.preempted else ""
        return (
            f"decided {self.decided / MS:.6f} ms, start {self.start / MS:.6f} ms, {self.duration / MS:.6f} ms, "
            f"request:tokens {shown or 'none'}{lost}"
        )


@dataclass(frozen=True)
class Difference:
    """The first step at which two runs differ."""

    step: int
    what: str
    before: Batch | None
    """The last step that is the same."""
    engine: Batch | None
    """``None`` where there was no such step."""
    simulator: Batch | None

    def __str__(self) -> str:
        """Return lines for people, both states one below the other."""
        lines = [f"step {self.step}: {self.what}"]
        if self.before is not None:
            lines.append(f"  before     {self.before}")
        lines.append(f"  engine     {self.engine or 'has no such step'}")
        lines.append(f"  simulator  {self.simulator or 'has no such step'}")
        if self.engine is not None and self.simulator is not None:
            engine, simulator = dict(self.engine.requests), dict(self.simulator.requests)
            for name, mine, other in (("engine", engine, simulator), ("simulator", simulator, engine)):
                only = {i: c for i, c in mine.items() if other.get(i) != c}
                if only:
                    lines.append(f"  only in the {name}: " + " ".join(f"{i}:{c}" for i, c in only.items()))
        return "\n".join(lines)


@dataclass(frozen=True)
class Agreement:
    """How many steps two runs have in common."""

    steps: int
    """Of the longer one."""
    same: int
    first: Difference | None

    @property
    def identical(self) -> bool:
        """Whether there is no difference."""
        return self.first is None


def batches_of(tables: Tables) -> list[Batch]:
    """Return the steps of a simulated run as batches."""
    steps, table = tables.steps, batch_table(tables)
    made: list[list[tuple[int, int]]] = [[] for _ in range(len(steps["start_ns"]))]
    for step, request, tokens in zip(*(table[c].tolist() for c in ("step", "request", "tokens")), strict=True):
        made[step].append((request, tokens))
    # Who is preempted in a decision without a batch is seen with the next one.
    lost: list[list[int]] = [[] for _ in range(len(made) + 1)]
    for step, request in zip(*(tables.preemptions[c].tolist() for c in ("step", "request")), strict=True):
        lost[step].append(request)
    times = zip(*(steps[c].tolist() for c in ("decided_ns", "start_ns", "duration_ns")), strict=True)
    return [
        Batch(decided, start, duration, tuple(requests), tuple(sorted(victims)))
        for (decided, start, duration), requests, victims in zip(times, made, lost, strict=False)
    ]


def agreement(engine: Sequence[Batch], simulator: Sequence[Batch], *, times: bool = True) -> Agreement:
    """Compare two runs step by step: requests and tokens in batch order, preemptions and, if asked for, times.

    Args:
        engine: what the real scheduler made.
        simulator: what was simulated.
        times: whether decision, start and duration must be equal too.
    """
    same, first = 0, None
    for k in range(max(len(engine), len(simulator))):
        mine = engine[k] if k < len(engine) else None
        other = simulator[k] if k < len(simulator) else None
        what = _difference(mine, other, times)
        if what is None:
            same += 1
        elif first is None:
            first = Difference(k, what, engine[k - 1] if k else None, mine, other)
    return Agreement(max(len(engine), len(simulator)), same, first)


def _difference(engine: Batch | None, simulator: Batch | None, times: bool) -> str | None:
    if engine is None or simulator is None:
        return "only one of the two has such a step"
    if engine.requests != simulator.requests:
        if sorted(engine.requests) == sorted(simulator.requests):
            return "the order within the batch differs"
        return "the batches differ"
    if engine.preempted != simulator.preempted:
        return "the preempted requests differ"
    if times:
        for name in ("decided", "start", "duration"):
            mine, other = getattr(engine, name), getattr(simulator, name)
            if mine != other:
                return f"{name} differs by {(mine - other) / MS:g} ms"
    return None
