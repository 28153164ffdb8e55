"""The steps to be measured: decodes with their context, prompts with theirs, and both together."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from costmodels.profile import ProfileError
from policies.registry import nearest


class Cell(NamedTuple):
    """One step to be measured."""

    n_decode: int
    decode_context: int
    """Tokens that each decode holds in the KV cache; 0 where nothing decodes."""
    prompts: int
    prefill_tokens: int
    """Of all prompts together."""
    prefill_context: int
    """Tokens that each prompt has computed before."""

    def __str__(self) -> str:
        parts = []
        if self.n_decode:
            parts.append(f"{self.n_decode} decodes at {self.decode_context}")
        if self.prompts:
            several = f" of {self.prompts} prompts" if self.prompts > 1 else ""
            parts.append(f"{self.prefill_tokens} prefill tokens{several} at {self.prefill_context}")
        return " + ".join(parts)

    @property
    def chunks(self) -> tuple[int, ...]:
        """Prefill tokens of each prompt."""
        if not self.prompts:
            return ()
        least, over = divmod(self.prefill_tokens, self.prompts)
        return tuple(least + (i < over) for i in range(self.prompts))


@dataclass(frozen=True)
class Capacity:
    """What one engine can hold."""

    max_num_seqs: int
    max_model_len: int
    max_step_tokens: int
    kv_blocks: int
    block_size: int


@dataclass(frozen=True)
class Axes:
    """Levels of each axis of a grid; a 0 among decodes or prefill tokens stands for steps without any.

    Raises:
        ProfileError: if an axis is empty or has a value that no step can have, or no step is left.
    """

    decodes: tuple[int, ...]
    decode_contexts: tuple[int, ...]
    prefill_tokens: tuple[int, ...]
    prefill_contexts: tuple[int, ...]
    prompts: tuple[int, ...] = (1,)

    def __post_init__(self) -> None:
        for axis, least in (
            ("decodes", 0),
            ("decode_contexts", 1),
            ("prefill_tokens", 0),
            ("prefill_contexts", 0),
            ("prompts", 1),
        ):
            values = getattr(self, axis)
            option = "--" + axis.replace("_", "-")
            if not values:
                raise ProfileError(f"{option} is empty; give whole numbers, like 1,8,64")
            if min(values) < least:
                raise ProfileError(f"{option} has {min(values)}; it must be at least {least}")
        if max(self.decodes) == max(self.prefill_tokens) == 0:
            raise ProfileError("--decodes and --prefill-tokens are both 0, so no step has any work")

    def cells(self, block_size: int) -> list[Cell]:
        """Return the product of the axes as cells, in order, each once.

        Contexts are moved to what an engine can restore from whole cached blocks: a decode's down to a multiple of the
        block plus one token, a prompt's down to a multiple. Several prompts at once have no context.
        """
        decodes = sorted(
            {(n, _restorable(c, block_size)) for n in self.decodes if n for c in self.decode_contexts}
            | ({(0, 0)} if 0 in self.decodes else set())
        )
        prefills = sorted(
            {
                (m, c, k // block_size * block_size)
                for c in self.prefill_tokens
                if c
                for k in self.prefill_contexts
                for m in self.prompts
                if m == 1 or (k == 0 and m <= c)
            }
            | ({(0, 0, 0)} if 0 in self.prefill_tokens else set())
        )
        return [Cell(*d, *p) for d, p in itertools.product(decodes, prefills) if d[0] or p[0]]


def _restorable(context: int, block_size: int) -> int:
    return max(context - 1, 0) // block_size * block_size + 1


GRIDS = ("small", "default", "full")

_LEVELS = {"small": (3, 2, 3, 2), "default": (5, 3, 5, 3), "full": (8, 5, 9, 5)}
"""How many levels decodes, their contexts, prefill tokens and their contexts have."""

_PROMPTS = {"small": (1,), "default": (1, 4), "full": (1, 2, 8)}


def preset(name: str, capacity: Capacity) -> Axes:
    """Return the axes of a named grid: levels that grow by equal factors up to what the engine can hold.

    Raises:
        ProfileError: if there is no such grid.
    """
    if name not in GRIDS:
        raise ProfileError(f"unknown grid {name!r}{nearest(name, GRIDS)} ({', '.join(GRIDS)})")
    n_decodes, n_contexts, n_tokens, n_depths = _LEVELS[name]
    longest = capacity.max_model_len
    # The largest decode batch leaves room for a prompt, and the largest prompt for that batch.
    most = max(min(capacity.max_num_seqs - max(_PROMPTS[name]), capacity.kv_blocks // 8), 1)
    chunk = min(max(capacity.max_step_tokens - most, capacity.max_step_tokens // 2), longest // 2)
    return Axes(
        decodes=(0, *_geometric(1, most, n_decodes)),
        decode_contexts=_geometric(min(max(64, capacity.block_size + 1), longest // 4), longest * 3 // 4, n_contexts),
        prefill_tokens=(0, *_geometric(min(16, chunk), chunk, n_tokens)),
        prefill_contexts=(0, *_geometric(min(256, longest // 4), longest // 2, n_depths - 1)),
        prompts=_PROMPTS[name],
    )


def _geometric(first: int, last: int, count: int) -> tuple[int, ...]:
    levels: Iterable[float] = np.geomspace(max(first, 1), max(last, first, 1), count) if count > 1 else [last]
    return tuple(sorted({round(v) for v in levels}))
