"""Token ids for a trace's prompts, so that a real prefix cache finds exactly what the trace says is shared."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from traces.schema import Trace

Words = NDArray[np.uint64]

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
SHARED, OWN = np.uint64(0x5851F42D4C957F2D), np.uint64(0x14057B7EF767814F)
"""Keep content ids of the trace apart from the content that requests without segments have of their own."""


def prompt_ids(trace: Trace, index: int, vocab: int) -> list[int]:
    """Return the token ids of a request's prompt, each below ``vocab``.

    A token is a hash of its content id and its place in the segment. So equal content gives equal tokens, in every
    process and on every machine, a shorter use of a content is a prefix of a longer one, and two contents differ in
    each token but for one in ``vocab``. Without segments every prompt is unlike every other.

    Args:
        trace: the requests.
        index: which of them.
        vocab: tokens that the model knows, at least 2.

    Raises:
        ValueError: if the vocabulary has fewer than 2 tokens.
    """
    ids: list[int] = prompt_array(trace, index, vocab).tolist()
    return ids


def prompt_array(trace: Trace, index: int, vocab: int) -> NDArray[np.int32]:
    """Return what :func:`prompt_ids` does as an array."""
    if vocab < 2:
        raise ValueError(f"prompts need a vocabulary of at least 2 tokens, not {vocab}")
    if trace.segments is None:
        key, tokens = _mixed(np.array([index]), OWN), trace.prompt_tokens[index : index + 1]
    else:
        own = slice(*trace.segments.offsets[index : index + 2].tolist())
        key, tokens = _mixed(trace.segments.ids[own], SHARED), trace.segments.tokens[own]
    starts = np.cumsum(tokens) - tokens
    place = np.arange(int(tokens.sum()), dtype=np.uint64) - np.repeat(starts, tokens).astype(np.uint64)
    words = _finalised(np.repeat(key, tokens) + place * GOLDEN)
    # The high 32 bits times the vocabulary, shifted back: evenly spread, and quicker than a remainder.
    spread: Words = (words >> np.uint64(32)) * np.uint64(vocab) >> np.uint64(32)
    return spread.astype(np.int32)


def _mixed(values: NDArray[np.int64], salt: np.uint64) -> Words:
    return _finalised(_finalised(values.astype(np.uint64) ^ salt) + salt)


def _finalised(words: Words) -> Words:
    """Return SplitMix64's output function of each word (Steele, Lea and Flood, OOPSLA 2014)."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))
