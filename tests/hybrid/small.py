"""Small models and what Hugging Face says about them."""

from __future__ import annotations

import functools
from typing import Any

import torch
from transformers import DynamicCache

from costmodels.hardware import LlmShape
from gpu_runner.hybrid.models import build_model
from gpu_runner.hybrid.prefill import Prefiller

GQA = LlmShape("gqa", layers=3, hidden=64, intermediate=160, heads=4, kv_heads=2, head_dim=16, vocab=128)
MHA = LlmShape("mha", layers=2, hidden=96, intermediate=128, heads=3, kv_heads=3, head_dim=32, vocab=128)
ARCHITECTURES = ("llama", "qwen2", "qwen3", "mistral")


@functools.cache
def model(architecture: str, shape: LlmShape = GQA, dtype: torch.dtype = torch.float32) -> Any:
    return build_model(architecture, shape, dtype=dtype, seed=3)


@functools.cache
def prefiller(architecture: str, shape: LlmShape = GQA, dtype: torch.dtype = torch.float32) -> Prefiller:
    return Prefiller(model(architecture, shape, dtype))


def plain_logits(of: Any, ids: torch.Tensor) -> torch.Tensor:
    """Logits of the next token by transformers' own forward pass with its own eager attention, [vocabulary]."""
    own = of.config._attn_implementation
    of.set_attn_implementation("eager")
    try:
        with torch.no_grad():
            result = of(input_ids=ids[None], use_cache=True, past_key_values=DynamicCache(config=of.config))
            return result.logits[0, -1]
    finally:
        of.set_attn_implementation(own)


def tokens(count: int, seed: int = 0, vocab: int = 128) -> torch.Tensor:
    return torch.randint(0, vocab, (count,), generator=torch.Generator().manual_seed(seed))


def relative(ours: torch.Tensor, plain: torch.Tensor) -> float:
    """Largest difference over the largest logit."""
    return float((ours.float() - plain.float()).abs().max() / plain.float().abs().max())
