"""The memory model: exact sizes, the maximum input length is the maximum, and more memory never shortens it."""

from __future__ import annotations

import random
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest

from costmodels.hardware import Gpu, HardwareError, LlmShape, gpu_names, llm_names, load_gpu, load_llm
from costmodels.live_tensors import LiveTensors
from costmodels.memory import ACCOUNTINGS, KEPT, LINKED_BYTES, MODES, RESERVED_BYTES, MemoryModel
from tests.seeded import Maker, cases, either, pick, whole, wide

LLAMA, L4 = load_llm("llama-3.1-8b"), load_gpu("l4")
H100 = load_gpu("h100-pcie")


def models(**fixed: Any) -> Maker:
    """Make a model of any shape that fits."""
    return lambda rng: _model(rng, **fixed)


def _shape(rng: random.Random) -> LlmShape:
    kv_heads = rng.choice((2, 4, 8))
    return LlmShape(
        "drawn",
        layers=rng.choice((2, 3, rng.randint(2, 80))),
        hidden=rng.choice((1, rng.randint(1, 64))) * 128,
        intermediate=rng.choice((1, rng.randint(1, 200))) * 256,
        heads=kv_heads * rng.randint(1, 8),
        kv_heads=kv_heads,
        head_dim=rng.choice((64, 128)),
        vocab=rng.choice((1, rng.randint(1, 1000))) * 64,
        linear_bytes=rng.choice((1, 2)),
        tied_embeddings=rng.choice((False, True)),
        qkv_bias=rng.choice((False, True)),
    )


def _model(rng: random.Random, **fixed: Any) -> MemoryModel:
    llm = _shape(rng)
    room = rng.choice((2**20, rng.randint(2**20, 2**25), rng.randint(2**20, 2**35)))
    gpu = replace(L4, name="drawn", memory_bytes=2 * llm.weight_bytes + 2 * (RESERVED_BYTES + LINKED_BYTES) + room)
    options = {
        "mode": rng.choice(MODES),
        "tp": rng.choice((1, 2)),
        "pp": rng.choice((1, 2)),
        "chunk": rng.choice((1, 512, 2048)),
        "accounting": rng.choice(ACCOUNTINGS),
        **fixed,
    }
    return MemoryModel(llm, gpu, **options)


@cases(100, models(), pick(1, 16, 128))
def test_the_maximum_input_length_fits_and_one_more_does_not(model: MemoryModel, block_size: int) -> None:
    longest = model.max_input_length(block_size)
    assert model.peak_bytes(longest, block_size) <= model.room_bytes
    assert model.peak_bytes(longest + 1, block_size) > model.room_bytes


@cases(100, models(), wide(100_000), either(whole(0, 2), wide(5000)))
def test_longer_prompts_take_more(model: MemoryModel, tokens: int, more: int) -> None:
    assert model.peak_bytes(tokens) <= model.peak_bytes(tokens + more)
    assert model.working_bytes(tokens) <= model.working_bytes(tokens + more)


@cases(100, models(), wide(2**34))
def test_more_memory_never_shortens_the_longest_input(model: MemoryModel, more: int) -> None:
    larger = replace(model, gpu=replace(model.gpu, memory_bytes=model.gpu.memory_bytes + more))
    assert larger.max_input_length() >= model.max_input_length()


@cases(100, models(mode="paged"))
def test_each_way_of_saving_memory_saves_memory(model: MemoryModel) -> None:
    """But chunks that are listed may take less than preallocated outputs and a chunk that is wide, if counted so."""
    mil = {mode: replace(model, mode=mode).max_input_length() for mode in MODES}
    assert mil["paged"] <= mil["chunked"]
    assert mil["paged"] <= mil["discard"]
    assert mil["hybrid-preallocation"] <= mil["hybrid"]
    if model.accounting == "paper":
        assert mil["hybrid-chunking"] <= mil["hybrid-preallocation"]


@pytest.mark.parametrize("gpu", gpu_names())
@pytest.mark.parametrize("llm", llm_names())
def test_hybrid_reaches_further_than_chunks_wherever_a_model_fits(llm: str, gpu: str) -> None:
    try:
        model = MemoryModel(load_llm(llm), load_gpu(gpu), "hybrid")
    except HardwareError:
        assert (llm, gpu) in {("qwen-32b-fp8", "l4"), ("llama-3.3-70b-fp8", "l4"), ("llama-3.3-70b-fp8", "a100-40")}
        return
    chunked = replace(model, mode="chunked").max_input_length()
    assert model.max_input_length() > chunked > replace(model, mode="paged").max_input_length()


@cases(120, models(), wide(200_000, 1), pick(1, 16, 128))
def test_blocks_after_the_profile_are_what_still_fits(model: MemoryModel, length: int, block_size: int) -> None:
    longest = model.max_input_length(block_size)
    if not longest:
        return
    length = min(length, longest)
    blocks = model.kv_blocks_after_profile(length, block_size)
    block_bytes = block_size * model.kv_bytes_per_token
    assert 0 <= blocks * block_bytes <= model.room_bytes - model.working_bytes(length) < (blocks + 1) * block_bytes
    if model.keeps_all_kv:
        assert blocks * block_size >= length
    if length > 1:
        assert model.kv_blocks_after_profile(length - 1, block_size) >= blocks


@cases(100, models(tp=1, pp=1))
def test_two_gpus_hold_half_each(model: MemoryModel) -> None:
    tensor, pipeline = replace(model, tp=2), replace(model, pp=2)
    assert 2 * tensor.kv_bytes_per_token == model.kv_bytes_per_token
    stages = (model.llm.layers + 1) // 2
    assert pipeline.kv_bytes_per_token * model.llm.layers == model.kv_bytes_per_token * stages
    assert model.weight_bytes <= 2 * tensor.weight_bytes
    assert model.weight_bytes <= 2 * pipeline.weight_bytes
    assert pipeline.working_bytes(1000) == model.working_bytes(1000)
    assert tensor.usable_bytes == pipeline.usable_bytes == model.usable_bytes - LINKED_BYTES


def test_sizes_of_llama_on_one_gpu() -> None:
    model = MemoryModel(LLAMA, L4)
    assert model.weight_bytes == 2 * 8_030_261_248
    assert model.kv_bytes_per_token == 131_072
    hidden = 2 * 4096
    assert model.dense_bytes_per_token == 3 * hidden + 2 * (28_672 + 14_336)
    assert model.working_bytes(10) == 10 * model.dense_bytes_per_token
    assert model.peak_bytes(17) == 17 * model.dense_bytes_per_token + 48 * 131_072
    discard = replace(model, mode="discard")
    assert discard.working_bytes(10) == 10 * (model.dense_bytes_per_token + 4096)
    hybrid = replace(model, mode="hybrid")
    qkv = 2 * (4096 + 2 * 1024)
    assert hybrid.hybrid_bytes_per_token == 3 * hidden + qkv + hidden
    assert hybrid.working_bytes(5000) == 5000 * (4 * hidden + qkv + 4096) + 2048 * 2 * (28_672 + 14_336)
    assert replace(hybrid, mode="hybrid-preallocation").hybrid_bytes_per_token == 4 * hidden + qkv + hidden
    assert replace(hybrid, mode="hybrid-chunking").hybrid_bytes_per_token == 5 * hidden + qkv + hidden


def test_the_tensors_of_llama() -> None:
    """Hidden 4096, query 4096, keys and values 2 x 1024, MLP 14,336, two bytes each; heads of 128."""
    model = MemoryModel(LLAMA, L4, accounting="tensors")
    positions = 8 + 2 * 256
    mlp = 2 * (4096 + 3 * 14_336)
    attention = 2 * (4096 + 4096 + 2 * 1024 + 4096)
    n, chunk = 100_000, 2048
    assert model.working_bytes(n) == replace(model, mode="discard").working_bytes(n) == n * (mlp + positions)
    assert replace(model, mode="chunked").working_bytes(n) == chunk * (mlp + positions)
    assert replace(model, mode="hybrid").working_bytes(n) == n * (attention + positions)
    both = 2 * (4096 + 4096) + 2 * (4096 + 4096 + 2 * 1024)
    assert replace(model, mode="hybrid-preallocation").working_bytes(n) == n * (both + positions) + chunk * mlp
    assert replace(model, mode="hybrid-chunking").working_bytes(n) == n * (both + 2 * 4096 + positions)
    wide = replace(model, mode="hybrid", chunk=n - 1)
    assert wide.working_bytes(n) == n * (2 * (4096 + 4096 + 2 * 1024) + positions) + (n - 1) * mlp
    assert replace(wide, chunk=n).working_bytes(n) == n * (mlp + positions)


@cases(100, models(mode="hybrid", tp=1, accounting="paper"), wide(10_000, 1))
def test_the_accountings_differ_in_hybrid_by_what_is_kept_and_copied(model: MemoryModel, more: int) -> None:
    """Where attention is the peak, one holds ``KEPT`` tensors and a copy of the KV more, the other the positions."""
    llm, tensors = model.llm, replace(model, accounting="tensors")
    parts = LiveTensors(llm)
    n = 1 + model.chunk * max(1, -(-parts.mlp // parts.query))

    def slope(of: MemoryModel) -> int:
        return of.working_bytes(n + more) - of.working_bytes(n)

    kept = KEPT * llm.hidden * llm.activation_bytes + llm.kv_bytes_per_token_and_layer
    assert slope(model) - slope(tensors) == more * (kept - parts.positions)


@cases(100, models(accounting="paper"))
def test_the_default_accounting_is_the_papers(model: MemoryModel) -> None:
    default = MemoryModel(model.llm, model.gpu, model.mode, model.tp, model.pp, model.chunk)
    assert default == model
    assert default.kept == KEPT


@cases(100, models(accounting="tensors"), wide(100_000, 1))
def test_two_gpus_hold_the_residual_stream_twice_and_all_else_once(model: MemoryModel, tokens: int) -> None:
    one, two = replace(model, tp=1).working_bytes(tokens), replace(model, tp=2).working_bytes(tokens)
    assert two <= one <= 2 * two


def test_sizes_of_llama_on_two_gpus() -> None:
    tensor = MemoryModel(LLAMA, L4, "chunked", tp=2)
    assert tensor.dense_bytes_per_token == 4 * 2 * 4096 + 28_672 + 14_336
    assert tensor.weight_bytes == 8_030_261_248 + (2 * 32 + 1) * 4096
    pipeline = MemoryModel(LLAMA, L4, "paged", pp=2)
    assert pipeline.weight_bytes == 2 * (16 * LLAMA.linear_parameters_per_layer + 128_256 * 4096) + 65 * 4096


def test_attention_counts_where_it_is_wider_than_the_mlp() -> None:
    narrow = replace(LLAMA, intermediate=256)
    assert MemoryModel(narrow, L4).dense_bytes_per_token == 2 * (2 * 4096 + 6144 + 4096)


def test_vllms_default_share_of_memory_cannot_be_the_papers() -> None:
    for llm, gpu, longest in (
        ("llama-3.1-8b", "l4", 46_000),
        ("qwen-32b-fp8", "a100-40", 17_000),
        ("llama-3.3-70b-fp8", "h100-pcie", 25_000),
    ):
        shape = load_llm(llm)
        usable = int(load_gpu(gpu).memory_bytes * Fraction(9, 10))
        assert shape.weight_bytes + longest * shape.kv_bytes_per_token > usable


def test_a_vllm_log_is_met() -> None:
    """Llama-3-8B on one H100, profiled at 8,192 tokens: 14.96 GiB of weights, 1.26 GiB of activations.

    The profile run has 256 sequences, whose logits and samples (up to four times 256 rows in FP32) are not modelled.
    """
    model = MemoryModel(LLAMA, H100, utilisation=Fraction(9, 10))
    assert model.weight_bytes / 2**30 == pytest.approx(14.96, abs=0.01)
    logits = 4 * 256 * LLAMA.vocab / 2**30
    assert 1.26 - 4 * logits < model.working_bytes(8192) / 2**30 < 1.26


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"mode": "swap"}, "unknown memory mode 'swap' .modes: paged, chunked"),
        ({"accounting": "hope"}, "unknown accounting 'hope' .accountings: paper, tensors"),
        ({"tp": 0}, "tp is 0; it must be at least 1"),
        ({"chunk": 0}, "chunk is 0"),
        ({"tp": 3}, "tp=3 does not divide the 8 KV heads"),
        ({"pp": 33}, "pp=33 has more stages than llama-3.1-8b has layers"),
        ({"utilisation": Fraction(0)}, "usable share of memory is 0"),
        ({"utilisation": Fraction(1, 2)}, "llama-3.1-8b does not fit l4 with tp=1, pp=1: weights take 15.0 GiB"),
    ],
)
def test_what_cannot_be_is_refused(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(HardwareError, match=text):
        MemoryModel(LLAMA, L4, **changes)


def test_a_length_above_the_maximum_is_refused() -> None:
    model = MemoryModel(LLAMA, L4)
    longest = model.max_input_length()
    model.kv_blocks_after_profile(longest)
    for length in (0, longest + 1):
        with pytest.raises(HardwareError, match=f"{length} tokens cannot be prefilled .*between 1 and {longest}"):
            model.kv_blocks_after_profile(length)


def test_a_gpu_without_room_for_one_token_has_length_zero() -> None:
    weights = MemoryModel(LLAMA, L4).weight_bytes
    tight = Gpu("tight", (weights + RESERVED_BYTES) * 20 // 19 + 1, 1, 1, 1, 1)
    assert MemoryModel(LLAMA, tight).max_input_length() == 0
