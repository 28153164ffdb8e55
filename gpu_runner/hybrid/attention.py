"""Causal attention of new tokens over a cached prefix and themselves: no mask, no repeated key-value heads, no copies.

The operator that stands in the graph, ``prefillsim::attention``, knows no prefix; whoever runs the graph calls
:func:`causal_attention` in its place.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.backends.cuda import SDPAParams, can_use_flash_attention
from torch.nn.attention.bias import causal_lower_right

from gpu_runner.hybrid.errors import HybridError

NAME = "prefillsim"
"""The name under which Hugging Face models find this attention."""

BLOCK = 2048
"""Queries whose parts are merged at once where the kernel has no lower-right causal mask."""

KV = tuple[torch.Tensor, torch.Tensor]
"""Keys and values of one layer, each [1, KV heads, tokens, head dimension]."""


def causal_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, prefix: KV | None = None
) -> torch.Tensor:
    """Return the attention of the last ``q`` tokens over all of ``prefix``, ``k`` and ``v`` that is not after them.

    Args:
        q: [1, heads, n, d].
        k: [1, KV heads, m, d], m at least n; the last n belong to the queries' own tokens.
        v: as ``k``.
        scale: of the scores.
        prefix: keys and values of the tokens before ``k``'s first.

    Returns:
        [1, n, heads, d], contiguous.
    """
    fake = isinstance(q, FakeTensor) or q.device.type == "meta"
    if fake or q.device.type == "cuda":
        if prefix is not None:
            k, v = torch.cat((prefix[0], k), 2), torch.cat((prefix[1], v), 2)
        return ATTENTION(q, k, v, scale, -1) if fake else _cuda(q, k, v, scale)
    older = [] if prefix is None else [prefix]
    new = q.shape[2]
    before = k.shape[2] - new
    if before:
        older.append((k[:, :, :before], v[:, :, :before]))
        k, v = k[:, :, before:], v[:, :, before:]
    if not older:
        return _flash(q, k, v, scale, causal=True)[0].transpose(1, 2).contiguous()
    out = torch.empty((1, new, q.shape[1], v.shape[3]), dtype=q.dtype, device=q.device)
    for lo in range(0, new, BLOCK):
        hi = min(lo + BLOCK, new)
        parts = [*older, (k[:, :, :lo], v[:, :, :lo])] if lo else older
        rows = q[:, :, lo:hi]
        merged = [_flash(rows, *part, scale, causal=False) for part in parts]
        merged.append(_flash(rows, k[:, :, lo:hi], v[:, :, lo:hi], scale, causal=True))
        out[:, lo:hi] = _merge(merged).transpose(1, 2)
    return out


def _cuda(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float) -> torch.Tensor:
    mask = causal_lower_right(q.shape[2], k.shape[2])
    grouped = q.shape[1] != k.shape[1]
    attend = torch.nn.functional.scaled_dot_product_attention
    if can_use_flash_attention(SDPAParams(q, k, v, None, 0.0, False, grouped)):
        # Others would do where lengths are equal; one of them plans anew for every length that it has not met.
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.FLASH_ATTENTION):
            out = attend(q, k, v, attn_mask=mask, scale=scale, enable_gqa=grouped)
        return out.transpose(1, 2).contiguous()
    # The kernel for float32 and older GPUs knows no grouped heads: it gets one query head of each group at a time.
    groups = q.shape[1] // k.shape[1]
    merged = torch.empty((1, q.shape[2], q.shape[1], v.shape[3]), dtype=q.dtype, device=q.device)
    for i in range(groups):
        merged[:, :, i::groups] = attend(q[:, i::groups], k, v, attn_mask=mask, scale=scale).transpose(1, 2)
    return merged


def _flash(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, causal: bool) -> KV:
    out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, causal, scale=scale)
    return out, lse


def _merge(parts: list[KV]) -> torch.Tensor:
    total = torch.logsumexp(torch.stack([lse for _, lse in parts]), 0)
    merged = torch.zeros(parts[0][0].shape, dtype=torch.float32)
    for out, lse in parts:
        merged += out * torch.exp(lse - total).unsqueeze(-1)
    return merged


def _without_prefix(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, layer: int) -> torch.Tensor:
    return causal_attention(q, k, v, scale)


def _shape(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, layer: int) -> torch.Tensor:
    return q.new_empty(q.shape[0], q.shape[2], q.shape[1], v.shape[3])


_without_prefix.__annotations__ = {
    **dict.fromkeys(("q", "k", "v", "return"), torch.Tensor),
    "scale": float,
    "layer": int,
}
_operator = torch.library.custom_op("prefillsim::attention", _without_prefix, mutates_args=())
_operator.register_fake(_shape)

ATTENTION: Any = torch.ops.prefillsim.attention.default
"""The operator: (q, k, v, scale, layer) to [1, n, heads, d]."""


def interface(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """Attend as a Hugging Face model asks for it.

    Raises:
        HybridError: if it asks for anything but plain causal attention.
    """
    asked = sorted(n for n, x in others.items() if x is not None and n in ("sliding_window", "softcap", "s_aux"))
    if attention_mask is not None:
        asked.append("attention_mask")
    if dropout:
        asked.append("dropout")
    if asked or not getattr(module, "is_causal", True):
        raise HybridError(
            f"the attention of {type(module).__name__} asks for {', '.join(asked) or 'looking ahead'}; hybrid "
            "prefilling knows causal attention over everything before a token, and nothing else"
        )
    scale = query.shape[-1] ** -0.5 if scaling is None else float(scaling)
    return ATTENTION(query, key, value, scale, module.layer_idx), None
