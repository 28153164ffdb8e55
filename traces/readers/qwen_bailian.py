"""Qwen-Bailian's JSON lines: chats of several turns, with content in blocks of 16 tokens."""

from __future__ import annotations

import numpy as np

from traces.readers.base import Draft, Format
from traces.readers.blocks import block_segments, check_blocks
from traces.readers.table import Table
from traces.readers.values import BoolArray, whole_numbers
from traces.schema import IntArray

BLOCK = 16
ROOT = -1
"""The parent of a chat's first turn."""


def read(table: Table, block_size: int | None) -> Draft:
    """Read the requests; those whose parents lead to the same root are one session.

    A parent that is not in the file counts as the root.
    """
    size = block_size or BLOCK
    chats = table.whole("chat_id", 0, 2**62)
    table.unique("chat_id", chats)
    parents = whole_numbers(table.columns["parent_chat_id"])
    table.refuse(
        (parents < ROOT) | (parents > 2**62), "parent_chat_id", lambda i: "the parent must be a chat_id, or -1 for none"
    )
    roots, circular = _roots(chats, parents)
    table.refuse(
        circular & table.ok, "parent_chat_id", lambda i: f"the parents of chat {chats[i]} go round in a circle"
    )
    prompts, outputs = table.tokens("input_length"), table.tokens("output_length")
    counts, ids = table.id_lists("hash_ids")
    check_blocks(table, "hash_ids", prompts, counts, size)
    return Draft(
        table.seconds("timestamp"),
        prompts,
        outputs,
        segments=lambda: block_segments(prompts, counts, ids, size),
        session=np.array(list(map(str, roots.tolist())), dtype=object),
        id=chats,
        arrival_column="timestamp",
    )


def _roots(chats: IntArray, parents: IntArray) -> tuple[IntArray, BoolArray]:
    """Return each chat's root, and where there is none because the parents go round in a circle."""
    parent = dict(zip(chats.tolist(), parents.tolist(), strict=True))
    root: dict[int, int] = {}
    circular: set[int] = set()
    for chat in parent:
        path: list[int] = []
        on_path: set[int] = set()
        at = chat
        while at not in root and at not in on_path and parent.get(at, ROOT) != ROOT:
            path.append(at)
            on_path.add(at)
            at = parent[at]
        if at in on_path or at in circular:
            circular.update(path)
        top = root.get(at, at)
        root.update(dict.fromkeys([*path, at], top))
    return (
        np.array([root[c] for c in chats.tolist()], dtype=np.int64),
        np.array([c in circular for c in chats.tolist()], dtype=np.bool_),
    )


FORMAT = Format(
    "qwen-bailian",
    "Qwen-Bailian usage traces, JSON lines: chat_id, parent_chat_id, timestamp (s), hash_ids of blocks of 16 tokens",
    "jsonl",
    ("chat_id", "parent_chat_id", "timestamp", "input_length", "output_length", "hash_ids"),
    read,
    optional=("type", "turn"),
)
