"""Prompt content given as a list of hash ids, each for a block of tokens."""

from __future__ import annotations

import numpy as np

from traces.readers.table import Table
from traces.schema import IntArray, Segments, TraceError

MOONCAKE_BLOCK = 512
VLLM_BLOCK = 16


def block_segments(prompts: IntArray, counts: IntArray, ids: IntArray, block_size: int) -> Segments:
    """Return one segment per hash id, of ``block_size`` tokens but for a partial last block.

    A prompt whose partial last block has no id ends in a segment of its own.

    Args:
        prompts: prompt lengths, shape (n,).
        counts: ids per prompt, shape (n,): as many as blocks, or as full blocks.
        ids: all ids in a row, at least 0, shape (sum of counts,).
        block_size: tokens that an id stands for.
    """
    rest = prompts - counts * block_size
    own = rest > 0
    offsets = np.concatenate([[0], np.cumsum(counts + own)]).astype(np.int64)
    tokens = np.full(offsets[-1], block_size, dtype=np.int64)
    content = np.empty(offsets[-1], dtype=np.int64)
    last = offsets[1:] - 1
    is_own = np.zeros(offsets[-1], dtype=np.bool_)
    is_own[last[own]] = True
    content[~is_own] = ids
    content[is_own] = np.arange(own.sum()) + (ids.max(initial=-1) + 1)
    partial = (rest != 0) & (counts + own > 0)
    tokens[last[partial]] += np.where(own, rest - block_size, rest)[partial]
    return Segments(offsets, content, tokens)


def check_blocks(table: Table, column: str, prompts: IntArray, counts: IntArray, block_size: int) -> None:
    """Report the prompts that do not have one id per block; a partial last block may lack its own, with a warning."""
    full, needed = prompts // block_size, -(-prompts // block_size)
    checked = table.ok & table.kept
    table.refuse(
        checked & (counts != needed) & (counts != full),
        column,
        lambda i: (
            f"there are {counts[i]:,} hash ids, but {prompts[i]:,} tokens make {needed[i]:,} blocks of {block_size:,}"
        ),
    )
    short = np.flatnonzero(checked & (counts == full) & (counts != needed))
    if len(short):
        what = "1 prompt has" if len(short) == 1 else f"{len(short):,} prompts have"
        table.problems.warn(
            int(table.lines[short[0]]),
            column,
            f"{what} no hash id for the partial last block, which is taken as content of its own",
        )


def infer_block_size(table: Table, column: str, prompts: IntArray, counts: IntArray) -> int:
    """Return the tokens that a hash id stands for, from the numbers of ids that prompts have.

    ``k`` ids for ``n`` tokens leave the sizes from ``n / k`` to just below ``n / (k - 1)``. Where all prompts together
    leave one size, that is it. Else Mooncake's 512 and vLLM's 16 are tried, then the one power of two that fits,
    each with a warning.

    Raises:
        Unreadable: if several sizes fit, none of them likelier than the others.
    """
    usable = table.ok & table.kept & (counts > 0)
    n, k = prompts[usable], counts[usable]
    low = int((-(-n // k)).max(initial=1))
    high = int((-(-n[k > 1] // (k[k > 1] - 1)) - 1).min(initial=2**31))
    if low == high:
        return low
    if low > high:
        return _likelier(n, k)
    powers = [2**p for p in range(32) if low <= 2**p <= high]
    choice = next((b for b in (MOONCAKE_BLOCK, VLLM_BLOCK) if low <= b <= high), None)
    if choice is None and len(powers) == 1:
        choice = powers[0]
    if choice is None:
        table.problems.fatal(
            f"anything from {low:,} to {high:,} tokens per hash id fits this file; give the block size",
            None,
            column,
        )
    table.problems.warn(
        None,
        column,
        f"each hash id is taken for {choice} tokens, though anything from {low:,} to {high:,} fits; "
        "give the block size to be sure",
    )
    return choice


def _likelier(prompts: IntArray, counts: IntArray) -> int:
    def misfits(size: int) -> int:
        return int(((counts != -(-prompts // size)) & (counts != prompts // size)).sum())

    return min((MOONCAKE_BLOCK, VLLM_BLOCK), key=misfits)


def check_block_size(block_size: int | None) -> None:
    """Refuse a block size that no block can have.

    Raises:
        TraceError: if it is below 1.
    """
    if block_size is not None and block_size < 1:
        raise TraceError(f"a block has at least 1 token, not {block_size}")
