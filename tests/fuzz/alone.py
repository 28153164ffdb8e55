"""``python -m tests.fuzz.alone``: try each nasty input in a process of its own, in which nothing else is large.

A line of standard input names the input, and the line that answers it tells in JSON what came of it. The processes are
forked from this one, which has loaded the program and no more: a test process has so much in memory that copying its
page tables would take longer than most inputs.
"""

from __future__ import annotations

import gc
import json
import os
import resource
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import pandas  # noqa: F401  pyarrow would look for it in each process

from tests.fuzz.nasty import NASTY
from tests.fuzz.targets import outcome

SECONDS = 20
"""Processor time; the slowest takes about three."""


def forked(work: Callable[[], object]) -> int:
    """Do something in a process of its own, and return that one's wait status."""
    child = os.fork()
    if not child:
        try:
            work()
        finally:
            os._exit(0)
    return os.waitpid(child, 0)[1]


def made(name: str, path: Path) -> None:
    """Write an input."""
    data = NASTY[name][1]()
    path.write_bytes(data.encode() if isinstance(data, str) else data)


def measured(target: str, path: Path, report: Path) -> None:
    """Run a target, and write what came of it with its memory and processor time."""
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    begin = time.process_time()
    try:
        told = outcome(target, path.read_bytes(), path.parent)
    except BaseException:
        told = "TRACEBACK " + traceback.format_exc()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    report.write_text(json.dumps({"told": told, "bytes": peak, "seconds": time.process_time() - begin}))


def tried(name: str) -> dict[str, object]:
    """Make an input and run its target, each in a process of its own, so that the memory of one is not the other's."""
    with tempfile.TemporaryDirectory() as folder:
        path, report = Path(folder) / "input", Path(folder) / "report"
        forked(lambda: made(name, path))
        status = forked(lambda: measured(NASTY[name][0], path, report))
        if os.WIFSIGNALED(status):
            return {"told": f"killed by signal {os.WTERMSIG(status)}", "bytes": 0, "seconds": SECONDS, "killed": True}
        found: dict[str, object] = json.loads(report.read_text())
        return found


def main() -> None:
    """Answer until standard input ends."""
    gc.freeze()  # or a collection copies all that this process holds
    for line in sys.stdin:
        print(json.dumps(tried(line.rstrip("\n"))), flush=True)


if __name__ == "__main__":
    main()
