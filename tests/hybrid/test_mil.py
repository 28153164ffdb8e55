"""Maximum input length, from the executor's own code without memory, beside the model of ``costmodels.memory``."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodels.hardware import load_gpu, load_llm
from costmodels.memory import MemoryModel
from gpu_runner.hybrid.errors import HybridError
from gpu_runner.hybrid.mil import MODES, Measured, explained_bytes, most
from tests.hybrid.small import GQA

PAIRS = [
    ("llama-3.1-8b", "l4", "llama", 5),
    ("qwen-32b-fp8", "a100-40", "qwen2", 5),
    ("llama-3.3-70b-fp8", "h100-pcie", "llama", 4),
]


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
    """One prefill on each side of the claim: a length that fits hybrid, and its parts that fit the others no more."""
    measured, card = Measured(load_llm(llm), architecture), load_gpu(gpu)
    room = MemoryModel(measured.llm, card).usable_bytes - measured.weight_bytes
    paged = measured.max_input_length("paged", card)
    chunked = measured.max_input_length("chunked", card)
    assert measured.peak_bytes("hybrid", max(times * paged, 2 * chunked)) <= room
    for mode, length in (("paged", paged), ("chunked", chunked)):
        assert length == pytest.approx(MemoryModel(measured.llm, card, mode).max_input_length(), rel=0.1)


@pytest.mark.parametrize(("llm", "gpu", "architecture", "times"), PAIRS)
def test_the_differences_to_the_analytic_model_are_explained(llm: str, gpu: str, architecture: str, times: int) -> None:
    """Bytes per token, measured, are the analytic model's but for the terms that are named."""
    measured = Measured(load_llm(llm), architecture)
    model = MemoryModel(measured.llm, load_gpu(gpu), "hybrid")
    lengths = (65_536, 69_632)
    peaks = [measured.peak_bytes("hybrid", n) for n in lengths]
    slope = (peaks[1] - peaks[0]) / (lengths[1] - lengths[0])
    analytic = (model.working_bytes(lengths[1]) - model.working_bytes(lengths[0])) / (lengths[1] - lengths[0])
    assert slope == pytest.approx(analytic + sum(explained_bytes(measured.llm).values()), rel=0.01)


def test_each_step_of_hybrid_prefilling_reaches_further() -> None:
    """Each takes less for the same prompt, and what is taken grows with the prompt alone."""
    measured = Measured(load_llm("qwen-32b-fp8"), "qwen2")
    steps = ("paged", "discard", "hybrid-chunking", "hybrid-preallocation", "hybrid")
    peaks = [measured.peak_bytes(mode, 65_536) for mode in steps]
    assert all(a > b for a, b in pairwise(peaks))


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(HybridError, match=r"unknown mode 'swap' .modes: paged, chunked"):
        Measured(GQA).trace("swap", 10)
    with pytest.raises(HybridError, match="layers is 1; it must lie between 2 and 3"):
        Measured(GQA, layers=1)
