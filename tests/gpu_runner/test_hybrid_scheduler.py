"""The hybrid engine's scheduler decides as the simulator does with a prefix store."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from costmodels.linear import LinearCost
from gpu_runner.hybrid.scheduler import block_hashes
from gpu_runner.hybrid.sharing import shared_tokens
from gpu_runner.replay import paced, replay
from gpu_runner.settings import Settings, SettingsError
from gpu_runner.validate.replayed import simulate_recorded
from policies.base import Ordering
from policies.registry import register
from policies.spec import parse_policy
from sim.engine import simulate
from sim.limits import Limits
from sim.memory import Memory
from sim.records import FINISHED, REJECTED
from sim.tables import LoggedRun
from tests.gpu_runner.hybrid_host import FakeHybrid
from tests.seeded import cases, pick, whole
from traces import Segments, Trace

SIZE = 4
POLICIES = (
    "fcfs+full",
    "srjf-static+full",
    "prefillonly",
    "srjf-calibrated:lam=0+full",
    "srjf-calibrated:lam=1e6+full",
    "lpm+full",
)


def some_requests(rng: random.Random) -> list[tuple[int, int, int, int]]:
    """Make arrival, family, how much of the family's beginning, and own tokens of some requests."""
    return [
        (
            rng.choice((0, 8_000 * rng.randint(0, 5), rng.randint(0, 1000), rng.randint(0, 40_000))),
            rng.randint(0, 3),
            rng.choice((0, SIZE, 20, rng.randint(0, 20))),
            rng.choice((1, SIZE, rng.randint(1, 20))),
        )
        for _ in range(rng.choice((1, *(rng.randint(1, 25) for _ in range(9)))))
    ]


def made(requests: list[tuple[int, int, int, int]]) -> Trace:
    requests = sorted(requests)
    parts = [
        [*([(family, shared)] if shared else []), (100 + i, own)] for i, (_, family, shared, own) in enumerate(requests)
    ]
    segments = Segments(
        np.cumsum([0, *(len(p) for p in parts)]),
        np.array([c for p in parts for c, _ in p]),
        np.array([t for p in parts for _, t in p]),
    )
    prompts = np.array([sum(t for _, t in p) for p in parts])
    arrivals = np.array([r[0] for r in requests], dtype=np.int64)
    return Trace(arrivals, prompts, np.ones(len(requests), dtype=np.int64), segments=segments)


def order(run: LoggedRun) -> list[int]:
    served: list[int] = run.chunks["request"].tolist()
    return served


def simulated(came: Trace, run: LoggedRun, policy: str, memory: Memory, longest: int | None = None) -> LoggedRun:
    return simulate_recorded(
        came,
        parse_policy(policy),
        decided_ns=run.steps["decided_ns"],
        duration_ns=run.steps["duration_ns"],
        visible_step=run.requests["visible_step"],
        predictor=LinearCost(),
        limits=Limits(1, longest),
        cache=memory.build(came),
    )


@cases(
    150,
    some_requests,
    pick(*POLICIES),
    pick(0, 1, 3, 8, 20, 100),
    pick(False, True),
    pick(False, True),
    pick(10, 300, 5000),
)
def test_decisions_are_the_simulators(
    requests: list[tuple[int, int, int, int]], policy: str, blocks: int, discard: bool, saturate: bool, slow: int
) -> None:
    trace = paced(made(requests), saturate=saturate)
    host = FakeHybrid(
        Settings(policy=policy, record=True, discard=discard),
        blocks=blocks,
        size=SIZE,
        duration=lambda hit, new: slow * new + 7 * hit + 1,
    )
    if discard:
        host.keep_tokens = {str(i): n for i, n in enumerate(shared_tokens(trace, SIZE))}
    came, run, sent = replay(trace, host, clock=host.virtual)
    assert sent.stopped is None
    assert run.requests["outcome"].tolist() == [FINISHED] * len(trace)
    memory = Memory(regime="store", blocks=blocks, block_size=SIZE, suffix="discard" if discard else "keep")
    other = simulated(came, run, policy, memory)
    assert order(run) == order(other)
    np.testing.assert_array_equal(run.chunks["tokens"], other.chunks["tokens"])
    for name in ("cached_tokens", "first_scheduled_ns", "first_token_ns", "finished_ns", "visible_step"):
        np.testing.assert_array_equal(run.requests[name], other.requests[name], err_msg=name)
    for name in run.steps:
        if name not in ("kv_blocks", "predicted_ns"):
            np.testing.assert_array_equal(run.steps[name], other.steps[name], err_msg=name)


@cases(40, some_requests, pick(*POLICIES), pick(0, 5, 30))
def test_with_known_times_the_whole_run_is_the_simulators(
    requests: list[tuple[int, int, int, int]], policy: str, blocks: int
) -> None:
    """Not only the order at recorded times: the clock is virtual, so that nothing else is left to differ."""
    cost = LinearCost(step=500, prefill=100, per_token=200)
    # Multiples of 1024 ns survive the floats of seconds that arrivals go through.
    trace = made(requests).with_arrivals(lambda n: np.sort([r[0] for r in requests])[:n] * 1024)
    host = FakeHybrid(
        Settings(policy=policy, record=True),
        blocks=blocks,
        size=SIZE,
        duration=lambda hit, new: cost.step_ns(0, 0, 0, 1, new, new * hit + new * (new + 1) // 2),
    )
    came, run, _ = replay(trace, host, clock=host.virtual)
    memory = Memory(regime="store", blocks=blocks, block_size=SIZE)
    other = simulate(came, parse_policy(policy), cost, limits=Limits(1), cache=memory.build(came))
    assert order(run) == order(other)
    for name in ("cached_tokens", "first_scheduled_ns", "finished_ns"):
        np.testing.assert_array_equal(run.requests[name], other.requests[name], err_msg=name)


def four() -> Trace:
    return made([(0, 0, 8, 4), (0, 1, 8, 9), (0, 0, 8, 5), (0, 2, 0, 20)])


def test_a_chunking_that_splits_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"splits prompts.*give fcfs\+full"):
        FakeHybrid(Settings(policy="fcfs+fixed:chunk=256"))


def test_admission_turns_away_as_in_the_simulator() -> None:
    policy = "fcfs+full+queue-limit:limit=2"
    host = FakeHybrid(Settings(policy=policy, record=True))
    came, run, _ = replay(paced(four(), saturate=True), host, clock=host.virtual)
    other = simulated(came, run, policy, Memory(regime="store", blocks=64, block_size=SIZE))
    np.testing.assert_array_equal(run.requests["outcome"], other.requests["outcome"])
    assert (run.requests["outcome"] == REJECTED).sum() == 2
    assert run.reasons == other.reasons
    assert [end.request_id for end in host.ended if end.answer is None] == ["2", "3"]


def test_who_leaves_the_queue_is_not_served() -> None:
    host = FakeHybrid(Settings(policy="fcfs+full", record=True))
    for i in range(4):
        host.add(str(i), list(range(10 * i, 10 * i + 9)), 1)
    assert host.step() == ["0"]
    for gone in ("2", "0", "nobody"):
        host.scheduler.abort(gone)
    assert host.step() == ["2", "1"]
    host.add("4", [1, 2, 3], 1)
    host.scheduler.abort("4")
    assert host.step() == ["4", "3"]
    assert not host.busy
    log = host.scheduler.finish_recording().log
    assert log.reasons == {2: "aborted by the client", 4: "aborted by the client"}


def test_a_prefill_that_fails_leaves_the_others() -> None:
    host = FakeHybrid(Settings(policy="fcfs+full", record=True))
    host.runner.fail_on = 1
    trace = paced(four(), saturate=True)
    came, run, sent = replay(trace, host, clock=host.virtual)
    assert sent.stopped == "the engine failed: RuntimeError: out of memory"
    assert run.requests["outcome"].tolist().count(FINISHED) == 1
    assert run.reasons[1] == "the prefill failed: RuntimeError: out of memory"
    while host.busy:
        host.step()
    assert len(host.runner.served) == 3
    assert [end.outcome for end in host.ended] == ["finished", "failed", "finished", "finished"]
    assert len(came) == 4


def test_a_policy_that_fails_gives_way_to_first_come_first_served() -> None:
    register(FailsOnThird)
    host = FakeHybrid(Settings(policy="fails-on-third+full", record=True))
    _, run, sent = replay(paced(four(), saturate=True), host, clock=host.virtual)
    assert sent.stopped is None
    assert host.scheduler.fallen
    assert order(run) == [3, 0, 1, 2]


def test_a_steps_period_lasts_until_the_next_decision() -> None:
    """Where there is more to do, what the host takes between two prefills belongs to the one before."""
    host = FakeHybrid(Settings(policy="prefillonly", record=True))

    def ticking() -> int:
        host.virtual.time_ns += 17
        return host.virtual.time_ns

    host.scheduler.clock = ticking
    _, run, _ = replay(paced(four(), saturate=True), host, clock=host.virtual)
    ends = run.steps["start_ns"] + run.steps["duration_ns"]
    np.testing.assert_array_equal(ends[:-1], run.steps["start_ns"][1:])


class FailsOnThird(Ordering):
    name = "fails-on-third"

    def choose(self, waiting: Any, now_ns: int) -> Any:
        if len(waiting) == 3:
            raise RuntimeError("what now?")
        return max(waiting)


def two_prompts(rng: random.Random) -> tuple[list[int], list[int]]:
    """Make prompts that often begin alike."""
    a, b = (rng.choices((0, 1), k=rng.randint(0, 20)) for _ in range(2))
    return a, a[: rng.choice((0, 20, rng.randint(0, 20)))] + b


@cases(50, two_prompts, whole(1, 4))
def test_hashes_are_equal_as_far_as_prompts_are(drawn: tuple[list[int], list[int]], size: int) -> None:
    a, b = drawn
    one, other = block_hashes(a, size), block_hashes(b, size)
    assert len(one) == len(a) // size
    for i, (x, y) in enumerate(zip(one, other, strict=False)):
        assert (x == y) == (a[: (i + 1) * size] == b[: (i + 1) * size])
