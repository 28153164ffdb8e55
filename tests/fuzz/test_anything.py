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


@st.composite
def damaged(draw: st.DrawFn) -> tuple[str, bytes]:
    """Draw a target, and one of its seeds with up to four places overwritten by words of its language or anything."""
    name = draw(st.sampled_from(sorted(TARGETS)))
    data = draw(st.sampled_from(SEEDS[name]))
    word = st.sampled_from(WORDS[name]).map(str.encode) | st.binary(max_size=4) | st.text(max_size=4).map(str.encode)
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, len(data)))
        data = data[:at] + draw(word) * draw(st.sampled_from([1, 1, 1, 30])) + data[at + draw(st.integers(0, 8)) :]
    return name, data


@settings(deadline=None, max_examples=400)
@given(damaged())
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
