"""Random runs whose requests need memory and share prompts."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from costmodels.prefill import PipelineCost
from sim.limits import Limits
from sim.memory import Memory
from tests.engine import strategies
from tests.engine.strategies import Run
from tests.seeded import Maker, built, either, just, maybe, pick, rarely, whole
from tests.sim import contents
from traces import NONE, Trace

BLOCKS = pick(*(1, 2, 3, 4, 7) * 2, 16)
ANY_OUTPUT, ONE_TOKEN = (0.0, 0.2, 0.0, 1.0), (1.0,)
"""Shares of the requests whose output is one token."""

PIPELINES = built(
    lambda a, b: PipelineCost("two", (a, b)),
    either(strategies.LINEAR_COSTS, strategies.GROWING_COSTS),
    either(strategies.LINEAR_COSTS, strategies.GROWING_COSTS),
)
"""Two stages, whose bubbles depend on the batches."""


def timed(
    made: tuple[Trace, int], seed: int, gaps: Sequence[int], idle: float, one_token: float, longer: int
) -> tuple[Trace, int]:
    """Give a trace arrivals of all kinds, outputs that may be ``longer`` blocks, and some objectives and tenants."""
    trace, block = made
    rng = np.random.default_rng(seed)
    n = len(trace)
    between = rng.integers(0, rng.choice(gaps) + 1, n)
    columns: dict[str, np.ndarray] = {
        "output_tokens": np.where(
            rng.random(n) < one_token, 1, trace.output_tokens + rng.integers(0, longer * block + 1, n)
        ),
        "arrival_ns": np.cumsum(np.where(rng.random(n) < idle, rng.integers(500, 3000, n), between)),
    }
    if rng.random() < 0.5:
        columns["slo_tpot_ns"] = np.where(rng.random(n) < 0.3, NONE, rng.integers(10, 400, n))
        columns["tenant"] = np.array(strategies.TENANTS, dtype=object)[rng.integers(0, 2, n)]
        columns["session"] = np.array(["a", "b", "c"], dtype=object)[rng.integers(0, 3, n)]
    return replace(trace, **columns), block


def shared(one_token: Sequence[float]) -> Maker:
    """Make a trace with shared prompts and the block size that its lengths lie around."""

    def make(rng: random.Random) -> tuple[Trace, int]:
        made, seed = contents.contents(BLOCKS, 14)(rng), rng.getrandbits(64)
        return timed(
            made, seed, [0, 4, 30, 120, 400], rng.choice([0.0, 0.0, 0.2]), rng.choice(one_token), rng.randint(0, 6)
        )

    return make


def largest(trace: Trace, block: int) -> int:
    """Return the blocks that the largest request needs."""
    return -(-int((trace.prompt_tokens + trace.output_tokens - 1).max()) // block)


def pool(made: tuple[Trace, int], spare: int, prefix_cache: bool) -> Memory:
    """Return a pool that holds the largest request and ``spare`` blocks, which for others may be too few."""
    trace, block = made
    return Memory(blocks=max(2, largest(trace, block) + 1 + spare), block_size=block, prefix_cache=prefix_cache)


SPARE = either(whole(-1, 6), whole(0, 30), just(2000))
"""Mostly tight; 2000 is more than any trace here needs."""


def pool_runs(
    policy: Maker = strategies.POLICIES,
    cost: Maker = strategies.COSTS,
    one_token: Sequence[float] = ANY_OUTPUT,
) -> Maker:
    """Make a run with vLLM's pool."""

    def make(rng: random.Random) -> Run:
        made, text = shared(one_token)(rng), policy(rng)
        return Run(
            made[0],
            text,
            cost(rng),
            maybe(strategies.COSTS)(rng),
            maybe(strategies.OBJECTIVES)(rng),
            Limits(strategies.seats(text, rng), rarely(whole(10, 120))(rng), rarely(whole(100, 4000))(rng)),
            pool(made, SPARE(rng), rng.random() < 0.75),
        )

    return make


def store(block: int, rng: random.Random) -> Memory:
    """Return PrefillOnly's store, with a link to CPU memory on the scale of a step."""
    suffix = rng.choice(["keep", "discard", "offload"])
    link = {}
    if suffix == "offload":
        link = {
            "cpu_blocks": rng.randint(1, 40),
            "bytes_per_block": rng.randint(1, 30),
            "pcie_bytes_per_s": 10**9 * rng.randint(1, 8) // 4,
            "pcie_latency_ns": rng.randint(0, 40),
        }
    return Memory(regime="store", blocks=rng.randint(0, 30), block_size=block, suffix=suffix, **link)


def store_runs(cost: Maker = strategies.COSTS) -> Maker:
    """Make a run of one-token requests with PrefillOnly's store."""

    def make(rng: random.Random) -> Run:
        trace, block = shared(ONE_TOKEN)(rng)
        return Run(
            trace,
            strategies.POLICIES(rng),
            cost(rng),
            maybe(strategies.COSTS)(rng),
            maybe(strategies.OBJECTIVES)(rng),
            Limits(None, rarely(whole(10, 120))(rng), rarely(whole(100, 4000))(rng)),
            store(block, rng),
        )

    return make


CROWD_POLICIES = either(
    built("{}+{}".format, strategies.ANY_ORDERING, strategies.CHUNKINGS["full"]),
    built("{}+token-budget:budget={}".format, strategies.ANY_ORDERING, whole(12, 60)),
    built("fcfs+token-budget:budget={},threshold={}".format, whole(12, 40), whole(1, 9)),
    built("{}+{}".format, strategies.ANY_ORDERING, strategies.CHUNKINGS["deadline-fill"]),
)


def crowded_runs(policies: Maker = CROWD_POLICIES) -> Maker:
    """Make a run of many requests at once that outgrow the pool, so that most are preempted, some several times."""

    def make(rng: random.Random) -> Run:
        made = timed(contents.contents(BLOCKS, 14)(rng), rng.getrandbits(64), [0, 4, 30], 0.0, 0.0, rng.randint(2, 6))
        return Run(
            made[0],
            policies(rng),
            strategies.COSTS(rng),
            maybe(strategies.COSTS)(rng),
            maybe(strategies.OBJECTIVES)(rng),
            Limits(horizon_ns=rarely(whole(100, 4000))(rng)),
            pool(made, rng.randint(0, 4), rng.random() < 0.5),
        )

    return make
