"""PrefillOnly's memory regime: a store of finished prefixes beside the working memory of one request."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sim.blocks import too_long
from sim.content import ContentTree
from sim.numbers import as_list
from sim.prefixlru import PrefixLru

Suffix = Literal["keep", "discard", "offload"]


@dataclass(frozen=True, kw_only=True)
class CpuMemory:
    """Where blocks are offloaded to, and the link to it."""

    blocks: int
    """How many it holds."""
    bytes_per_block: int
    bytes_per_s: int
    """Bandwidth from CPU to GPU memory."""
    latency_ns: int = 0
    """Time that a transfer takes beside its bytes."""

    def transfer_ns(self, blocks: int) -> int:
        """Return how long it takes to bring blocks into GPU memory, rounded up; nothing takes no time."""
        if blocks <= 0:
            return 0
        return self.latency_ns - (-blocks * self.bytes_per_block * 10**9 // self.bytes_per_s)


@dataclass(frozen=True)
class _Transfer:
    """Blocks ``lo`` to ``hi`` of a waiting request, in working memory from ``ready_ns`` on."""

    index: int
    lo: int
    hi: int
    ready_ns: int


@dataclass(frozen=True)
class _Reach:
    """The leading blocks that a request finds: ``gpu`` of them in the store, ``total`` with what is brought."""

    gpu: int
    total: int
    loads: int
    """Blocks that no transfer has brought or is bringing yet."""
    waits_ns: int
    """When the transfer that it relies on has ended; 0 where it relies on none."""


class PrefixStore:
    """PrefillOnly's KV memory (§4, §5 and its Algorithm 1) as :class:`sim.kvcache.KVCache`.

    The profile run has set working memory for one request aside, so running requests take no blocks here and only
    those with a single output token can run. A request that finishes enters the store head first, as far as it fits;
    others make room, least recently used first, a prompt's tail before its head. What it hit is pinned while it runs.

    A hit may go on in CPU memory: the GPU's prefix first, then the CPU's. Those blocks travel to working memory, and
    :attr:`stall_ns` is the wait for them, less what :meth:`prefetch` began earlier. Whether loading is worth it is not
    decided here.

    Args:
        tree: the content of the trace, in blocks.
        blocks: size of the store, 0 for none; there is no null block.
        suffix: which full blocks of a finished prompt enter. ``keep``: all. ``discard``: those that at least two
            requests of the trace begin with, which stands in for what an application knows about its own prompts.
            ``offload``: all, and all are written through to CPU memory too.
        cpu: needed for ``offload``.
        max_input: longest prompt in tokens; longer ones are refused.
    """

    tracks = True
    paged = False

    def __init__(
        self,
        tree: ContentTree,
        blocks: int,
        *,
        suffix: Suffix = "keep",
        cpu: CpuMemory | None = None,
        max_input: int | None = None,
    ) -> None:
        self.tree = tree
        self.block_size = tree.block_size
        self.capacity = blocks
        self.free = blocks
        self.stall_ns = 0
        self._gpu = PrefixLru(tree, blocks)
        self._cpu = PrefixLru(tree, cpu.blocks) if cpu is not None and suffix == "offload" else None
        self._link = cpu
        self._discards = suffix == "discard"
        self._max_input = max_input
        self._prompts = as_list(tree.trace.prompt_tokens)
        self._outputs = as_list(tree.trace.output_tokens)
        self._pinned: dict[int, int] = {}
        self._coming: _Transfer | None = None
        self._watched: set[int] = set()
        self._given_up: list[int] = []

    def refusal(self, index: int) -> str | None:
        """See :meth:`sim.kvcache.KVCache.refusal`."""
        if self._outputs[index] > 1:
            return (
                f"generates {self._outputs[index]} tokens, but prefill-only serving keeps no KV to decode with; "
                "use the paged pool"
            )
        return too_long(self._prompts[index], self._max_input)

    def hit_tokens(self, index: int, tokens: int) -> int:
        """See :meth:`sim.kvcache.KVCache.hit_tokens`."""
        return self._reach(index, tokens).total * self.block_size

    def fits(self, index: int, tokens: int, reserve: int) -> bool:
        """Return that it does: its working memory is set aside."""
        return True

    def start(self, index: int, tokens: int, now: int) -> int:
        """See :meth:`sim.kvcache.KVCache.start`; blocks that come from CPU memory add to :attr:`stall_ns`."""
        reach = self._reach(index, tokens)
        self._gpu.pin(index, reach.gpu)
        self.free = self.capacity - self._gpu.pinned
        self._pinned[index] = reach.gpu
        if self._link is not None:
            arrived = max(now, reach.waits_ns) + self._link.transfer_ns(reach.loads)
            self.stall_ns += arrived - now
        if self._coming is not None and self._coming.index == index:
            self._coming = None
        return reach.total * self.block_size

    def missing(self, index: int, computed: int) -> int:
        """Return 0."""
        return 0

    def extend(self, index: int, computed: int) -> None:
        """Do nothing: blocks enter the store at the end."""

    def take(self, blocks: int) -> None:
        """Do nothing: there are no decodes."""

    def finish(self, index: int, computed: int, known: int | None = None) -> None:
        """Enter the request's full prompt blocks; nothing preempts it, so all of its prompt is computed."""
        self._gpu.unpin(index, self._pinned.pop(index))
        self.free = self.capacity - self._gpu.pinned
        blocks = min(self._prompts[index], computed) // self.block_size
        if self._cpu is not None:
            self._cpu.enter(index, blocks)
        if self._discards:
            blocks = max([0, *(min(at.hi, blocks) for at in self._gpu.path(index) if at.shared)])
        self._gpu.enter(index, blocks)

    def watch(self, index: int) -> None:
        """See :meth:`sim.kvcache.KVCache.watch`."""
        self._gpu.watch(index)
        if self._cpu is not None:
            self._cpu.watch(index)
            self._watched.add(index)

    def unwatch(self, index: int) -> None:
        """See :meth:`sim.kvcache.KVCache.unwatch`."""
        self._gpu.unwatch(index)
        if self._cpu is not None:
            self._cpu.unwatch(index)
            self._watched.discard(index)

    def changes(self) -> list[int]:
        """See :meth:`sim.kvcache.KVCache.changes`."""
        changed = self._gpu.changes()
        if self._cpu is None:
            return changed
        given_up = [i for i in self._given_up if i in self._watched]
        self._given_up.clear()
        return list(dict.fromkeys([*changed, *self._cpu.changes(), *given_up]))

    def prefetch(self, index: int, tokens: int, now: int) -> None:
        """Begin to bring a request's CPU blocks to working memory; a transfer for another request is given up.

        Asked again for the same request it does nothing as long as a transfer for it is remembered.
        """
        if self._cpu is None or self._link is None or (self._coming is not None and self._coming.index == index):
            return
        if self._coming is not None:
            self._given_up.append(self._coming.index)
            self._coming = None
        reach = self._reach(index, tokens)
        if reach.loads:
            self._coming = _Transfer(index, reach.gpu, reach.total, now + self._link.transfer_ns(reach.loads))

    def _reach(self, index: int, tokens: int) -> _Reach:
        limit = (tokens - 1) // self.block_size
        gpu = min(limit, self._gpu.depth(index))
        if self._cpu is None:
            return _Reach(gpu, gpu, 0, 0)
        cpu = min(limit, self._cpu.depth(index))
        coming = self._coming
        if coming is None or coming.index != index or coming.hi <= gpu or coming.lo > max(gpu, cpu):
            return _Reach(gpu, max(gpu, cpu), max(0, cpu - gpu), 0)
        before, beyond = max(0, coming.lo - gpu), max(0, cpu - coming.hi)
        return _Reach(gpu, max(coming.hi, cpu), before + beyond, coming.ready_ns)
