"""The engine as one process among others of a SimPy environment."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace
from typing import Any

import simpy

from sim.engine import Engine
from tests.engine import strategies
from tests.engine.compare import assert_same_run
from tests.engine.strategies import Run
from tests.seeded import cases, whole, wide


def engine(env: simpy.Environment, run: Run) -> Engine:
    return Engine(
        env,
        run.trace,
        run.build(),
        run.cost,
        predictor=run.predictor,
        objectives=run.objectives,
        limits=run.limits,
    )


def ticker(env: simpy.Environment, period: int, ticks: int) -> Generator[simpy.Event, Any, None]:
    for _ in range(ticks):
        yield env.timeout(period)


@cases(40, strategies.runs(), strategies.runs(), whole(1, 50))
def test_engines_and_other_processes_do_not_disturb_each_other(first: Run, second: Run, period: int) -> None:
    env = simpy.Environment()
    engines = [engine(env, first), engine(env, second)]
    env.process(ticker(env, period, 40))
    env.run()
    for together, run in zip(engines, (first, second), strict=True):
        assert_same_run(together.tables(), run.simulate())


@cases(40, strategies.runs())
def test_the_clock_of_the_environment_stands_at_the_end_of_the_last_step(run: Run) -> None:
    env = simpy.Environment()
    steps = engine(env, run)
    env.run()
    table = steps.tables().steps
    end = int((table["start_ns"] + table["duration_ns"]).max(initial=0))
    last_arrival = int(run.trace.arrival_ns[-1])
    assert end <= env.now <= max(end, last_arrival)


@cases(40, strategies.runs(), wide(10**12, 1))
def test_an_engine_may_start_later_than_at_zero(run: Run, begin: int) -> None:
    """Nothing happens before the first arrival, so it does not matter from when on the engine waited."""
    shifted = replace(
        run,
        trace=replace(run.trace, arrival_ns=run.trace.arrival_ns + begin),
        limits=replace(run.limits, horizon_ns=None),
    )
    env = simpy.Environment(initial_time=begin)
    late = engine(env, shifted)
    env.run()
    assert_same_run(late.tables(), shifted.simulate())
