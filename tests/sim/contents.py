"""Random traces whose prompts share content: few ids, nested uses, equal prompts, lengths around whole blocks."""

from __future__ import annotations

import random

import numpy as np
from hypothesis import strategies as st

from tests.seeded import Maker, seeds
from traces import Segments, Trace


def life(rng: random.Random) -> bytes:
    """Make what happens next, a byte each; in some lives the same few things over and over."""
    n = rng.choice([rng.randint(1, 40), rng.randint(20, 200)])
    return bytes(rng.choices(rng.randbytes(rng.randint(1, 6)), k=n)) if rng.random() < 0.3 else rng.randbytes(n)


def content_traces(block_size: st.SearchStrategy[int], max_size: int = 8) -> st.SearchStrategy[tuple[Trace, int]]:
    """Draw a trace and the block size that its lengths lie around; some have no content at all."""
    return st.builds(_make, block_size, st.integers(1, max_size), st.integers(0, 5), seeds.map(random.Random))


def contents(block_size: Maker, max_size: int = 8) -> Maker:
    """Make what :func:`content_traces` draws."""
    return lambda rng: _make(block_size(rng), rng.randint(1, max_size), rng.randint(0, 5), rng)


def _make(block_size: int, n: int, kind: int, rng: random.Random) -> tuple[Trace, int]:
    prompts: list[list[tuple[int, int]]] = []
    for _ in range(n):
        if prompts and kind == 1:  # all alike
            prompts.append(prompts[0])
            continue
        if prompts and rng.random() < 0.5:
            prompt = rng.choice(prompts)[: rng.randint(1, 4)]
            if rng.random() < 0.5:
                content, _ = prompt[-1]
                prompt = [*prompt[:-1], (content, _length(rng, block_size))]
        else:
            prompt = []
        if not prompt or rng.random() < 0.4:
            prompt = prompt + [(rng.randint(-1, 3), _length(rng, block_size)) for _ in range(rng.randint(1, 2))]
        prompts.append(prompt)
    segments = Segments(
        np.cumsum([0, *(len(p) for p in prompts)]),
        np.array([c for p in prompts for c, _ in p]),
        np.array([t for p in prompts for _, t in p]),
    )
    outputs = np.array([rng.choice([1, 1 + block_size, rng.randint(1, 4 * block_size)]) for _ in range(n)])
    lengths = np.array([sum(t for _, t in p) for p in prompts])
    return Trace(np.arange(n), lengths, outputs, segments=segments if kind else None), block_size


def _length(rng: random.Random, block_size: int) -> int:
    return max(1, block_size * rng.randint(0, 3) + rng.choice([-1, 0, 0, 1, rng.randint(-block_size, block_size)]))
