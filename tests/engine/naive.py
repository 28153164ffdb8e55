"""A run by the naive loop with the naive memory."""

from __future__ import annotations

from sim.prefixstore import CpuMemory
from tests.blockwise import BlockwisePool
from tests.engine.strategies import Run
from tests.reference import reference
from tests.sim.slow_store import SlowStore
from tests.tables import RunTables


def naive(run: Run) -> RunTables:
    """Return the tables of ``run`` as the naive loop makes them."""
    return reference(
        run.trace,
        run.build(),
        run.cost,
        predictor=run.predictor,
        objectives=run.objectives,
        limits=run.limits,
        cache=slow_cache(run),
    )


def slow_cache(run: Run) -> BlockwisePool | SlowStore | None:
    """Return the memory that ``run`` describes, block by block."""
    memory = run.memory
    if memory is None:
        return None
    if memory.regime == "pool":
        assert memory.blocks is not None
        return BlockwisePool(run.trace, memory.blocks, memory.block_size, memory.prefix_cache)
    assert memory.blocks is not None
    cpu = None
    if memory.suffix == "offload":
        cpu = CpuMemory(
            blocks=memory.cpu_blocks,
            bytes_per_block=memory.bytes_per_block,
            bytes_per_s=memory.pcie_bytes_per_s,
            latency_ns=memory.pcie_latency_ns,
        )
    return SlowStore(run.trace, memory.blocks, memory.block_size, memory.suffix, cpu)
