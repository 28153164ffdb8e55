"""Maximum input length, from the executor's own code without memory, beside the model of ``costmodels.memory``."""

from __future__ import annotations

import functools
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodels.hardware import LlmShape, load_gpu, load_llm
from costmodels.live_tensors import LiveTensors
from costmodels.memory import MemoryModel
from experiments.prefillonly.measured import measured_lengths
from gpu_runner.hybrid.errors import HybridError
from gpu_runner.hybrid.memory_tables import architecture_of
from gpu_runner.hybrid.mil import MODES, Measured, most
from tests.hybrid.small import GQA

PAIRS = [
    ("llama-3.1-8b", "l4", "llama", 5),
    ("qwen-32b-fp8", "a100-40", "qwen2", 5),
    ("llama-3.3-70b-fp8", "h100-pcie", "llama", 4),
]

LENGTHS = measured_lengths()

AGAIN = [
    *((llm, gpu, mode) for llm, gpu, *_ in PAIRS for mode in ("paged", "discard")),
    ("qwen-32b-fp8", "a100-40", "chunked"),
    ("llama-3.3-70b-fp8", "h100-pcie", "hybrid"),
]
"""Lengths that are measured again: all would take too long."""

SHAPES = (
    LlmShape("few-kv", layers=4, hidden=64, intermediate=256, heads=8, kv_heads=2, head_dim=8, vocab=64),
    LlmShape("wide-query", layers=4, hidden=64, intermediate=384, heads=8, kv_heads=4, head_dim=16, vocab=64),
    LlmShape("bias", layers=4, hidden=128, intermediate=448, heads=4, kv_heads=2, head_dim=32, vocab=64, qkv_bias=True),
)


@functools.cache
def measured(llm: str) -> Measured:
    return Measured(load_llm(llm), architecture_of(load_llm(llm)))


@functools.cache
def small(shape: LlmShape, chunk: int) -> Measured:
    return Measured(shape, architecture_of(shape), chunk)


@given(st.integers(0, 2000), st.integers(1, 50), st.integers(0, 10**6), st.integers(1, 5000), st.integers(0, 10**4))
@settings(deadline=None)
def test_the_most_that_fits_fits_and_one_more_does_not(at: int, slope: int, room: int, bend: int, more: int) -> None:
    calls: list[int] = []

    def peak(n: int) -> int:
        calls.append(n)
        return at + slope * n + max(0, n - bend) * 3 + more * (n > bend)

    longest = most(peak, room)
    assert longest == 0 if peak(1) > room else peak(longest) <= room < peak(longest + 1)
    assert len(calls) < 60


@pytest.mark.parametrize("mode", MODES)
def test_depth_is_added_exactly(mode: str) -> None:
    assert Measured(GQA, layers=2, chunk=64).peak_bytes(mode, 300) == Measured(GQA, layers=3, chunk=64).peak_bytes(
        mode, 300
    )


@pytest.mark.parametrize("llm", ["llama-3.1-8b", "qwen-32b-fp8"])
def test_weights_are_those_of_the_shape_and_the_scales(llm: str) -> None:
    shape = load_llm(llm)
    architecture = "qwen2" if llm.startswith("qwen") else "llama"
    assert Measured(shape, architecture).weight_bytes == pytest.approx(
        MemoryModel(shape, load_gpu("h200")).weight_bytes, rel=1e-3
    )


@pytest.mark.parametrize(("llm", "gpu", "architecture", "times"), PAIRS)
def test_hybrid_reaches_as_many_times_further_as_it_should(llm: str, gpu: str, architecture: str, times: int) -> None:
    lengths = {mode: LENGTHS[gpu, llm, mode] for mode in MODES}
    assert lengths["hybrid"] >= max(times * lengths["paged"], 2 * lengths["chunked"])


@pytest.mark.parametrize(("llm", "gpu", "mode"), AGAIN)
def test_the_lengths_on_file_are_the_longest(llm: str, gpu: str, mode: str) -> None:
    """What the file says fits, and 16 tokens more do not: that is the same as to measure it again."""
    model, room = measured(llm), measured(llm).room_bytes(load_gpu(gpu))
    length = LENGTHS[gpu, llm, mode]
    assert length % 16 == 0
    assert model.peak_bytes(mode, length) <= room < model.peak_bytes(mode, length + 16)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("llm", "gpu", "architecture", "times"), PAIRS)
def test_the_model_of_live_tensors_agrees(llm: str, gpu: str, architecture: str, times: int, mode: str) -> None:
    """The longest prompt within 10 %, what was asked for; what a prompt takes to 1 %, KV that is kept included."""
    analytic = MemoryModel(load_llm(llm), load_gpu(gpu), mode, accounting="tensors")
    assert analytic.max_input_length() == pytest.approx(LENGTHS[gpu, llm, mode], rel=0.1)
    assert measured(llm).peak_bytes(mode, 8192) == pytest.approx(analytic.peak_bytes(8192), rel=0.01)


@given(st.sampled_from(MODES), st.integers(1, 12), st.sampled_from((16, 64)), st.sampled_from(SHAPES))
@settings(deadline=None, max_examples=25)
def test_the_model_of_live_tensors_agrees_for_any_shape(mode: str, chunks: int, chunk: int, shape: LlmShape) -> None:
    """To the byte; with kept KV up to cosines and sines, which the last layer's MLP does not need any more."""
    tokens = chunks * chunk
    parts = LiveTensors(shape)
    analytic = parts.peak_bytes(mode, tokens, chunk)
    peak = small(shape, chunk).peak_bytes(mode, tokens)
    if mode in ("paged", "chunked"):
        assert 0 <= analytic + tokens * shape.kv_bytes_per_token - peak <= tokens * parts.positions
    else:
        assert peak == analytic


def test_each_step_of_hybrid_prefilling_reaches_further() -> None:
    """Each takes less for the same prompt, and what is taken grows with the prompt alone."""
    steps = ("paged", "discard", "hybrid-chunking", "hybrid-preallocation", "hybrid")
    peaks = [measured("qwen-32b-fp8").peak_bytes(mode, 65_536) for mode in steps]
    assert all(a > b for a, b in pairwise(peaks))


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(HybridError, match=r"unknown mode 'swap' .modes: paged, chunked"):
        Measured(GQA).trace("swap", 10)
    with pytest.raises(HybridError, match="layers is 1; it must lie between 2 and 3"):
        Measured(GQA, layers=1)
