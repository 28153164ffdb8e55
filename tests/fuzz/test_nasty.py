"""A megabyte of anything is taken or refused with one sentence, within seconds and half a gigabyte."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fuzz.nasty import NASTY

ROOT = Path(__file__).parents[2]

BYTES = 1 << 29


@pytest.fixture(scope="module")
def alone() -> Iterator[subprocess.Popen[str]]:
    """What tries inputs in small processes."""
    command = [sys.executable, "-m", "tests.fuzz.alone"]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process


@pytest.mark.parametrize("name", NASTY)
def test_a_megabyte_takes_little_time_and_memory(name: str, alone: subprocess.Popen[str]) -> None:
    assert alone.stdin is not None
    assert alone.stdout is not None
    alone.stdin.write(f"{name}\n")
    alone.stdin.flush()
    found = json.loads(alone.stdout.readline())
    told = found["told"]
    assert "killed" not in found, f"{name}: {told}"
    assert not told.startswith("TRACEBACK"), told[-500:]
    assert "\n" not in told
    assert found["bytes"] < BYTES
