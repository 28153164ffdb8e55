"""Everything here runs inside or against the real vLLM; without it, nothing here is collected."""

from __future__ import annotations

import os
import warnings
from importlib.util import find_spec
from pathlib import Path

import pytest

HERE = Path(__file__).parent

os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")


if find_spec("vllm") is None:
    collect_ignore_glob = ["test_*.py"]
else:
    collect_ignore_glob = []
    # Importing it while tests are collected would make its warnings errors.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import gpu_runner.oracle  # noqa: F401


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.oracle)
            # vLLM and its dependencies warn of their own affairs.
            item.add_marker(pytest.mark.filterwarnings("default"))
