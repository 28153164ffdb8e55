"""Parts that a test registers are gone after it, and what benchmarks measure is shown as one table at the end."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from unittest.mock import patch

import pytest

from policies import registry


def pytest_collection() -> None:
    gc.disable()


def pytest_collection_finish() -> None:
    """Look for garbage only among what tests make: modules and libraries stay, and are many."""
    gc.freeze()
    gc.enable()


@pytest.fixture(autouse=True)
def _own_registry() -> Iterator[None]:
    known = {kind: registry.parts(kind) for kind in registry.KINDS}
    with patch.object(registry, "_parts", known):
        yield


MEASURED = pytest.StashKey[list[tuple[str, str, str]]]()


@pytest.fixture
def bench(request: pytest.FixtureRequest) -> Callable[[str, str, str], None]:
    """Enter a line into the table of benchmarks: what, measured how much, and what is asked for."""
    rows = request.config.stash.setdefault(MEASURED, [])

    def enter(what: str, measured: str, asked: str = "") -> None:
        rows.append((what, measured, asked))

    return enter


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    rows = config.stash.get(MEASURED, [])
    if not rows:
        return
    terminalreporter.section("measured in this run")
    table = [("", "measured", "asked"), *rows]
    widths = [max(len(row[column]) for row in table) for column in range(3)]
    for row in table:
        cells = [f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)]
        terminalreporter.write_line("  ".join(cells).rstrip())
