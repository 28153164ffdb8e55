"""The profile run: what the longest prompt takes is set aside, and the rest holds prefixes."""

from __future__ import annotations

import torch

from gpu_runner.hybrid.errors import HybridError
from gpu_runner.hybrid.memory import measure
from gpu_runner.hybrid.prefill import Prefiller
from gpu_runner.hybrid.prefixstore import Shape


def profile_run(prefiller: Prefiller, longest: int) -> int:
    """Return the bytes that a prefill of ``longest`` tokens takes at its peak beside the weights.

    On CUDA the prefill runs; elsewhere the same code runs on tensors without memory.

    Raises:
        HybridError: if ``longest`` is below 1.
    """
    if longest < 1:
        raise HybridError(f"the longest prompt has {longest} tokens; it must have at least 1")
    if prefiller.device.type == "cuda":
        ids = torch.zeros(longest, dtype=torch.long, device=prefiller.device)
        return measure(lambda: prefiller.prefill(ids), prefiller.device).peak
    ids = torch.zeros(longest, dtype=torch.long, device="meta")
    return measure(lambda: prefiller.without_memory().prefill(ids), ids.device).peak


def blocks_beside(prefiller: Prefiller, longest: int, room_bytes: int, shape: Shape) -> int:
    """Return how many blocks of prefixes fit beside a prefill of ``longest`` tokens.

    One layer's KV of a prefix is copied while a prefill reads it. That is less than what the same tokens would take as
    new ones, so that the profile run needs no prefix.

    Args:
        prefiller: the model.
        longest: tokens of the longest prompt.
        room_bytes: what the weights leave.
        shape: of a block.

    Raises:
        HybridError: if the longest prompt does not fit at all.
    """
    peak = profile_run(prefiller, longest)
    if peak > room_bytes:
        raise HybridError(
            f"a prompt of {longest} tokens takes {peak:,} bytes, and the weights leave {room_bytes:,}; "
            "lower the longest prompt's length or the chunk"
        )
    return (room_bytes - peak) // shape.block_bytes
