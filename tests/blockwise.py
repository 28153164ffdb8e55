"""vLLM's block pool written naively: one object per block, one hash per full block, lists for everything.

It follows the rules of vLLM 0.32's default scheduler word by word and is what the fast pool must equal.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

from traces import Trace


@dataclass(eq=False)
class Block:
    """One KV block: ``key`` is the hash of all tokens up to its end, ``None`` while it is not full."""

    key: int | None = None
    holders: int = 0


@dataclass
class BlockwisePool:
    """``blocks`` blocks, one of them vLLM's null block; see :class:`sim.kvcache.KVCache`."""

    trace: Trace
    blocks: int
    block_size: int = 16
    prefix_cache: bool = True
    tracks: bool = True
    paged: bool = True
    stall_ns: int = 0
    unused: OrderedDict[Block, None] = field(init=False)
    """Blocks nobody holds, the next to be taken first; a list from which any one is taken out at once."""
    present: dict[int, list[Block]] = field(default_factory=dict)
    """Copies of each content, the oldest first."""
    tables: dict[int, list[Block]] = field(default_factory=dict)
    anonymous: list[Block] = field(default_factory=list)
    """Taken for decodes; whose they are is told at the end."""
    watched: set[int] = field(default_factory=set)
    _keys: dict[tuple[int, tuple], int] = field(default_factory=dict)
    _chains: dict[int, list[int]] = field(default_factory=dict)
    """The hashes of all full blocks that a request will ever have."""

    def __post_init__(self) -> None:
        self.unused = OrderedDict.fromkeys(Block() for _ in range(self.blocks - 1))

    @property
    def free(self) -> int:
        return len(self.unused)

    @property
    def capacity(self) -> int:
        return self.blocks - 1

    def content(self, index: int) -> list[tuple]:
        """Return all tokens of a request, outputs included."""
        if self.trace.segments is None:
            found = [("own", index, k) for k in range(int(self.trace.prompt_tokens[index]))]
        else:
            found = [(content, k) for content, n in self.trace.segments.of(index) for k in range(n)]
        return [*found, *(("out", index, k) for k in range(int(self.trace.output_tokens[index])))]

    def keys(self, index: int, tokens: int) -> list[int]:
        """Return the hashes of the full blocks of the first ``tokens`` tokens."""
        if index not in self._chains:
            content, key, keys = self.content(index), -1, []
            for end in range(self.block_size, len(content) + 1, self.block_size):
                key = self._keys.setdefault((key, tuple(content[end - self.block_size : end])), len(self._keys))
                keys.append(key)
            self._chains[index] = keys
        return self._chains[index][: tokens // self.block_size]

    def hits(self, index: int, tokens: int) -> list[Block]:
        """Return the oldest copies of the leading blocks that are present, at most ``tokens - 1`` tokens of them."""
        found: list[Block] = []
        if self.prefix_cache:
            for key in self.keys(index, tokens)[: (tokens - 1) // self.block_size]:
                if not self.present.get(key):
                    break
                found.append(self.present[key][0])
        return found

    def refusal(self, index: int) -> str | None:
        prompt, output = int(self.trace.prompt_tokens[index]), int(self.trace.output_tokens[index])
        needed = -(-(prompt + output - 1) // self.block_size)
        if needed <= self.capacity:
            return None
        return (
            f"needs {needed} blocks of {self.block_size} tokens for {prompt} prompt and {output} output tokens, "
            f"but the cache has {self.capacity}"
        )

    def hit_tokens(self, index: int, tokens: int) -> int:
        return len(self.hits(index, tokens)) * self.block_size

    def fits(self, index: int, tokens: int, reserve: int) -> bool:
        held = [b for b in self.hits(index, tokens) if b.holders]
        return -(-tokens // self.block_size) - len(held) <= self.free - reserve

    def start(self, index: int, tokens: int, now: int) -> int:
        assert index not in self.tables
        table = self.hits(index, tokens)
        for block in table:
            if not block.holders:
                del self.unused[block]
            block.holders += 1
        self.tables[index] = table
        return len(table) * self.block_size

    def missing(self, index: int, computed: int) -> int:
        return max(0, -(-computed // self.block_size) - len(self.tables[index]))

    def extend(self, index: int, computed: int) -> None:
        table = self.tables[index]
        for _ in range(self.missing(index, computed)):
            table.append(self._take())
        self._register(table, index, computed)

    def take(self, blocks: int) -> None:
        self.anonymous += [self._take() for _ in range(blocks)]

    def finish(self, index: int, computed: int, known: int | None = None) -> None:
        table = self.tables.pop(index)
        while len(table) < -(-computed // self.block_size):
            table.append(self.anonymous.pop())
        self._register(table, index, computed if known is None else known)
        for block in reversed(table):
            block.holders -= 1
            if block.holders == 0:
                self.unused[block] = None
                self.unused.move_to_end(block, last=block.key is not None)

    def watch(self, index: int) -> None:
        self.watched.add(index)

    def unwatch(self, index: int) -> None:
        self.watched.remove(index)

    def changes(self) -> list[int]:
        return sorted(self.watched)

    def prefetch(self, index: int, tokens: int, now: int) -> None:
        pass

    def _take(self) -> Block:
        block, _ = self.unused.popitem(last=False)
        if block.key is not None:
            self.present[block.key].remove(block)
            block.key = None
        block.holders = 1
        return block

    def _register(self, table: list[Block], index: int, computed: int) -> None:
        if not self.prefix_cache:
            return
        for block, key in zip(table, self.keys(index, computed), strict=False):
            if block.key is None:
                block.key = key
                self.present.setdefault(key, []).append(block)
