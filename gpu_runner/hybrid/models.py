"""Decoders of Hugging Face's transformers, built from a shape alone, with random weights."""

from __future__ import annotations

import difflib
from typing import Any

import torch
from transformers import AttentionInterface, AutoConfig, AutoModelForCausalLM

from costmodels.hardware import LlmShape
from gpu_runner.hybrid.attention import NAME, interface
from gpu_runner.hybrid.errors import HybridError
from gpu_runner.hybrid.fp8 import to_fp8

ARCHITECTURES = ("llama", "qwen2", "qwen3", "mistral")

AttentionInterface.register(NAME, interface)


def build_model(
    architecture: str,
    shape: LlmShape,
    *,
    dtype: torch.dtype = torch.bfloat16,
    device: str = "cpu",
    seed: int = 0,
    layers: int | None = None,
    longest: int = 2**18,
) -> Any:
    """Return a causal language model of ``shape`` in evaluation mode, with random weights.

    On the device ``meta`` it takes no memory. Where the shape has 8-bit weights, the layers' linear operators do.

    Args:
        architecture: one of :data:`ARCHITECTURES`.
        shape: its sizes.
        dtype: of weights and activations.
        device: where the weights are made.
        seed: of the weights.
        layers: how many of the shape's layers, all by default.
        longest: positions that it can tell apart.

    Raises:
        HybridError: if the architecture is not known.
    """
    if architecture not in ARCHITECTURES:
        near = difflib.get_close_matches(architecture, ARCHITECTURES, n=1)
        meant = f"; did you mean {near[0]}?" if near else ""
        raise HybridError(f"unknown architecture {architecture!r}{meant} (known: {', '.join(ARCHITECTURES)})")
    config = AutoConfig.for_model(
        architecture,
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_hidden_layers=shape.layers if layers is None else layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        vocab_size=shape.vocab,
        max_position_embeddings=longest,
        tie_word_embeddings=shape.tied_embeddings,
        sliding_window=None,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )
    state = torch.random.get_rng_state()
    torch.manual_seed(seed)
    try:
        with torch.device(device):
            model = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation=NAME)
    finally:
        torch.random.set_rng_state(state)
    if shape.linear_bytes == 1:
        to_fp8(model.get_decoder())
    return model.eval().requires_grad_(False)
