"""Random runs whose requests need memory and share prompts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import strategies as st

from costmodels import CostModel
from costmodels.prefill import PipelineCost
from sim.engine import Limits
from sim.memory import Memory
from tests.engine import strategies
from tests.engine.strategies import Run, maybe, rarely
from tests.sim.contents import content_traces
from traces import NONE, Trace

blocks = st.sampled_from([1, 2, 3, 4, 7, 16])

pipelines = st.builds(
    lambda a, b: PipelineCost("two", (a, b)),
    st.one_of(strategies.linear_costs, strategies.growing_costs),
    st.one_of(strategies.linear_costs, strategies.growing_costs),
)
"""Two stages, whose bubbles depend on the batches."""

GAPS = [0, 4, 30, 120, 400]


def timed(
    drawn: tuple[Trace, int], gap: int, idle: float, one_token: float, longer: int, own: bool, seed: int
) -> tuple[Trace, int]:
    """Give a trace arrivals of all kinds, outputs that may be ``longer`` blocks, and some objectives and tenants."""
    trace, block = drawn
    rng = np.random.default_rng(seed)
    n = len(trace)
    gaps = np.where(rng.random(n) < idle, rng.integers(500, 3000, n), rng.integers(0, gap + 1, n))
    columns: dict[str, np.ndarray] = {
        "output_tokens": np.where(
            rng.random(n) < one_token, 1, trace.output_tokens + rng.integers(0, longer * block + 1, n)
        ),
        "arrival_ns": np.cumsum(gaps),
    }
    if own:
        columns["slo_tpot_ns"] = np.where(rng.random(n) < 0.3, NONE, rng.integers(10, 400, n))
        columns["tenant"] = np.array(strategies.TENANTS, dtype=object)[rng.integers(0, 2, n)]
        columns["session"] = np.array(["a", "b", "c"], dtype=object)[rng.integers(0, 3, n)]
    return replace(trace, **columns), block


def contents(one_token: st.SearchStrategy[float], max_size: int = 14) -> st.SearchStrategy[tuple[Trace, int]]:
    """Draw a trace with shared prompts and the block size that its lengths lie around."""
    return st.builds(
        timed,
        content_traces(blocks, max_size),
        st.sampled_from(GAPS),
        st.sampled_from([0.0, 0.0, 0.2]),
        one_token,
        st.integers(0, 6),
        st.booleans(),
        st.integers(0, 2**32),
    )


def largest(trace: Trace, block: int) -> int:
    """Return the blocks that the largest request needs."""
    return -(-int((trace.prompt_tokens + trace.output_tokens - 1).max()) // block)


def pool(drawn: tuple[Trace, int], spare: int, prefix_cache: bool) -> Memory:
    """Return a pool that holds the largest request and ``spare`` blocks, which for others may be too few."""
    trace, block = drawn
    return Memory(blocks=max(2, largest(trace, block) + 1 + spare), block_size=block, prefix_cache=prefix_cache)


SPARE = st.one_of(st.integers(-1, 6), st.integers(0, 30), st.just(2000))
"""Mostly tight; 2000 is more than any trace here needs."""


@st.composite
def pool_runs(
    draw: st.DrawFn,
    policy: st.SearchStrategy[str] = strategies.policies,
    cost: st.SearchStrategy[CostModel] = strategies.costs,
    one_token: st.SearchStrategy[float] = st.sampled_from([0.0, 0.2, 0.0, 1.0]),  # noqa: B008
) -> Run:
    """Draw a run with vLLM's pool."""
    drawn = draw(contents(one_token))
    text = draw(policy)
    run = Run(
        drawn[0],
        text,
        draw(cost),
        draw(maybe(strategies.costs)),
        draw(maybe(strategies.objectives)),
        memory=pool(drawn, draw(SPARE), draw(st.booleans() | st.just(True))),
    )
    seats = None if "budget" in text or text.startswith(("sarathi", "vllm")) else draw(maybe(st.integers(1, 6)))
    longest, horizon = draw(rarely(st.integers(10, 120))), draw(rarely(st.integers(100, 4000)))
    return replace(run, limits=replace(run.limits, max_num_seqs=seats, max_model_len=longest, horizon_ns=horizon))


def store(drawn: tuple[Trace, int], size: int, suffix: str, cpu: tuple[int, int, int, int]) -> Memory:
    """Return PrefillOnly's store, with a link to CPU memory on the scale of a step."""
    if suffix != "offload":
        return Memory(regime="store", blocks=size, block_size=drawn[1], suffix=suffix)
    return Memory(
        regime="store",
        blocks=size,
        block_size=drawn[1],
        suffix=suffix,
        cpu_blocks=cpu[0],
        bytes_per_block=cpu[1],
        pcie_bytes_per_s=10**9 * cpu[2] // 4,
        pcie_latency_ns=cpu[3],
    )


@st.composite
def store_runs(draw: st.DrawFn, cost: st.SearchStrategy[CostModel] = strategies.costs) -> Run:
    """Draw a run of one-token requests with PrefillOnly's store."""
    drawn = draw(contents(st.just(1.0)))
    link = st.tuples(st.integers(1, 40), st.integers(1, 30), st.integers(1, 8), st.integers(0, 40))
    run = Run(
        drawn[0],
        draw(strategies.policies),
        draw(cost),
        draw(maybe(strategies.costs)),
        draw(maybe(strategies.objectives)),
        memory=store(
            drawn, draw(st.integers(0, 30)), draw(st.sampled_from(["keep", "discard", "offload"])), draw(link)
        ),
    )
    longest, horizon = draw(rarely(st.integers(10, 120))), draw(rarely(st.integers(100, 4000)))
    return replace(run, limits=replace(run.limits, max_model_len=longest, horizon_ns=horizon))


crowd_policies = st.one_of(
    st.builds("{}+{}".format, strategies.orderings, strategies.CHUNKINGS["full"]),
    st.builds("{}+token-budget:budget={}".format, strategies.orderings, st.integers(12, 60)),
    st.builds("fcfs+token-budget:budget={},threshold={}".format, st.integers(12, 40), st.integers(1, 9)),
    st.builds("{}+{}".format, strategies.orderings, strategies.CHUNKINGS["deadline-fill"]),
)


@st.composite
def crowded_runs(draw: st.DrawFn) -> Run:
    """Draw a run of many requests at once that outgrow the pool, so that most are preempted, some several times."""
    drawn = draw(
        st.builds(
            timed,
            content_traces(blocks, 14),
            st.sampled_from([0, 4, 30]),
            st.just(0.0),
            st.just(0.0),
            st.integers(2, 6),
            st.booleans(),
            st.integers(0, 2**32),
        )
    )
    horizon = draw(rarely(st.integers(100, 4000)))
    return Run(
        drawn[0],
        draw(crowd_policies),
        draw(strategies.costs),
        draw(maybe(strategies.costs)),
        draw(maybe(strategies.objectives)),
        Limits(horizon_ns=horizon),
        pool(drawn, draw(st.integers(0, 4)), draw(st.booleans())),
    )
