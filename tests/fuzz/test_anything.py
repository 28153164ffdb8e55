"""Damaged input of every kind is taken or refused with one sentence; coverage-guided fuzzing starts from the same."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz.seeds import SEEDS, WORDS
from tests.fuzz.targets import TARGETS, outcome


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("anything")


def test_every_target_has_seeds_and_takes_them(folder: Path) -> None:
    assert SEEDS.keys() == TARGETS.keys() == WORDS.keys()
    for name, seeds in SEEDS.items():
        assert seeds
        assert [outcome(name, seed, folder) for seed in seeds] == [""] * len(seeds)


MOST, EDIT = 4, 15
"""Edits of an input, and the bytes that decide one: which word, how often, how many bytes it replaces, and where."""

PLANES = (0x80, 0x800, 0x10000, 0x110000)


def written(name: str, kind: int, drawn: bytes) -> bytes:
    """Return a word of a target's language, or up to four bytes or letters of anything."""
    if kind % 3 == 0:
        return WORDS[name][drawn[0] % len(WORDS[name])].encode()
    if kind % 3 == 1:
        return drawn[: kind // 3 % 5]
    letters = (int.from_bytes(drawn[2 * i : 2 * i + 3]) % PLANES[drawn[-1 - i] % 4] for i in range(kind // 3 % 5))
    return "".join(map(chr, letters)).encode(errors="ignore")


def damaged(drawn: bytes) -> tuple[str, bytes]:
    """Choose a target, and one of its seeds with up to four places overwritten; a draw for each choice takes longer."""
    name = sorted(TARGETS)[drawn[0] % len(TARGETS)]
    data = SEEDS[name][drawn[1] % len(SEEDS[name])]
    for start in range(3, 3 + EDIT * (drawn[2] % (MOST + 1)), EDIT):
        kind, often, long, *_ = edit = drawn[start : start + EDIT]
        at = int.from_bytes(edit[3:6]) % (len(data) + 1)
        data = data[:at] + written(name, kind, edit[6:]) * (1, 1, 1, 30)[often % 4] + data[at + long % 9 :]
    return name, data


LENGTH = 3 + EDIT * MOST


@settings(deadline=None, max_examples=400)
@given(st.binary(min_size=LENGTH, max_size=LENGTH).map(damaged))
def test_damaged_input_is_taken_or_refused(folder: Path, drawn: tuple[str, bytes]) -> None:
    assert "\n" not in outcome(*drawn, folder)


@pytest.mark.parametrize("name", ["policy", "slo", "set", "toml"])
def test_a_line_break_anywhere_is_told_in_one_line(name: str, folder: Path) -> None:
    """Names and numbers are repeated in messages, whatever stands in them."""
    for seed in SEEDS[name]:
        for at in range(min(len(seed), 200) + 1):
            for character in (b"\n", b"\r", "\u2028".encode()):
                said = outcome(name, seed[:at] + character + seed[at:], folder)
                assert said.isprintable(), seed[:at]
