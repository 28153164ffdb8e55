"""RAGPulse's JSON lines: retrieval-augmented prompts made of named components."""

from __future__ import annotations

from typing import Any

import numpy as np

from traces.readers.base import Draft, Format
from traces.readers.table import Table
from traces.readers.values import absent, as_list, show
from traces.schema import IntArray, Segments

COMPONENTS = ("sys_prompt", "passages_ids", "history", "web_search", "user_input")


def read(table: Table, block_size: int | None) -> Draft:
    """Read the requests with their components' ids, concatenated as they are stored, as prompt content.

    The file does not say how long the components are. ``input_length`` is spread over a prompt's ids evenly, the first
    ids taking one token more where it does not come out. So one id can have different numbers of tokens in different
    requests; the shorter use is then a prefix of the longer one. A prompt without ids is content of its own.
    """
    prompts, outputs = table.tokens("input_length"), table.tokens("output_length")
    counts, ids = table.content_ids("hash_ids", _concatenate(table))
    table.refuse(
        table.ok & (counts > prompts),
        "hash_ids",
        lambda i: f"there are {counts[i]:,} content ids for a prompt of {prompts[i]:,} tokens",
    )
    return Draft(
        table.seconds("timestamp"),
        prompts,
        outputs,
        segments=lambda: spread_evenly(prompts, counts, ids),
        session=table.labels("session_id"),
        arrival_column="timestamp",
    )


def _concatenate(table: Table) -> list[list[Any]]:
    raw = as_list(table.columns["hash_ids"])
    bad = np.array(
        [
            type(c) is not dict or not c.keys() <= set(COMPONENTS) or any(type(v) is not list for v in c.values())
            for c in raw
        ],
        dtype=np.bool_,
    )
    table.refuse(
        bad,
        "hash_ids",
        lambda i: absent(raw[i]) or f"{show(raw[i])} is not an object of lists with the keys {', '.join(COMPONENTS)}",
    )
    return [
        [] if wrong else [x for ids in components.values() for x in ids]
        for components, wrong in zip(raw, bad.tolist(), strict=True)
    ]


def spread_evenly(prompts: IntArray, counts: IntArray, ids: IntArray) -> Segments:
    """Return segments of ``prompts // counts`` tokens, one more for the first ``prompts % counts`` of a prompt."""
    own = counts == 0
    parts = counts + own
    offsets = np.concatenate([[0], np.cumsum(parts)]).astype(np.int64)
    content = np.empty(offsets[-1], dtype=np.int64)
    is_own = np.zeros(offsets[-1], dtype=np.bool_)
    is_own[offsets[:-1][own]] = True
    content[~is_own] = ids
    content[is_own] = np.arange(own.sum()) + (ids.max(initial=-1) + 1)
    share, extra = np.divmod(prompts, parts)
    within = np.arange(offsets[-1], dtype=np.int64) - np.repeat(offsets[:-1], parts)
    return Segments(offsets, content, np.repeat(share, parts) + (within < np.repeat(extra, parts)))


def _has_components(table: Table) -> bool:
    return any(type(ids) is dict for ids in table.columns["hash_ids"])


FORMAT = Format(
    "ragpulse",
    "RAGPulse, JSON lines: timestamp (s), input_length, output_length, session_id, hash_ids by component",
    "jsonl",
    ("timestamp", "input_length", "output_length", "session_id", "hash_ids"),
    read,
    accepts=_has_components,
)
