"""The tests' own policies by name, for a while."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

from policies import load_plugin, registry


@contextmanager
def plugins_loaded() -> Iterator[None]:
    """Make the parts of ``plugins.py`` known to policy strings until the block ends."""
    known = {kind: registry.parts(kind) for kind in registry.KINDS}
    with patch.object(registry, "_parts", known):
        load_plugin(Path(__file__).with_name("plugins.py"))
        yield
