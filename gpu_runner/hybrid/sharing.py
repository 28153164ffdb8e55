"""What an application would know about its own prompts, from the trace that has them all."""

from __future__ import annotations

from sim.content import ContentTree
from traces.schema import Trace


def shared_tokens(trace: Trace, block_size: int) -> list[int]:
    """Return how many leading tokens of each prompt, in whole blocks, another of the trace begins with too.

    It is what the simulator's store keeps with ``suffix="discard"``.
    """
    tree = ContentTree(trace, block_size)
    return [block_size * max([0, *(node.hi for node in tree.path(i) if node.requests > 1)]) for i in range(len(trace))]
