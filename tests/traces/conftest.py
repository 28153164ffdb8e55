import os
from collections.abc import Callable
from pathlib import Path

import pytest

from traces.io import read_trace
from traces.schema import Trace

ROOT = Path(__file__).parents[2]


@pytest.fixture
def data() -> Path:
    """The folder of hand-typed traces, one per format."""
    return ROOT / "tests" / "data"


@pytest.fixture(scope="session")
def public_path() -> Callable[[str], Path]:
    """Give the path of a public trace, or skip."""

    def path(name: str) -> Path:
        folder = Path(os.environ.get("PREFILLSIM_TRACES", ROOT.parent / "shared" / "traces"))
        if not (folder / name).is_file():
            pytest.skip(f"the public trace {name} is neither in $PREFILLSIM_TRACES nor in ../shared/traces")
        return folder / name

    return path


@pytest.fixture(scope="session")
def public_trace(public_path: Callable[[str], Path]) -> Callable[[str], Trace]:
    """Read a public trace once, or skip."""
    cache: dict[str, Trace] = {}

    def read(name: str) -> Trace:
        if name not in cache:
            cache[name] = read_trace(public_path(name))
        return cache[name]

    return read
