"""Random traces, small and full of coincidences: equal arrivals, shared content, missing names."""

import random
from collections.abc import Sequence
from itertools import accumulate

import numpy as np
from hypothesis import strategies as st

from tests.seeded import Maker, seeded
from traces.schema import NONE, Segments, Trace

NAMES = (None, "None", "", " ", "é", "a\0b", "a,b", "\n")
OBJECTIVES = (NONE, 1, 25_000_000, 2**62 - 1)
NUMBERS = (0, -1, 5, 2**62, -(2**62))
LABELS = ("", " ", "0", "é", "a\0b")


def _int64(values: Sequence[int]) -> np.ndarray:
    return np.array(values, dtype=np.int64)


def _length(rng: random.Random, most: int) -> int:
    """Make a whole number up to ``most``, often the least or the most."""
    return rng.choice((1, most, *(rng.randint(1, most) for _ in range(6))))


def _values(rng: random.Random, among: Sequence[object], n: int) -> list | None:
    """Make an optional column, at times of one value only."""
    kind = rng.randrange(8)
    return rng.choices(among, k=n) if kind < 3 else [rng.choice(among)] * n if kind == 3 else None


def _objectives(rng: random.Random, n: int) -> np.ndarray | None:
    values = _values(rng, OBJECTIVES, n)
    return None if values is None else _int64(values)


def _names(rng: random.Random, n: int) -> np.ndarray | None:
    values = _values(rng, NAMES, n)
    return None if values is None else np.array(values, dtype=object)


def _ids(rng: random.Random, n: int) -> np.ndarray | None:
    kind = rng.randrange(4)
    if kind == 0:
        return _int64(rng.sample((*NUMBERS, *range(10, 10 + n)), n))
    return np.array(rng.sample((*LABELS, *map(str, range(10, 10 + n))), n), dtype=object) if kind == 1 else None


def made_contents(rng: random.Random, n: int, largest: int = 60) -> Segments:
    """Make segments of ``n`` prompts over a handful of ids.

    Some prompts begin as an earlier one does, or are equal, or begin some id anew where the other goes on with it.
    """
    prompts: list[list[tuple[int, int]]] = []
    for _ in range(n):
        earlier = rng.choice(prompts) if prompts and rng.random() < 0.4 else []
        prompt = earlier[: rng.randint(0, 5)]
        if 0 < len(prompt) < 5 and rng.randrange(2):
            at = rng.randrange(len(prompt))
            content, tokens = prompt[at]
            first = rng.choice((16, rng.randint(1, largest)))
            prompt[at : at + 1] = [(content, first), (content, tokens - first)][: 1 + (first < tokens)]
        more = rng.randint(0 if prompt else 1, 5 - len(prompt))
        prompts.append(prompt + [(rng.randint(0, 4), _length(rng, largest)) for _ in range(more)])
    flat = [s for prompt in prompts for s in prompt]
    return Segments(
        _int64([0, *accumulate(map(len, prompts))]), _int64([i for i, _ in flat]), _int64([t for _, t in flat])
    )


def made_trace(rng: random.Random, min_size: int = 0, max_size: int = 8) -> Trace:
    """Make a trace with any of the optional columns."""
    n = rng.randint(min_size, max_size)
    segments = made_contents(rng, n) if rng.randrange(2) else None
    if segments is None:
        prompts = _int64([_length(rng, 200) for _ in range(n)])
    else:
        prompts = np.diff(np.concatenate([[0], np.cumsum(segments.tokens)])[segments.offsets]).astype(np.int64)
    return Trace(
        _int64(sorted(rng.choice((rng.randint(0, 5), rng.randint(10**9, 10**15))) for _ in range(n))),
        prompts,
        _int64([_length(rng, 50) for _ in range(n)]),
        segments=segments,
        session=_names(rng, n),
        tenant=_names(rng, n),
        slo_ttft_ns=_objectives(rng, n),
        slo_tpot_ns=_objectives(rng, n),
        id=_ids(rng, n),
        row=_int64(rng.sample(range(n), n)) if rng.randrange(2) else None,
        name=rng.choice(("", "trace", "é\n")),
    )


def sized(min_size: int = 0, max_size: int = 8) -> Maker:
    """Make what :func:`made_trace` makes of so many requests."""
    return lambda rng: made_trace(rng, min_size, max_size)


def contents(n: int, largest: int = 60) -> st.SearchStrategy[Segments]:
    """Draw what :func:`made_contents` makes."""
    return seeded(lambda rng: made_contents(rng, n, largest))


def traces(min_size: int = 0, max_size: int = 8) -> st.SearchStrategy[Trace]:
    """Draw what :func:`made_trace` makes."""
    return seeded(sized(min_size, max_size))
