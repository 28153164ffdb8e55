"""The other two ways of prefilling, on the same graph: whole with all KV kept, and chunked with attention."""

from __future__ import annotations

import torch

from gpu_runner.hybrid.attention import KV, causal_attention
from gpu_runner.hybrid.errors import HybridError
from gpu_runner.hybrid.execute import PLAIN
from gpu_runner.hybrid.prefill import Kept, Prefiller


def whole_prefill(prefiller: Prefiller, ids: torch.Tensor) -> tuple[torch.Tensor, Kept]:
    """Return the next token's logits and all KV: what an engine with paged attention does."""
    kept = Kept(ids.shape[0])
    return prefiller.with_switches(PLAIN).prefill(ids, keep=ids.shape[0], sink=kept), kept


def chunked_prefill(prefiller: Prefiller, ids: torch.Tensor, chunk: int) -> torch.Tensor:
    """Return the next token's logits, ``chunk`` tokens going through the whole model at once.

    The KV of all tokens and layers is held in tensors made before.

    Raises:
        HybridError: if chunk is below 1.
    """
    if chunk < 1:
        raise HybridError(f"chunk is {chunk}; it must be at least 1")
    plain = prefiller.with_switches(PLAIN)
    tokens = ids.shape[0]
    cache: dict[int, KV] = {}
    for lo in range(0, tokens, chunk):
        hidden = torch.empty(0)  # or the last chunk's would live beside this one's

        def attend(
            layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, lo: int = lo
        ) -> torch.Tensor:
            hi = lo + q.shape[2]
            if layer not in cache:
                cache[layer] = (_empty(k, tokens), _empty(v, tokens))
            for whole, new in zip(cache[layer], (k, v), strict=True):
                whole[:, :, lo:hi] = new
            k, v = (whole[:, :, :hi] for whole in cache[layer])
            return causal_attention(q, k, v, scale)

        hidden = plain.hidden(ids[lo : lo + chunk], lo, attend)
    return plain.logits(hidden)


def _empty(like: torch.Tensor, tokens: int) -> torch.Tensor:
    return like.new_empty(1, tokens, like.shape[1], like.shape[3]).transpose(1, 2)
