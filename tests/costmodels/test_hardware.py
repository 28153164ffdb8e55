"""Shapes and data sheets: the published totals, the papers' ratios, and what is refused."""

from __future__ import annotations

import dataclasses
from fractions import Fraction

import pytest

from costmodels import CostModelError, shipped_models
from costmodels.hardware import Gpu, HardwareError, LlmShape, gpu_names, llm_names, load_gpu, load_llm

PUBLISHED_PARAMETERS = {
    "llama-3.1-8b": 8_030_261_248,
    "qwen-32b-fp8": 32_763_876_352,
    "llama-3.3-70b-fp8": 70_553_706_496,
}


@pytest.mark.parametrize("name", llm_names())
def test_the_shapes_have_the_published_number_of_parameters(name: str) -> None:
    assert load_llm(name).parameters == PUBLISHED_PARAMETERS[name]


def test_the_papers_ratios_are_derived_from_the_shape() -> None:
    llm = load_llm("llama-3.1-8b")
    assert (llm.mlp_up_ratio, llm.mlp_down_ratio) == (14, 7)
    assert llm.mlp_up_bytes_per_token == 28_672 * 2
    assert llm.kv_bytes_per_token == 131_072
    assert 100_000 * llm.kv_bytes_per_token / 2**30 == pytest.approx(12.2, abs=0.01)
    other = load_llm("qwen-32b-fp8")
    assert (other.mlp_up_ratio, other.mlp_down_ratio) == (27, Fraction(27, 2))


def test_fp8_dynamic_quantises_the_linear_operators_alone() -> None:
    fp8 = load_llm("llama-3.3-70b-fp8")
    bf16 = dataclasses.replace(fp8, linear_bytes=2)
    assert bf16.weight_bytes == 2 * fp8.parameters
    assert bf16.weight_bytes - fp8.weight_bytes == fp8.linear_parameters


def test_a_tied_head_is_stored_once() -> None:
    llm = load_llm("llama-3.1-8b")
    assert llm.parameters - dataclasses.replace(llm, tied_embeddings=True).parameters == 128_256 * 4096


def test_fp8_weights_run_at_the_bf16_peak_without_fp8_tensor_cores() -> None:
    fp8, bf16 = load_llm("qwen-32b-fp8"), load_llm("llama-3.1-8b")
    assert load_gpu("a100-40").flops_per_s(fp8) == 312 * 10**12
    assert load_gpu("l4").flops_per_s(fp8) == 242_500 * 10**9
    assert load_gpu("l4").flops_per_s(bf16) == 121 * 10**12


@pytest.mark.parametrize("name", gpu_names())
def test_every_number_of_a_gpu_says_where_it_is_from(name: str) -> None:
    gpu = load_gpu(name)
    assert gpu.name == name
    numbers = {f.name for f in dataclasses.fields(Gpu)} - {"name", "title", "sources"}
    assert {field for field, source in gpu.sources if source} == numbers
    assert gpu.fp8_flops_per_s is None or gpu.fp8_flops_per_s == pytest.approx(2 * gpu.bf16_flops_per_s, rel=0.005)


@pytest.mark.parametrize("name", llm_names())
def test_a_shape_says_where_it_is_from(name: str) -> None:
    llm = load_llm(name)
    assert llm.name == name
    assert llm.source


def test_shapes_and_data_sheets_are_not_cost_models() -> None:
    assert not {*llm_names(), *gpu_names()} & set(shipped_models())


@pytest.mark.parametrize(
    ("load", "name", "nearest"),
    [
        (load_gpu, "h100", "h100-"),
        (load_gpu, "A100-40", "a100-40"),
        (load_llm, "llama-3-8b", "llama-3.1-8b"),
        (load_llm, "Qwen-32B", "qwen-32b-fp8"),
        (load_gpu, "../linear", ""),
    ],
)
def test_an_unknown_name_is_answered_with_the_nearest(load: type, name: str, nearest: str) -> None:
    with pytest.raises(HardwareError) as caught:
        load(name)
    text = str(caught.value)
    assert text.startswith("unknown ")
    assert "known: " in text
    if nearest:
        assert f"did you mean {nearest}" in text
    assert issubclass(HardwareError, CostModelError)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"layers": 0}, "layers is 0"),
        ({"hidden": 4096.0}, "hidden is 4096.0"),
        ({"vocab": True}, "vocab is True"),
        ({"kv_heads": 5}, "32 heads cannot share 5 KV heads"),
    ],
)
def test_a_shape_that_cannot_be_is_refused(change: dict[str, int], text: str) -> None:
    with pytest.raises(HardwareError, match=text):
        dataclasses.replace(load_llm("llama-3.1-8b"), **change)


def test_a_data_sheet_that_cannot_be_is_refused() -> None:
    with pytest.raises(HardwareError, match="memory_bytes is -1"):
        dataclasses.replace(load_gpu("l4"), memory_bytes=-1)
    with pytest.raises(HardwareError, match="nvlink_bytes_per_s is 0"):
        dataclasses.replace(load_gpu("h200"), nvlink_bytes_per_s=0)


def test_llm_shapes_are_values() -> None:
    assert load_llm("llama-3.1-8b") == load_llm("llama-3.1-8b")
    assert isinstance(hash(load_gpu("l4")), int)
    assert isinstance(load_llm("llama-3.1-8b"), LlmShape)
