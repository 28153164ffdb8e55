"""Token ids against the content tree that the simulator's prefix cache lives on."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from itertools import combinations

import numpy as np
import pytest

from gpu_runner.prompts import prompt_array, prompt_ids
from sim.content import ContentTree
from tests.seeded import cases, either, pick, whole
from tests.sim.contents import contents
from traces import Segments, Trace

HUGE = 2**31 - 1
"""A vocabulary in which two contents hardly ever have the same token in the same place."""


def one_each(*prompts: list[tuple[int, int]]) -> Trace:
    n = len(prompts)
    segments = Segments(
        np.cumsum([0, *(len(p) for p in prompts)]),
        np.array([c for p in prompts for c, _ in p]),
        np.array([t for p in prompts for _, t in p]),
    )
    lengths = np.array([sum(t for _, t in p) for p in prompts])
    return Trace(np.arange(n), lengths, np.ones(n, dtype=np.int64), segments=segments)


def shared_blocks(a: list[int], b: list[int], block_size: int) -> int:
    """How many full leading blocks two prompts have in common."""
    count = 0
    while (count + 1) * block_size <= min(len(a), len(b)):
        block = slice(count * block_size, (count + 1) * block_size)
        if a[block] != b[block]:
            break
        count += 1
    return count


def shared_by_content(tree: ContentTree, i: int, j: int) -> int:
    return max((node.hi for node in tree.path(i) if node in tree.path(j)), default=0)


def check(trace: Trace, block_size: int, vocab: int) -> None:
    tree = ContentTree(trace, block_size)
    prompts = [prompt_ids(trace, i, vocab) for i in range(len(trace))]
    assert [len(p) for p in prompts] == trace.prompt_tokens.tolist()
    assert all(0 <= token < vocab for p in prompts for token in p)
    for i, j in combinations(range(len(trace)), 2):
        by_content = shared_by_content(tree, i, j) if trace.segments is not None else 0
        assert shared_blocks(prompts[i], prompts[j], block_size) == by_content


@cases(200, contents(either(pick(1, 16, 32), whole(1, 32))))
def test_prompts_share_the_blocks_that_their_contents_share(drawn: tuple[Trace, int]) -> None:
    check(*drawn, HUGE)


def whole_blocks(rng: random.Random) -> Trace:
    """Make prompts of whole blocks of 16 over any content ids at all."""
    near = rng.choice((0, -(2**63) + 2, 2**63 - 3, 2**32))
    ids = [rng.choice((rng.randrange(-(2**63), 2**63), near + rng.randint(-2, 2))) for _ in range(rng.randint(1, 4))]
    return one_each(
        *(
            [(rng.choice(ids), 16 * rng.randint(1, 4)) for _ in range(rng.randint(1, 4))]
            for _ in range(rng.randint(2, 6))
        )
    )


@cases(200, whole_blocks, pick(1024, 32_000, 128_256))
def test_so_do_they_in_small_vocabularies_where_contents_are_whole_blocks(trace: Trace, vocab: int) -> None:
    check(trace, 16, vocab)


def test_no_two_of_many_contents_have_a_block_in_common() -> None:
    n = 20_000
    contents = np.unique(np.concatenate([np.arange(n // 2), np.arange(n // 2) * 2**32])).tolist()
    blocks = blocks_of(contents)
    assert len(set(blocks)) == len(contents)
    some = range(0, len(contents), 97)
    trace = one_each(*([(contents[i], 16)] for i in some))
    assert [tuple(prompt_ids(trace, i, 1024)) for i in range(len(trace))] == [blocks[i] for i in some]


def blocks_of(contents: list[int]) -> list[tuple[int, ...]]:
    """Return the blocks of 16 of a prompt that is all contents in a row, which says the same as a prompt for each."""
    ids = prompt_array(one_each([(c, 16) for c in contents]), 0, 1024)
    return list(map(tuple, ids.reshape(-1, 16).tolist()))


def test_a_request_without_segments_is_unlike_every_other_and_unlike_every_content() -> None:
    n = 2000
    lengths = np.full(n, 16)
    plain = Trace(np.arange(n), lengths, np.ones(n, dtype=np.int64))
    blocks = {*blocks_of(list(range(n))), *(tuple(prompt_ids(plain, i, 1024)) for i in range(n))}
    assert len(blocks) == 2 * n


def test_tokens_are_spread_evenly_over_the_vocabulary() -> None:
    vocab, n = 1000, 400_000
    counts = np.bincount(prompt_array(one_each([(7, n)]), 0, vocab), minlength=vocab)
    chi2 = float(((counts - n / vocab) ** 2 / (n / vocab)).sum())
    # Mean vocab - 1 and standard deviation sqrt(2 (vocab - 1)), so within five of them.
    assert abs(chi2 - (vocab - 1)) < 5 * np.sqrt(2 * (vocab - 1))


def test_another_process_makes_the_same_ids() -> None:
    code = (
        "import numpy as np; from traces import Trace; from gpu_runner.prompts import prompt_ids;"
        "t = Trace(np.arange(3), np.array([5, 6, 7]), np.ones(3, dtype=np.int64)); print(prompt_ids(t, 2, 1024))"
    )
    trace = Trace(np.arange(3), np.array([5, 6, 7]), np.ones(3, dtype=np.int64))
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert told.strip() == str(prompt_ids(trace, 2, 1024))


def test_a_long_prompt_takes_milliseconds() -> None:
    trace = one_each([(c, 512) for c in range(200)])
    best = min(_seconds(trace) for _ in range(3))
    assert best < 0.1, f"102,400 tokens took {best:.3f} s"


def _seconds(trace: Trace) -> float:
    started = time.perf_counter()
    prompt_ids(trace, 0, 128_256)
    return time.perf_counter() - started


def test_one_token_is_no_vocabulary() -> None:
    with pytest.raises(ValueError, match="at least 2 tokens, not 1"):
        prompt_ids(one_each([(0, 4)]), 0, 1)
