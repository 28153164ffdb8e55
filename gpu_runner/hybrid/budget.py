"""The profile run: what the longest prompt takes is set aside, and the rest holds prefixes."""

from __future__ import annotations

import torch

from gpu_runner.hybrid.errors import HybridError
from gpu_runner.hybrid.memory import measure
from gpu_runner.hybrid.prefill import Kept, Prefiller
from gpu_runner.hybrid.prefixstore import Shape


def profile_run(prefiller: Prefiller, longest: int, block: int = 16) -> int:
    """Return the bytes that a prefill of ``longest`` tokens takes at its peak beside the weights.

    It is the larger of two runs, without a prefix and with one of a single block: to read a prefix, one layer's KV of
    the whole prompt is copied, and the fewer of its tokens are new the less the rest takes. On CUDA the prefills run;
    elsewhere the same code runs on tensors without memory.

    Args:
        prefiller: the model.
        longest: tokens of the longest prompt.
        block: tokens of the shortest prefix.

    Raises:
        HybridError: if ``longest`` is below 1.
    """
    if longest < 1:
        raise HybridError(f"the longest prompt has {longest} tokens; it must have at least 1")
    if prefiller.device.type != "cuda":
        prefiller = prefiller.without_memory()
    ids = torch.zeros(longest, dtype=torch.long, device=prefiller.device)
    peak = measure(lambda: prefiller.prefill(ids), ids.device).peak
    if longest <= block:
        return peak
    prefix = Kept(block)
    prefiller.prefill(ids[:block], keep=block, sink=prefix)
    return max(peak, measure(lambda: prefiller.prefill(ids[block:], prefix=prefix), ids.device).peak)


def blocks_beside(prefiller: Prefiller, longest: int, room_bytes: int, shape: Shape) -> int:
    """Return how many blocks of prefixes fit beside a prefill of ``longest`` tokens.

    Args:
        prefiller: the model.
        longest: tokens of the longest prompt.
        room_bytes: what the weights leave.
        shape: of a block.

    Raises:
        HybridError: if the longest prompt does not fit at all.
    """
    peak = profile_run(prefiller, longest, shape.size)
    if peak > room_bytes:
        raise HybridError(
            f"a prompt of {longest} tokens takes {peak:,} bytes, and the weights leave {room_bytes:,}; "
            "lower the longest prompt's length or the chunk"
        )
    return (room_bytes - peak) // shape.block_bytes
