"""Random traces, small and full of coincidences: equal arrivals, shared ids, missing names."""

from itertools import accumulate

import numpy as np
from hypothesis import strategies as st

from traces.schema import NONE, Segments, Trace

names = st.sampled_from([None, "None", "", " ", "é", "a\0b", "a,b", "\n"])
objectives = st.sampled_from([NONE, 1, 25_000_000, 2**62 - 1])


def column(values: st.SearchStrategy, n: int, dtype: type) -> st.SearchStrategy:
    """An optional column of ``n`` values."""
    return st.none() | st.lists(values, min_size=n, max_size=n).map(lambda v: np.array(v, dtype=dtype))


@st.composite
def contents(draw: st.DrawFn, n: int, largest: int = 60) -> Segments:
    """Segments of ``n`` prompts over a handful of ids."""
    segment = st.tuples(st.integers(0, 4), st.integers(1, largest))
    prompts = draw(st.lists(st.lists(segment, min_size=1, max_size=5), min_size=n, max_size=n))
    flat = [s for prompt in prompts for s in prompt]
    return Segments(
        np.array([0, *accumulate(len(p) for p in prompts)], dtype=np.int64),
        np.array([i for i, _ in flat], dtype=np.int64),
        np.array([t for _, t in flat], dtype=np.int64),
    )


@st.composite
def traces(draw: st.DrawFn, min_size: int = 0, max_size: int = 8) -> Trace:
    """Traces with any of the optional columns."""
    n = draw(st.integers(min_size, max_size))
    arrivals = sorted(draw(st.lists(st.integers(0, 5) | st.integers(10**9, 10**15), min_size=n, max_size=n)))
    segments = draw(st.none() | contents(n))
    if segments is None:
        prompts = np.array(draw(st.lists(st.integers(1, 200), min_size=n, max_size=n)), dtype=np.int64)
    else:
        prompts = np.diff(np.concatenate([[0], np.cumsum(segments.tokens)])[segments.offsets])
    numbers = st.permutations([0, -1, 5, 2**62, -(2**62), *range(10, 10 + n)])
    labels = st.permutations(["", " ", "0", "é", "a\0b", *map(str, range(10, 10 + n))])
    ids = numbers.map(lambda v: np.array(v[:n], dtype=np.int64)) | labels.map(lambda v: np.array(v[:n], dtype=object))
    return Trace(
        np.array(arrivals, dtype=np.int64),
        prompts.astype(np.int64),
        np.array(draw(st.lists(st.integers(1, 50), min_size=n, max_size=n)), dtype=np.int64),
        segments=segments,
        session=draw(column(names, n, object)),
        tenant=draw(column(names, n, object)),
        slo_ttft_ns=draw(column(objectives, n, np.int64)),
        slo_tpot_ns=draw(column(objectives, n, np.int64)),
        id=draw(st.none() | ids),
        row=draw(st.none() | st.permutations(range(n)).map(lambda v: np.array(v, dtype=np.int64))),
        name=draw(st.sampled_from(["", "trace", "é\n"])),
    )
