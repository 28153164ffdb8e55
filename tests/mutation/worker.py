"""A process that runs tests on request, in children of its own: what they all import is imported once.

It is started in a copy of the tree and reads one line of JSON per request, the arguments of pytest; it answers with one
line, pytest's exit status and the end of what it printed.
"""

from __future__ import annotations

import importlib
import json
import os
import resource
import sys
import tempfile
import traceback

HEAVY = ("hypothesis", "numpy", "pandas", "pyarrow.parquet", "pydantic.dataclasses", "pytest", "scipy.stats", "simpy")
"""Packages that are not ours; our own are imported by each child, for one of them has a mistake."""

MEMORY = 8 << 30
"""Bytes of address space; a mutant may ask for more and more."""

SECONDS = 300
"""Processor time, several times what the slowest modules take: whoever needs more is in an endless loop."""


def run(arguments: list[str]) -> tuple[int, str]:
    """Run pytest in a child."""
    with tempfile.TemporaryFile("w+b") as log:
        child = os.fork()
        if not child:
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
            resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
            resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS + 10))
            import pytest

            status = 3
            try:
                status = int(pytest.main(arguments))
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(status)
        _, ended = os.waitpid(child, 0)
        log.seek(0)
        return os.waitstatus_to_exitcode(ended), log.read().decode(errors="replace")[-4000:]


def main() -> None:
    """Serve until the input ends."""
    for name in HEAVY:
        importlib.import_module(name)
    answers = os.fdopen(os.dup(1), "w")
    for line in sys.stdin:
        status, output = run(json.loads(line))
        print(json.dumps([status, output]), file=answers, flush=True)


if __name__ == "__main__":
    main()
