"""A megabyte of anything is taken or refused with one sentence, within seconds and a gigabyte."""

from __future__ import annotations

import gc
import json
import os
import resource
import tempfile
import time
import traceback
from pathlib import Path

import pytest

from tests.fuzz.nasty import NASTY
from tests.fuzz.targets import outcome

SECONDS = 20
"""Processor time; the slowest takes about three."""

BYTES = 1 << 30


def measured(target: str, data: bytes, folder: Path) -> dict[str, object]:
    """Run a target in a process of its own, and return what came of it with its memory and processor time."""
    report = folder / "report"
    child = os.fork()
    if not child:
        gc.freeze()  # or a collection copies all that the test process holds
        try:
            resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
            begin = time.process_time()
            try:
                told = outcome(target, data, folder)
            except BaseException:
                told = "TRACEBACK " + traceback.format_exc()
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
            report.write_text(json.dumps({"told": told, "bytes": peak, "seconds": time.process_time() - begin}))
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return {"told": f"killed by signal {os.WTERMSIG(status)}", "bytes": 0, "seconds": SECONDS, "killed": True}
    found: dict[str, object] = json.loads(report.read_text())
    return found


def made(name: str, path: Path) -> None:
    """Write an input in a process of its own, so that the memory it took is not this one's."""
    child = os.fork()
    if not child:
        gc.freeze()  # or a collection copies all that the test process holds
        try:
            data = NASTY[name][1]()
            path.write_bytes(data.encode() if isinstance(data, str) else data)
        finally:
            os._exit(0)
    os.waitpid(child, 0)


@pytest.mark.parametrize("name", NASTY)
def test_a_megabyte_takes_little_time_and_memory(name: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "input"
        made(name, path)
        found = measured(NASTY[name][0], path.read_bytes(), Path(folder))
    told = str(found["told"])
    assert "killed" not in found, f"{name}: {told}"
    assert not told.startswith("TRACEBACK"), told[-500:]
    assert "\n" not in told
    assert int(str(found["bytes"])) < BYTES
