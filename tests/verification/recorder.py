"""A pytest plugin that keeps what the comparisons with theory measured, for the chapter."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.theory import queueing

FILE = "PREFILLSIM_THEORY"
"""Environment variable with the file to write."""

_kept: list[dict[str, Any]] = []
_compare, _intervals = queueing.assert_matches, queueing._intervals


def _recording(
    queue: queueing.Queue,
    seeds: int,
    measure: Callable[[queueing.Customers], list[float]],
    theory: list[float],
) -> None:
    seen: list[list[tuple[float, float]]] = []

    def intervals(samples: Sequence[list[float]]) -> list[tuple[float, float]]:
        seen.append(_intervals(samples))
        return seen[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(queueing, "_intervals", intervals)
        _compare(queue, seeds, measure, theory)
    test = os.environ["PYTEST_CURRENT_TEST"].partition(" ")[0]
    for expected, (mean, half) in zip(theory, seen[0], strict=True):
        _kept.append(
            {"test": test, "theory": expected, "mean": mean, "half": half, "seeds": seeds, "customers": queue.n}
        )


queueing.assert_matches = _recording


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write what was measured."""
    if path := os.environ.get(FILE):
        Path(path).write_text(json.dumps(_kept, indent=1) + "\n", encoding="utf-8")
