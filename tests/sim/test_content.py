"""The content tree against prompts written out token by token."""

from __future__ import annotations

import random
from itertools import pairwise

import numpy as np
import pytest

from sim.content import ContentTree
from tests.seeded import cases, whole
from tests.sim.contents import contents
from traces import Segments, Trace


def written_out(trace: Trace, row: int) -> list[tuple[int, int]]:
    """A prompt's tokens; the k-th token of a use of an id is always the same."""
    assert trace.segments is not None
    return [(content, k) for content, n in trace.segments.of(row) for k in range(n)]


def check(trace: Trace, block_size: int) -> None:
    """Each node's requests share its blocks, nobody else does, and no node could be longer."""
    tree = ContentTree(trace, block_size)
    prompts = [written_out(trace, i) for i in range(len(trace))]
    paths = [tree.path(i) for i in range(len(trace))]
    for i, path in enumerate(paths):
        ends = [0, *(node.hi for node in path)]
        assert [node.lo for node in path] == ends[:-1]
        assert all(lo < hi for lo, hi in pairwise(ends))
        assert ends[-1] == tree.shared_end(i) == len(prompts[i]) // block_size
    beginnings = [{tuple(p[:end]) for end in range(block_size, len(p) + 1, block_size)} for p in prompts]
    for i, path in enumerate(paths):
        sharing = {}
        for node in path:
            for block in range(node.lo, node.hi):
                own = tuple(prompts[i][: (block + 1) * block_size])
                among = {j for j, beginning in enumerate(beginnings) if own in beginning}
                assert among == {j for j, other in enumerate(paths) if node in other}
                assert sharing.setdefault(node, among) == among
            assert node.requests == len(sharing[node])
        assert all(sharing[a] != sharing[b] for a, b in pairwise(path))
    assert {node for path in paths for node in path} == set(tree.nodes)
    assert [node.number for node in tree.nodes] == list(range(len(tree.nodes)))


@cases(300, contents(whole(1, 5)))
def test_equals_the_tokens_written_out(drawn: tuple[Trace, int]) -> None:
    trace, block_size = drawn
    if trace.segments is None:
        assert [ContentTree(trace, block_size).path(i) for i in range(len(trace))] == [()] * len(trace)
    else:
        check(trace, block_size)


def trace_of(*prompts: list[tuple[int, int]]) -> Trace:
    return Trace(
        np.arange(len(prompts)),
        np.array([sum(n for _, n in p) for p in prompts]),
        np.ones(len(prompts), dtype=np.int64),
        segments=Segments(
            np.cumsum([0, *map(len, prompts)]),
            np.array([c for p in prompts for c, _ in p]),
            np.array([n for p in prompts for _, n in p]),
        ),
    )


def unrelated(rng: random.Random) -> Trace:
    """Make six prompts of one to five segments over few ids."""
    ids, most = rng.choice([0, 1, 4]), rng.choice([1, 9, 9])
    return trace_of(
        *[[(rng.randint(0, ids), rng.randint(1, most)) for _ in range(rng.randint(1, 5))] for _ in range(6)]
    )


@cases(100, unrelated, whole(1, 4))
def test_equals_the_tokens_of_unrelated_prompts(trace: Trace, block_size: int) -> None:
    check(trace, block_size)


def common_blocks(a: list[tuple[int, int]], b: list[tuple[int, int]]) -> int:
    tree = ContentTree(trace_of(a, b), 4)
    return max((node.hi for node in tree.path(0) if node in tree.path(1)), default=0)


@pytest.mark.parametrize(
    ("a", "b", "blocks"),
    [
        ([(7, 16)], [(7, 16)], 4),
        ([(7, 16)], [(7, 9)], 2),
        ([(7, 16)], [(8, 16)], 0),
        # The same content behind another beginning is another content.
        ([(1, 4), (7, 16)], [(2, 4), (7, 16)], 0),
        # After a shorter use of an id comes what differs from the longer use.
        ([(7, 8), (1, 8)], [(7, 16)], 2),
        ([(7, 8), (7, 8)], [(7, 16)], 2),
        ([(7, 6), (1, 8)], [(7, 6), (1, 3)], 2),
        ([(7, 3)], [(7, 3)], 0),
    ],
)
def test_common_beginnings(a: list[tuple[int, int]], b: list[tuple[int, int]], blocks: int) -> None:
    assert common_blocks(a, b) == common_blocks(b, a) == blocks


def test_many_uses_of_one_id_are_one_path() -> None:
    """600 prompts, each a token longer than another; there are more different segments than a byte can number."""
    lengths = np.random.default_rng(1).permutation(600) + 1
    tree = ContentTree(trace_of(*[[(0, n)] for n in lengths.tolist()]), 1)
    for i, n in enumerate(lengths.tolist()):
        assert [(node.lo, node.hi, node.requests) for node in tree.path(i)] == [(k, k + 1, 600 - k) for k in range(n)]


def test_an_empty_trace_has_an_empty_tree() -> None:
    nobody = np.array([], dtype=np.int64)
    trace = Trace(nobody, nobody, nobody, segments=Segments(np.array([0]), nobody, nobody))
    assert ContentTree(trace, 16).nodes == []
