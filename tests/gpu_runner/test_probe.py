"""Probes of a machine's speed, on a virtual clock."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_runner.validate.probe import FEWEST, ROOM, ProbingClock, Speeds
from policies.units import MS


class Machine:
    """Time passes only by work, and by looking at the clock."""

    def __init__(self, work_ns: int) -> None:
        self.now = 0
        self.work_ns = work_ns

    def look(self) -> int:
        self.now += 50_000
        return self.now

    def work(self) -> None:
        self.now += self.work_ns


@settings(deadline=None)
@given(st.integers(1, 5 * MS), st.integers(0, 400 * MS))
def test_nobody_is_late_for_a_probe(work_ns: int, pause_ns: int) -> None:
    machine = Machine(work_ns)
    clock = ProbingClock(machine.look, machine.work)
    clock.sleep_until(pause_ns)
    assert machine.now >= pause_ns
    # The first probe is thought to take a millisecond; all others are known.
    assert machine.now <= max(pause_ns + 250_000, work_ns + 250_000 + ROOM * MS)


def test_the_pace_of_a_time_is_that_of_the_probes_in_it() -> None:
    machine = Machine(MS)
    clock = ProbingClock(machine.look, machine.work)
    clock.sleep_until(100 * MS)
    machine.work_ns = 2 * MS
    middle = machine.now
    clock.sleep_until(300 * MS)
    looking = 50_000
    assert clock.pace(end_ns=middle) == MS + looking
    assert clock.pace(middle) == 2 * MS + looking
    assert clock.pace(middle, middle + (FEWEST - 1) * 2 * MS) is None
    assert ProbingClock(machine.look, None).pace() is None


@given(st.floats(0.5, 2), st.floats(0.5, 2), st.floats(1e5, 1e7))
def test_a_replay_is_as_much_slower_than_the_reference_as_its_probes(ours: float, theirs: float, unit: float) -> None:
    speeds = Speeds()
    assert speeds.at(ours * unit, 1.0, 2.0) == 1.5
    for now in (theirs, theirs, theirs / 2):
        speeds.learn(1.1 * now, now * unit)
    assert speeds.at(ours * unit, 7.0, 7.0) == pytest.approx(1.1 * ours)
    assert speeds.at(None, 1.0, 2.0) == 1.5
