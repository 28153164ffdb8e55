"""What a trace refuses, and what selecting, limiting and rescaling do to it."""

import os
import random
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from tests.seeded import cases, either, pick, whole
from tests.traces.strategies import made_trace, sized
from traces.schema import LATEST_NS, Segments, Trace, TraceError
from traces.synthetic import generate


def trace(**changes: object) -> Trace:
    columns = {"arrival_ns": np.array([0, 5]), "prompt_tokens": np.array([3, 4]), "output_tokens": np.array([1, 1])}
    return Trace(**(columns | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"output_tokens": np.array([1])}, "column output_tokens has 1 rows instead of 2"),
        ({"arrival_ns": np.array([5, 0])}, "arrival_ns is not sorted"),
        ({"arrival_ns": np.array([-1, 0])}, "arrival_ns has negative times"),
        ({"arrival_ns": np.array([0, LATEST_NS])}, r"arrival_ns has times of 2\*\*62 ns or later"),
        ({"prompt_tokens": np.array([3, 0])}, "request 1 has prompt_tokens 0, which must be at least 1"),
        ({"output_tokens": np.array([0, 1])}, "request 0 has output_tokens 0, which must be at least 1"),
        ({"id": np.array(["a", "a"])}, "request ids are not unique"),
        ({"slo_tpot_ns": np.array([-1, 0])}, "slo_tpot_ns must be at least 1, or -1 for no objective"),
        ({"segments": Segments(np.array([0, 1]), np.array([1]), np.array([3]))}, "segments describe 1 of 2 requests"),
        (
            {"segments": Segments(np.array([0, 2, 3]), np.array([1, 2, 3]), np.array([3, 0, 4]))},
            "a content segment has no tokens",
        ),
        (
            {"segments": Segments(np.array([0, 1, 2]), np.array([1, 2]), np.array([3, 5]))},
            "the content segments of request 1 hold 5 tokens instead of 4",
        ),
    ],
)
def test_an_impossible_trace_is_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(TraceError, match=message):
        trace(**changes)


def some_rows(rng: random.Random) -> tuple[Trace, list[int]]:
    made = made_trace(rng)
    return made, sorted(rng.sample(range(len(made)), rng.randint(0, len(made))))


@cases(60, some_rows)
def test_selected_rows_are_those_rows(drawn: tuple[Trace, list[int]]) -> None:
    trace, chosen = drawn
    part = trace.select(np.array(chosen, dtype=np.int64))
    for column in Trace.COLUMNS:
        values = getattr(trace, column)
        if values is not None:
            assert getattr(part, column).tolist() == [values.tolist()[i] for i in chosen]
    if trace.segments is not None:
        assert [part.segments.of(k) for k in range(len(chosen))] == [trace.segments.of(i) for i in chosen]
    assert trace.limit(len(chosen)) == trace.select(np.arange(len(chosen)))
    assert trace.limit(len(trace) + 1) == trace


factors = either(pick(0.01, 1 / 3, 1.0, 100.0), lambda rng: rng.uniform(0.01, 100), lambda rng: rng.uniform(0.01, 1))


@cases(60, sized(), factors, whole(-6, 6))
def test_scaling_divides_the_gaps(trace: Trace, factor: float, power: int) -> None:
    scaled = trace.scale_rate(factor)
    assert np.all(np.diff(scaled.arrival_ns) >= 0)
    assert np.all(np.abs(scaled.arrival_ns - trace.arrival_ns / factor) <= 0.5 + 1e-15 * scaled.arrival_ns)
    assert replace(scaled, arrival_ns=trace.arrival_ns) == trace
    # Halving and doubling lose nothing; multiplying times by a power of two and dividing again is the same trace.
    assert trace.scale_rate(2.0 ** -abs(power)).scale_rate(2.0 ** abs(power)) == trace


@pytest.mark.parametrize("factor", [0, -1, float("nan"), float("inf")])
def test_a_rate_scale_is_a_positive_number(factor: float) -> None:
    with pytest.raises(TraceError, match="the rate scale must be a positive number, not"):
        trace().scale_rate(factor)


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(TraceError, match="the rate scale 1e-18 puts arrivals later than 64 bits"):
        trace().scale_rate(1e-18)
    with pytest.raises(TraceError, match="a trace cannot be limited to -1 requests"):
        trace().limit(-1)


def two_traces(rng: random.Random) -> tuple[Trace, Trace]:
    """Make two traces: equal ones, or one with a column of another or with other content, or unlike ones."""
    a, kind = made_trace(rng), rng.randrange(4)
    if kind == 2:
        return a, made_trace(rng)
    if kind == 3 and a.segments is not None:
        return a, replace(a, segments=replace(a.segments, ids=a.segments.ids ^ 1))
    b = made_trace(rng, len(a), len(a))
    prompts = ("prompt_tokens", "segments")
    columns = rng.choice([prompts, *((c,) for c in Trace.COLUMNS if c not in prompts)]) if kind else ()
    return a, replace(a.select(np.arange(len(a))), **{c: getattr(b, c) for c in columns})


@cases(240, two_traces)
def test_digests_differ_where_traces_do(drawn: tuple[Trace, Trace]) -> None:
    a, b = drawn
    a, b = replace(a, name="x", row=None), replace(b, name="x", row=None)
    assert (a.digest() == b.digest()) == (a == b)


def test_digests_tell_where_a_name_ends() -> None:
    a = trace(session=np.array(["a\0b", "c"], dtype=object))
    b = trace(session=np.array(["a", "b\0c"], dtype=object))
    c, d = trace(session=np.array([None, "x"], dtype=object)), trace(session=np.array(["None", "x"], dtype=object))
    assert len({t.digest() for t in (a, b, c, d)}) == 4


CHANGES = {
    "arrival_ns": np.array([0, 6]),
    "prompt_tokens": np.array([3, 5]),
    "output_tokens": np.array([2, 1]),
    "segments": Segments(np.array([0, 1, 2]), np.array([7, 8]), np.array([3, 4])),
    "session": np.array(["a", None], dtype=object),
    "tenant": np.array(["a", "b"], dtype=object),
    "slo_ttft_ns": np.array([1, -1]),
    "slo_tpot_ns": np.array([1, -1]),
    "id": np.array([5, 6]),
    "row": np.array([1, 0]),
    "name": "other",
}


@pytest.mark.parametrize("column", CHANGES)
def test_one_changed_column_makes_another_trace(column: str) -> None:
    changed = trace(**{column: CHANGES[column]})
    assert changed != trace()
    assert changed == trace(**{column: CHANGES[column]})
    # Nothing that a run can depend on is left out of the digest; a name and the file's order are no such thing.
    assert (changed.digest() != trace().digest()) == (column not in ("name", "row"))


SCRIPT = "from traces.synthetic import generate; print(generate('post-recommendation', 3).digest())"


def test_digests_do_not_depend_on_hash_seeds() -> None:
    """This process has a seed of its own, at random where nobody has set it."""
    other = "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2"
    told = subprocess.run(
        [sys.executable, "-c", SCRIPT], env={"PYTHONHASHSEED": other}, capture_output=True, text=True, check=True
    ).stdout
    assert told.strip() == generate("post-recommendation", 3).digest()
