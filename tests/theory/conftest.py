"""Loads the tests' own policies, and leaves the registry as it was."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.engine.plugged import plugins_loaded


@pytest.fixture(autouse=True, scope="module")
def _plugins() -> Iterator[None]:
    with plugins_loaded():
        yield
