"""Service classes of SLOWeave's workloads: who is of which, with which objectives, and that nothing else changes."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from traces.schema import NONE, Trace, TraceError
from traces.synthetic import SLOWEAVE, Streams, find_workload, generate

KEPT = {
    "chat": "29536e44f28c1fff",
    "mixed": "ff760bfe54f6bb3f",
    "long": "6717fae99d1a4a65",
    "bursty": "61c197ed2cd55079",
}
"""Digests of seed 7's first hundred requests, before there were classes."""

SHARES = st.floats(0, 1, allow_nan=False)


def test_traces_without_classes_are_what_they_were() -> None:
    assert {name: generate(name, 7, 100).digest() for name in SLOWEAVE} == KEPT


def interactive(trace: Trace) -> np.ndarray:
    assert trace.tenant is not None
    assert set(trace.tenant.tolist()) <= {"interactive", "batch"}
    flags: np.ndarray = trace.tenant == "interactive"
    return flags


@settings(deadline=None, max_examples=30)
@given(st.sampled_from(sorted(SLOWEAVE)), st.integers(0, 2**32), SHARES, SHARES)
def test_classes_leave_all_other_draws_alone_and_nest(name: str, seed: int, a: float, b: float) -> None:
    plain = SLOWEAVE[name].generate(200, seed, None, name)
    low, high = (
        replace(SLOWEAVE[name], interactive_share=share, interactive_tpot=10, batch_tpot=50).generate(
            200, seed, None, name
        )
        for share in sorted((a, b))
    )
    for trace in (low, high):
        assert replace(trace, tenant=None, slo_tpot_ns=None) == plain
    assert np.all(interactive(high) | ~interactive(low))


def test_the_share_is_the_one_that_is_asked_for_whatever_the_lengths() -> None:
    trace = generate("mixed:interactive_share=0.3", 1, 50_000)
    flags = interactive(trace)
    assert stats.binomtest(int(flags.sum()), len(flags), 0.3).pvalue > 1e-4
    for column in (trace.prompt_tokens, trace.output_tokens, np.diff(trace.arrival_ns, prepend=0)):
        assert stats.ks_2samp(column[flags], column[~flags]).pvalue > 1e-4


def test_nobody_and_everybody() -> None:
    assert not interactive(generate("chat:interactive_share=0", 0, 100)).any()
    assert interactive(generate("chat:interactive_share=1", 0, 100)).all()


def test_objectives_are_those_of_the_class() -> None:
    text = "mixed:interactive_share=0.5,interactive_tpot=10,batch_tpot=50.5,interactive_ttft=500"
    trace = generate(text, 2, 400)
    flags = interactive(trace)
    assert trace.slo_tpot_ns is not None
    assert trace.slo_ttft_ns is not None
    assert trace.slo_tpot_ns.dtype == trace.slo_ttft_ns.dtype == np.int64
    assert set(trace.slo_tpot_ns[flags].tolist()) == {10_000_000}
    assert set(trace.slo_tpot_ns[~flags].tolist()) == {50_500_000}
    assert set(trace.slo_ttft_ns[flags].tolist()) == {500_000_000}
    assert set(trace.slo_ttft_ns[~flags].tolist()) == {NONE}
    without = generate("mixed:interactive_share=0.5", 2, 400)
    assert without.slo_tpot_ns is None
    assert without.slo_ttft_ns is None


def test_a_limit_keeps_classes() -> None:
    whole = generate("chat:interactive_share=0.4,batch_ttft=3000", 5)
    assert generate("chat:interactive_share=0.4,batch_ttft=3000", 5, 37) == whole.limit(37)


def test_the_stream_of_classes_is_independent() -> None:
    streams = Streams.of(0)
    mine = streams.classes.standard_normal(20_000)
    for other in (streams.arrivals, streams.lengths, streams.content):
        assert abs(np.corrcoef(mine, other.standard_normal(20_000))[0, 1]) < 4 / np.sqrt(20_000)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("chat:interactive_share=1.5", "interactive_share: input should be less than or equal to 1"),
        ("chat:interactive_share=nan", "interactive_share: "),
        ("chat:interactive_tpot=10", "interactive_tpot needs interactive_share, the share of interactive requests"),
        ("chat:batch_ttft=10", "batch_ttft needs interactive_share"),
        ("chat:interactive_share=1,batch_tpot=0", "batch_tpot: input should be greater than or equal to"),
        ("chat:interactive_share=1,batch_tpot=inf", "batch_tpot: input should be less than or equal to"),
        ("chat:interactiv_share=1", "did you mean interactive_share?"),
        ("post-recommendation:interactive_share=1", "unknown workload post-recommendation parameter interactive_share"),
    ],
)
def test_classes_that_cannot_be(text: str, message: str) -> None:
    with pytest.raises(TraceError, match=re.escape(message)):
        find_workload(text)
