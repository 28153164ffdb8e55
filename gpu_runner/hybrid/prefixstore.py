"""KV of prompts' beginnings, in blocks, the least recently used of which make room."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from gpu_runner.hybrid.attention import KV
from gpu_runner.hybrid.errors import HybridError

Key = tuple[int, tuple[int, ...]]
"""The block before (its serial number, -1 for none) and the tokens of this one."""


@dataclass(frozen=True)
class Shape:
    """What one block holds: ``size`` tokens of ``layers`` layers with ``kv_heads`` heads of ``head_dim``."""

    layers: int
    kv_heads: int
    head_dim: int
    dtype: torch.dtype
    size: int = 16

    @property
    def block_bytes(self) -> int:
        """Bytes of one block."""
        return 2 * self.layers * self.size * self.kv_heads * self.head_dim * self.dtype.itemsize


class PrefixStore:
    """At most ``capacity`` blocks in memory that is taken at once.

    A block is found by its tokens and all tokens before them. As in the simulator's store a prompt's tail leaves
    before its head, whole blocks hit, and never the prompt's last token.

    Args:
        shape: of a block.
        capacity: blocks; may be 0.
        device: where they are.
    """

    def __init__(self, shape: Shape, capacity: int, device: str = "cpu") -> None:
        if capacity < 0:
            raise HybridError(f"the prefix store's capacity is {capacity} blocks; it must be at least 0")
        self.shape = shape
        self.capacity = capacity
        rows = (capacity, shape.size, shape.kv_heads, shape.head_dim)
        self._pools = [
            tuple(torch.empty(rows, dtype=shape.dtype, device=device) for _ in "kv") for _ in range(shape.layers)
        ]
        self._slots: OrderedDict[Key, tuple[int, int]] = OrderedDict()
        self._free = list(range(capacity - 1, -1, -1))
        self._serial = 0

    def __len__(self) -> int:
        """Blocks that are stored."""
        return len(self._slots)

    def cached_tokens(self, ids: Sequence[int]) -> int:
        """Return how many of a prompt's first tokens are stored, without touching their order."""
        return len(self._found(ids)) * self.shape.size

    def open(self, ids: Sequence[int], keep: int) -> Entry:
        """Return what is stored of a prompt, with room for its first ``keep`` tokens, in whole blocks.

        Where they do not all fit, the first ones are kept. The blocks found are not given away. Use it as a context:
        what the prefill has kept can be found by others from its end on, and not at all if the prefill fails.
        """
        found = self._found(ids)
        size = self.shape.size
        wanted = min(keep // size, self.capacity)
        held = list(found)
        fresh: list[tuple[Key, int, int]] = []
        parent = self._slots[found[-1]][1] if found else -1
        for block in range(len(found), wanted):
            key = (parent, tuple(ids[block * size : (block + 1) * size]))
            if key in self._slots:  # the block of the prompt's last token: stored, but not to be hit
                held.append(key)
                break
            slot = self._take(set(held))
            if slot is None:
                break
            fresh.append((key, slot, self._serial))
            parent = self._serial
            self._serial += 1
        return Entry(self, found, held, fresh)

    def _found(self, ids: Sequence[int]) -> list[Key]:
        found: list[Key] = []
        parent = -1
        size = self.shape.size
        for lo in range(0, (len(ids) - 1) // size * size, size):
            key = (parent, tuple(ids[lo : lo + size]))
            if key not in self._slots:
                break
            parent = self._slots[key][1]
            found.append(key)
        return found

    def _take(self, held: set[Key]) -> int | None:
        if self._free:
            return self._free.pop()
        key = next((key for key in self._slots if key not in held), None)
        return None if key is None else self._slots.pop(key)[0]


class Entry:
    """One prompt's blocks: the prefix that a prefill starts from, and the sink for what it keeps.

    Attributes:
        tokens: that are stored.
        keep: new tokens that it takes.
    """

    def __init__(
        self, store: PrefixStore, found: list[Key], held: list[Key], fresh: list[tuple[Key, int, int]]
    ) -> None:
        self._store = store
        self._found = found
        self._held = held
        self._fresh = fresh
        self.tokens = len(found) * store.shape.size
        self.keep = len(fresh) * store.shape.size

    def layer(self, layer: int) -> KV:
        """Return the stored keys and values of one layer, [1, KV heads, tokens, d]."""
        pools = self._store._pools[layer]
        at = torch.tensor([self._store._slots[key][0] for key in self._found], device=pools[0].device)
        k, v = (pool.index_select(0, at).flatten(0, 1)[None].transpose(1, 2) for pool in pools)
        return k, v

    def __call__(self, layer: int, k: torch.Tensor, v: torch.Tensor) -> None:
        """Store a layer's keys and values of the new tokens that are kept."""
        slots = [slot for _, slot, _ in self._fresh]
        for pool, new in zip(self._store._pools[layer], (k, v), strict=True):
            at = torch.tensor(slots, device=pool.device)
            pool[at] = new[0].transpose(0, 1).unflatten(0, (len(slots), -1))

    def __enter__(self) -> Entry:
        return self

    def __exit__(self, failed: object, *_: object) -> None:
        store = self._store
        if failed is not None:
            store._free.extend(slot for _, slot, _ in reversed(self._fresh))
            return
        for key, slot, serial in self._fresh:
            store._slots[key] = (slot, serial)
        for key in reversed([*self._held, *(key for key, _, _ in self._fresh)]):
            store._slots.move_to_end(key)
