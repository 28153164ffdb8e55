"""Parts that a test registers are gone after it."""

from __future__ import annotations

from collections.abc import Iterator
from unittest.mock import patch

import pytest

from policies import registry


@pytest.fixture(autouse=True)
def _own_registry() -> Iterator[None]:
    known = {kind: registry.parts(kind) for kind in registry.KINDS}
    with patch.object(registry, "_parts", known):
        yield
