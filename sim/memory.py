"""KV memory as a run's configuration describes it."""

from __future__ import annotations

import difflib
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from sim.content import ContentTree
from sim.kvcache import KVCache, NullCache
from sim.pool import BlockPool
from sim.prefixstore import CpuMemory, PrefixStore, Suffix
from traces.schema import Trace

Regime = Literal["pool", "store"]


class MemoryConfigError(ValueError):
    """A description of KV memory that cannot be built."""


@dataclass(frozen=True, kw_only=True)
class Memory:
    """How much KV memory a replica has, and how it is used.

    Raises:
        MemoryConfigError: if no such memory can exist.
    """

    blocks: int | None = None
    """Blocks of the pool, of which vLLM never gives out one, or of the store; ``None`` is a pool without bounds."""
    block_size: int = 16
    """Tokens of a block."""
    prefix_cache: bool = True
    """Whether the pool's blocks can be hit by later requests; a store is nothing else."""
    regime: Regime = "pool"
    """``pool``: vLLM's, shared by running requests and cached prefixes. ``store``: PrefillOnly's, where working memory
    for one request is set aside and only prefixes of finished ones are kept."""
    suffix: Suffix = "keep"
    """What becomes of a finished prompt's blocks in a store; see :class:`sim.prefixstore.PrefixStore`."""
    max_input: int | None = None
    """Maximum input length in tokens: longer prompts are rejected."""
    cpu_blocks: int = 0
    """Blocks of CPU memory, for ``suffix="offload"``."""
    bytes_per_block: int = 0
    """KV bytes of a block over all layers that have to travel."""
    pcie_bytes_per_s: int = 0
    """Bandwidth from CPU to GPU memory."""
    pcie_latency_ns: int = 0
    """Time that a transfer takes beside its bytes."""

    def __post_init__(self) -> None:
        problem = self._problem()
        if problem is not None:
            raise MemoryConfigError(problem)

    def build(self, trace: Trace, tree: ContentTree | None = None) -> KVCache:
        """Return an empty cache for a trace.

        Args:
            trace: the requests that will ask.
            tree: the trace's content in blocks of this size, where there are several caches for one trace.
        """
        if self.blocks is None and not self.prefix_cache and self.max_input is None:
            return NullCache()
        if tree is None:
            tree = ContentTree(trace, self.block_size)
        elif tree.trace is not trace or tree.block_size != self.block_size:
            raise MemoryConfigError(
                f"the content tree is of trace {tree.trace.name} in blocks of {tree.block_size} tokens, "
                f"not of {trace.name} in blocks of {self.block_size}"
            )
        if self.regime == "pool":
            return BlockPool(tree, self.blocks, prefix_cache=self.prefix_cache, max_input=self.max_input)
        assert self.blocks is not None
        cpu = None
        if self.suffix == "offload":
            cpu = CpuMemory(
                blocks=self.cpu_blocks,
                bytes_per_block=self.bytes_per_block,
                bytes_per_s=self.pcie_bytes_per_s,
                latency_ns=self.pcie_latency_ns,
            )
        return PrefixStore(tree, self.blocks, suffix=self.suffix, cpu=cpu, max_input=self.max_input)

    def to_dict(self) -> dict[str, Any]:
        """Return all fields, as JSON can say them."""
        return asdict(self)

    def _problem(self) -> str | None:
        for name, plural, known in (
            ("regime", "regimes", get_args(Regime)),
            ("suffix", "suffixes", get_args(Suffix)),
        ):
            value = getattr(self, name)
            if value not in known:
                near = difflib.get_close_matches(str(value), known, 1, 0.5)
                hint = f"; did you mean {near[0]}?" if near else ""
                return f"unknown {name} {value}{hint} ({plural}: {', '.join(known)})"
        for name in ("cpu_blocks", "bytes_per_block", "pcie_bytes_per_s", "pcie_latency_ns"):
            if getattr(self, name) < 0:
                return f"{name} is {getattr(self, name)}, but must be at least 0"
        if self.block_size < 1:
            return f"block_size is {self.block_size}, but a block has at least 1 token"
        if self.max_input is not None and self.max_input < 1:
            return f"max_input is {self.max_input}, but a prompt has at least 1 token"
        return self._pool_problem() if self.regime == "pool" else self._store_problem()

    def _pool_problem(self) -> str | None:
        if self.blocks is not None and self.blocks < 2:
            return f"blocks is {self.blocks}, but a pool needs at least 2: vLLM never gives out one of them"
        if self.suffix != "keep":
            return f"suffix={self.suffix} is for regime=store; a pool keeps what fits"
        return None

    def _store_problem(self) -> str | None:
        if self.blocks is None:
            return "a store needs its size in blocks, 0 for none"
        if self.blocks < 0:
            return f"blocks is {self.blocks}, but a store has at least 0"
        if not self.prefix_cache:
            return "a store is a prefix cache; say blocks=0 instead of prefix_cache=False"
        if self.suffix == "offload":
            for name in ("cpu_blocks", "bytes_per_block", "pcie_bytes_per_s"):
                if not getattr(self, name):
                    return f"suffix=offload needs {name}, at least 1"
        return None
