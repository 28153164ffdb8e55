"""Memory, measured: what chunks, preallocation and in-place reuse save, and what the tracker counts."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker

from costmodels.hardware import LlmShape
from gpu_runner.hybrid.budget import blocks_beside, profile_run
from gpu_runner.hybrid.errors import HybridError
from gpu_runner.hybrid.execute import PLAIN, Switches
from gpu_runner.hybrid.memory import Trace, Tracker, envelope, measure
from gpu_runner.hybrid.models import build_model
from gpu_runner.hybrid.prefill import Kept, Prefiller
from gpu_runner.hybrid.prefixstore import Shape
from tests.hybrid.small import GQA, prefiller

WIDE = LlmShape("wide", layers=3, hidden=64, intermediate=4096, heads=4, kv_heads=2, head_dim=16, vocab=128)
STEPS = (
    PLAIN,
    Switches(16, preallocate=False, in_place=False),
    Switches(16, in_place=False),
    Switches(16),
)


def peak(of: Prefiller, switches: Switches, count: int, keep: int = 0, cached: int = 0) -> int:
    copy = of.with_switches(switches).without_memory()
    prefix: Any = None
    if cached:
        prefix = Kept(cached)
        copy.prefill(torch.zeros(cached, dtype=torch.long, device="meta"), keep=cached, sink=prefix)
    ids = torch.zeros(count, dtype=torch.long, device="meta")
    kept = Kept(keep)
    return measure(lambda: copy.prefill(ids, prefix=prefix, keep=keep, sink=kept), "meta").peak


@pytest.fixture(scope="module")
def wide() -> Prefiller:
    return Prefiller(build_model("llama", WIDE, dtype=torch.float32))


@given(st.lists(st.tuples(st.integers(1, 1000), st.booleans()), max_size=30))
@settings(deadline=None, max_examples=30)
def test_the_tracker_counts_what_lives(steps: list[tuple[int, bool]]) -> None:
    """Against a list that says so itself."""
    held: list[torch.Tensor] = []
    before = torch.zeros(1000)
    live = most = 0
    with Tracker() as tracker:
        for size, drop in steps:
            held.append(torch.empty(size, dtype=torch.float32))
            view = held[-1].view(-1)
            before.add_(1)
            live += 4 * size
            most = max(most, live)
            del view
            if drop:
                live -= held.pop(0).nbytes
            assert tracker.live == live
    assert tracker.trace.peak == most


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 100)), max_size=60), st.integers(1, 20))
@settings(deadline=None)
def test_an_envelope_holds_every_change(steps: list[tuple[int, int]], points: int) -> None:
    series, at = [], 0
    for more, live in steps:
        at += more
        series.append((at, live))
    spans = envelope(Trace(max((live for _, live in series), default=0), series), points)
    ends = [end for end, _, _ in spans]
    assert len(spans) == points
    assert ends == sorted(ends)
    assert ends[-1] == at
    assert max(high for _, _, high in spans) == max((live for _, live in series), default=0)
    for when, live in series:
        around = [span for before, span in zip([0, *ends], spans, strict=False) if before <= when <= span[0]]
        assert any(low <= live <= high for _, low, high in around)
    assert all(spans[k][1] <= spans[k - 1][2] and spans[k - 1][1] <= spans[k][2] for k in range(1, points))


def test_the_tracker_agrees_with_pytorchs_own() -> None:
    """``MemTracker`` under ``FakeTensorMode`` and ours on the meta device, for the same plain forward pass."""
    with FakeTensorMode():
        model = build_model("llama", GQA, dtype=torch.float32).requires_grad_(True)
        ids = torch.zeros((1, 500), dtype=torch.long)
        theirs = MemTracker()
        theirs.track_external(model)
        with torch.no_grad(), theirs:
            before = sum(s["Total"] for s in theirs.get_tracker_snapshot("current").values())
            model(input_ids=ids, use_cache=False, logits_to_keep=1)
            after = sum(s["Total"] for s in theirs.get_tracker_snapshot("peak").values())
    ours = build_model("llama", GQA, dtype=torch.float32, device="meta")
    ids = torch.zeros((1, 500), dtype=torch.long, device="meta")
    with torch.no_grad():
        trace = measure(lambda: ours(input_ids=ids, use_cache=False, logits_to_keep=1), "meta")
    assert trace.peak == after - before


def test_the_token_wise_part_falls_as_one_over_chunks(wide: Prefiller) -> None:
    """Each halving of the chunk saves half as much as the one before, and as much as the MLP's tensors take."""
    peaks = {chunk: peak(wide, Switches(chunk), 512) for chunk in (256, 128, 64, 32)}
    halvings = [peaks[c] - peaks[c // 2] for c in (256, 128, 64)]
    assert halvings[0] == 2 * halvings[1] == 4 * halvings[2]
    assert halvings[0] == pytest.approx(128 * 3 * 4 * WIDE.intermediate, rel=0.05)


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3", "mistral"])
def test_each_step_lowers_the_peak(architecture: str) -> None:
    peaks = [peak(prefiller(architecture), switches, 320) for switches in STEPS]
    assert peaks == sorted(peaks, reverse=True)
    assert len(set(peaks)) == len(peaks)


def test_all_layers_but_one_take_nothing() -> None:
    """Depth does not matter where no KV is kept; where it is, each layer adds its own."""
    three = prefiller("llama")
    five = Prefiller(build_model("llama", LlmShape("five", 5, 64, 160, 4, 2, 16, 128), dtype=torch.float32))
    for switches in STEPS:
        assert peak(five, switches, 400) == peak(three, switches, 400)
        kv = 2 * GQA.kv_heads * GQA.head_dim * 4 * 400
        assert peak(five, switches, 400, keep=400) - peak(three, switches, 400, keep=400) == 2 * kv


@given(st.integers(1, 200), st.integers(0, 12), st.sampled_from(STEPS))
@settings(deadline=None, max_examples=12)
def test_what_the_profile_run_sets_aside_is_enough(count: int, blocks: int, switches: Switches) -> None:
    """However the longest prompt is divided into a cached prefix and new tokens."""
    ours = prefiller("llama")
    cached = 16 * blocks
    assert peak(ours, switches, count, cached=cached) <= profile_run(ours.with_switches(switches), count + cached)


def test_the_peak_is_linear_in_the_prompt() -> None:
    ours = prefiller("llama")
    peaks = [peak(ours, Switches(64), n) for n in (600, 800, 1000)]
    assert peaks[2] - peaks[1] == peaks[1] - peaks[0]


def test_the_rest_is_the_store() -> None:
    ours = prefiller("llama").with_switches(Switches(64))
    shape = Shape(GQA.layers, GQA.kv_heads, GQA.head_dim, torch.float32)
    at_most = profile_run(ours, 512)
    assert at_most == peak(ours, ours.switches, 496, cached=16) > peak(ours, ours.switches, 512)
    assert blocks_beside(ours, 512, at_most, shape) == 0
    assert blocks_beside(ours, 512, at_most + 10 * shape.block_bytes, shape) == 10
    assert blocks_beside(ours, 512, at_most + 10 * shape.block_bytes - 1, shape) == 9
    with pytest.raises(HybridError, match=r"a prompt of 512 tokens takes .* bytes, and the weights leave"):
        blocks_beside(ours, 512, at_most - 1, shape)
    with pytest.raises(HybridError, match="must have at least 1"):
        profile_run(ours, 0)
