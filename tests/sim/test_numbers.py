"""Columns as lists."""

from __future__ import annotations

import numpy as np
import pytest

from sim.numbers import as_list


@pytest.mark.parametrize(
    "column",
    [[], [0], [1], [0, 0], [1, 0], [2**62, 0], [3, 1, 3, 2], [300] * 400, list(range(1000, 0, -1)), [2**40, *range(9)]],
    ids=str,
)
def test_the_numbers_are_those_of_the_column(column: list[int]) -> None:
    listed = as_list(np.array(column, dtype=np.int64))
    assert listed == column
    assert all(type(number) is int for number in listed)


def test_equal_numbers_are_one_object_in_a_long_column() -> None:
    listed = as_list(np.arange(300, 700, dtype=np.int64).repeat(2))
    assert len({id(number) for number in listed}) == 400
