"""The figures of a trace against slow definitions, by hand, and those published for the Mooncake traces."""

import json
from collections.abc import Callable

import numpy as np
import pytest

from tests.seeded import cases
from tests.traces.strategies import sized
from traces.describe import describe, ideal_prefix_hit_rate
from traces.schema import Segments, Trace


def walked_hit_rate(trace: Trace) -> float | None:
    """The definition, request by request."""
    if trace.segments is None:
        return None
    order = range(len(trace)) if trace.row is None else np.argsort(trace.row).tolist()
    seen: set[int] = set()
    hits = total = 0
    for row in order:
        ids = [i for i, _ in trace.segments.of(row)]
        total += len(ids)
        for content in ids:
            if content not in seen:
                break
            hits += 1
        seen.update(ids)
    return hits / total if total else None


@cases(100, sized())
def test_ideal_hit_rate_is_that_of_the_walk(trace: Trace) -> None:
    assert ideal_prefix_hit_rate(trace) == walked_hit_rate(trace)


@cases(50, sized())
def test_every_trace_can_be_described_as_json(trace: Trace) -> None:
    figures = describe(trace)
    assert json.loads(json.dumps(figures, allow_nan=False)) == figures
    assert figures["requests"] == len(trace)
    assert figures["prompt_tokens"]["total"] == sum(trace.prompt_tokens.tolist())
    assert figures["output_tokens"]["max"] == max(trace.output_tokens.tolist(), default=None)


def test_figures_by_hand() -> None:
    trace = Trace(
        np.array([0, 1, 2, 5]) * 10**9,
        np.array([10, 20, 30, 40]),
        np.array([1, 1, 2, 8]),
        # The second request repeats the first one's two ids; the third starts anew, so its known id does not lead;
        # the fourth repeats one id twice, but only the first request of the two counts as earlier.
        segments=Segments(
            np.array([0, 2, 5, 7, 9]), np.array([1, 2, 1, 2, 3, 4, 1, 5, 5]), np.array([5, 5, 5, 5, 10, 15, 15, 20, 20])
        ),
        session=np.array(["a", "b", "a", None], dtype=object),
        warnings=("something",),
    )
    assert describe(trace) == {
        "name": "trace",
        "requests": 4,
        "duration_s": 5.0,
        "rate": 3 / 5,
        # Gaps 1, 1, 3: mean 5/3, sample variance 4/3.
        "burstiness": {"cv": pytest.approx((4 / 3) ** 0.5 * 3 / 5), "shape": pytest.approx(25 / 9 * 3 / 4)},
        "prompt_tokens": {
            "mean": 25.0,
            "p50": 25.0,
            "p90": pytest.approx(37),
            "p99": pytest.approx(39.7),
            "max": 40,
            "total": 100,
        },
        "output_tokens": {
            "mean": 3.0,
            "p50": 1.5,
            "p90": pytest.approx(6.2),
            "p99": pytest.approx(7.82),
            "max": 8,
            "total": 12,
        },
        "sessions": 2,
        "tenants": None,
        "ideal_prefix_hit_rate": 2 / 9,
        "warnings": ["something"],
    }


def empty() -> Trace:
    nothing = np.zeros(0, np.int64)
    return Trace(nothing, nothing, nothing)


def test_what_is_not_defined_is_none() -> None:
    none = {"cv": None, "shape": None}
    figures = describe(empty())
    assert (figures["duration_s"], figures["rate"], figures["burstiness"]) == (None, None, none)
    assert figures["prompt_tokens"] == {"mean": None, "p50": None, "p90": None, "p99": None, "max": None, "total": 0}
    one = describe(Trace(np.array([7]), np.array([3]), np.array([1])))
    assert (one["duration_s"], one["rate"], one["burstiness"]) == (0.0, None, none)
    two = describe(Trace(np.array([0, 10**9]), np.array([3, 3]), np.array([1, 1])))
    assert (two["duration_s"], two["rate"], two["burstiness"]) == (1.0, 1.0, none)
    regular = describe(Trace(np.arange(4) * 10**9, np.full(4, 3), np.full(4, 1)))
    assert regular["burstiness"] == {"cv": 0.0, "shape": None}
    at_once = describe(Trace(np.zeros(4, np.int64), np.full(4, 3), np.full(4, 1)))
    assert (at_once["rate"], at_once["burstiness"]) == (None, none)


@pytest.mark.real
@pytest.mark.parametrize(("name", "percent"), [("mooncake_conversation", 36.6), ("mooncake_synthetic", 64.0)])
def test_mooncake_hit_rates_are_the_published_ones(
    public_trace: Callable[[str], Trace], name: str, percent: float
) -> None:
    rate = ideal_prefix_hit_rate(public_trace(f"{name}.jsonl"))
    assert rate is not None
    assert round(100 * rate, 1) == percent
