"""Everything here runs inside or against the real vLLM; without it, it is skipped."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

import pytest

HERE = Path(__file__).parent

os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    missing = find_spec("vllm") is None
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.oracle)
            # vLLM and its dependencies warn of their own affairs.
            item.add_marker(pytest.mark.filterwarnings("default"))
            if missing:
                item.add_marker(pytest.mark.skip(reason="vLLM is not installed: make oracle"))
