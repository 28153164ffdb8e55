"""Hybrid prefilling computes what the plain forward pass does, whatever the chunks, the prefix and the heads."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodels.hardware import LlmShape
from gpu_runner.hybrid.baselines import chunked_prefill, whole_prefill
from gpu_runner.hybrid.execute import PLAIN, Switches
from gpu_runner.hybrid.prefill import Kept
from tests.hybrid.small import ARCHITECTURES, GQA, MHA, model, plain_logits, prefiller, relative, tokens

STEPS = (Switches(7, preallocate=False, in_place=False), Switches(7, in_place=False), Switches(7))
NEW = {1: 20, 7: 60, 64: 200, 512: 600, 1000: 300}
"""Tokens of a prompt by chunk size: the last chunk is always a shorter one."""

HEADS = pytest.mark.parametrize("shape", [GQA, MHA], ids=["gqa", "mha"])
EACH = pytest.mark.parametrize("architecture", ARCHITECTURES)


@EACH
@HEADS
@pytest.mark.parametrize("cached", [0, 48])
@pytest.mark.parametrize("chunk", [1, 7, 64, 512, 1000])
def test_any_chunk_in_float32(architecture: str, shape: LlmShape, cached: int, chunk: int) -> None:
    ids = tokens(cached + NEW[chunk])
    ours = prefiller(architecture, shape).with_switches(Switches(chunk))
    prefix = Kept(cached)
    if cached:
        ours.prefill(ids[:cached], keep=cached, sink=prefix)
    logits = ours.prefill(ids[cached:], prefix=prefix if cached else None)
    assert relative(logits, plain_logits(model(architecture, shape), ids)) <= 1e-5


@EACH
@HEADS
@pytest.mark.parametrize("cached", [0, 48])
@pytest.mark.parametrize("chunk", [1, 7, 64, 512])
def test_any_chunk_in_bfloat16(architecture: str, shape: LlmShape, cached: int, chunk: int) -> None:
    ids, plain = _decided(model(architecture, shape, torch.bfloat16), cached + NEW[chunk])
    ours = prefiller(architecture, shape, torch.bfloat16).with_switches(Switches(chunk))
    prefix = Kept(cached)
    if cached:
        ours.prefill(ids[:cached], keep=cached, sink=prefix)
    logits = ours.prefill(ids[cached:], prefix=prefix if cached else None)
    assert logits.argmax() == plain.argmax()
    assert float((logits.float() - plain.float()).abs().max()) <= 2e-2


@given(
    architecture=st.sampled_from(ARCHITECTURES),
    shape=st.sampled_from((GQA, MHA)),
    switches=st.sampled_from((*STEPS, PLAIN, Switches(64))),
    parts=st.lists(st.integers(1, 70), min_size=1, max_size=4),
    offload=st.booleans(),
)
@settings(deadline=None, max_examples=20)
def test_a_prompt_in_any_pieces(
    architecture: str, shape: LlmShape, switches: Switches, parts: list[int], offload: bool
) -> None:
    """Each piece starts from the KV that was kept of all before it."""
    ids = tokens(sum(parts), seed=len(parts))
    ours = prefiller(architecture, shape).with_switches(switches)
    prefix: Kept | None = None
    start = 0
    logits = torch.empty(0)
    for part in parts:
        kept = Kept(part, offload)
        logits = ours.prefill(ids[start : start + part], prefix=prefix, keep=part, sink=kept)
        start += part
        prefix = kept if prefix is None else _joined(prefix, kept)
    assert relative(logits, plain_logits(model(architecture, shape), ids)) <= 1e-5


@given(st.integers(1, 200), st.integers(1, 200), st.integers(0, 200))
@settings(deadline=None, max_examples=15)
def test_the_kept_part_is_a_prefix_of_the_whole(chunk: int, new: int, keep: int) -> None:
    ids, keep = tokens(new), min(keep, new)
    ours = prefiller("llama").with_switches(Switches(chunk))
    _, whole = whole_prefill(ours, ids)
    kept = Kept(keep)
    ours.prefill(ids, keep=keep, sink=kept)
    assert len(kept.layers) == (GQA.layers if keep else 0)
    assert kept.nbytes == keep * GQA.layers * 2 * GQA.kv_heads * GQA.head_dim * 4
    for layer, parts in kept.layers.items():
        for part, all_of_it in zip(parts, whole.layers[layer], strict=True):
            torch.testing.assert_close(part, all_of_it[:, :, :keep], rtol=1e-5, atol=1e-6)


@EACH
@pytest.mark.parametrize("chunk", [1, 64, 300, 1000])
def test_chunked_prefill(architecture: str, chunk: int) -> None:
    ids = tokens(20 if chunk == 1 else 700)
    logits = chunked_prefill(prefiller(architecture), ids, chunk)
    assert relative(logits, plain_logits(model(architecture), ids)) <= 1e-5


def test_the_order_of_tokens_matters() -> None:
    """The comparison can fail: another order or one position off is far outside the bound."""
    ids = tokens(200)
    plain = plain_logits(model("llama"), ids)
    assert relative(prefiller("llama").prefill(ids.flip(0)), plain) > 1e-2
    swapped = torch.cat((ids[100:], ids[:100]))
    assert relative(prefiller("llama").prefill(swapped), plain) > 1e-2


def _joined(first: Kept, second: Kept) -> Kept:
    both = Kept(first.tokens + second.tokens)
    for layer in first.layers:
        k, v = (torch.cat(pair, 2) for pair in zip(first.layer(layer), second.layer(layer), strict=True))
        both(layer, k, v)
    return both


def _decided(of: Any, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the first prompt whose two best tokens are four roundings apart in the plain pass, and its logits."""
    for seed in range(1, 100):
        ids = tokens(count, seed=seed)
        plain = plain_logits(of, ids)
        best, second = plain.float().topk(2).values
        if best - second >= 4 * best * torch.finfo(torch.bfloat16).eps:
            return ids, plain
    raise AssertionError("every prompt is a tie")
