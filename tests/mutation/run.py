"""Runs the tests against one mutant at a time, each in a copy of the tree."""

from __future__ import annotations

import json
import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.mutation.catalogue import modules_for
from tests.mutation.mutant import ROOT, Mutant

PARTS = ("traces", "costmodels", "policies", "sim", "gpu_runner", "experiments", "tests", "examples", "pyproject.toml")

KILLED, SURVIVED, BROKEN = "killed", "survived", "broken"

FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)


class Verdict(NamedTuple):
    """What became of a mutant."""

    mutant: Mutant
    outcome: str
    """``killed``; ``survived``; or ``broken`` where the tests could not be run at all."""
    by: str
    """The test that noticed it."""
    seconds: float
    output: str
    """The end of what pytest printed."""


class Bench:
    """A copy of the tree, and a process that runs tests in it."""

    def __init__(self, copy: Path) -> None:
        self.copy = copy
        copy.mkdir()
        for part in PARTS:
            if (ROOT / part).is_dir():
                shutil.copytree(ROOT / part, copy / part, ignore=shutil.ignore_patterns(".*"))
            else:
                shutil.copy2(ROOT / part, copy / part)
        self._worker = subprocess.Popen(
            [sys.executable, "-m", "tests.mutation.worker"],
            cwd=copy,
            env={**os.environ, "PYTHONPATH": str(copy), "OMP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, modules: Sequence[str]) -> tuple[int, str]:
        """Run test modules up to the first failure; return pytest's exit status and output."""
        arguments = [
            "-x",
            "-q",
            "--assert=plain",
            "--no-header",
            "--tb=no",
            "--timeout=0",
            "-p",
            "no:cacheprovider",
        ]
        arguments += ["-p", "no:xdist", "-p", "tests.mutation.quick", *modules]
        assert self._worker.stdin is not None
        assert self._worker.stdout is not None
        print(json.dumps(arguments), file=self._worker.stdin, flush=True)
        status, output = json.loads(self._worker.stdout.readline())
        return status, output

    def close(self) -> None:
        """End the process."""
        assert self._worker.stdin is not None
        self._worker.stdin.close()
        self._worker.wait()


@contextmanager
def benches(n: int) -> Iterator[list[Bench]]:
    """Give ``n`` benches, which are gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder, ExitStack() as stack:
        made = []
        for k in range(n):
            made.append(Bench(Path(folder) / str(k)))
            stack.callback(made[-1].close)
        yield made


def try_mutant(mutant: Mutant, bench: Bench, serial: int) -> Verdict:
    """Put the mistake into the copy, run the tests that should notice it, and take it out again."""
    path = bench.copy / mutant.file
    before = path.stat()
    begin = time.perf_counter()
    path.write_text(mutant.mutated, encoding="utf-8")
    # Compiled files are told apart by size and second of change, so each mutant gets a second of its own.
    stamp = before.st_mtime_ns + (serial + 1) * 10**9
    os.utime(path, ns=(stamp, stamp))
    try:
        status, output = bench.run(modules_for(mutant))
    finally:
        path.write_text(mutant.source, encoding="utf-8")
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    by = FAILED.findall(output)
    if status == -signal.SIGXCPU:
        by = ["the limit of processor time"]
    outcome = {0: SURVIVED, 1: KILLED}.get(status, KILLED if by else BROKEN)
    return Verdict(mutant, outcome, by[0] if by else "", time.perf_counter() - begin, output[-2000:])


def check_baseline(bench: Bench, mutants: Sequence[Mutant]) -> None:
    """Fail unless all tests pass without a mistake.

    Raises:
        RuntimeError: with what pytest said.
    """
    modules = list(dict.fromkeys(module for mutant in mutants for module in modules_for(mutant)))
    status, output = bench.run(modules)
    if status:
        raise RuntimeError(f"the tests fail without any mistake:\n{output[-4000:]}")


def run(mutants: Sequence[Mutant], jobs: int, baseline: bool = True) -> Iterator[Verdict]:
    """Try each mutant, and yield verdicts as they come; first, unless told otherwise, run the tests without any.

    Raises:
        RuntimeError: if the tests fail without any mistake.
    """
    with benches(jobs) as made:
        if baseline:
            check_baseline(made[0], mutants)
        free: queue.SimpleQueue[Bench] = queue.SimpleQueue()
        for bench in made:
            free.put(bench)

        def attempt(serial: int) -> Verdict:
            bench = free.get()
            try:
                return try_mutant(mutants[serial], bench, serial)
            finally:
                free.put(bench)

        with ThreadPoolExecutor(jobs) as pool:
            for future in as_completed([pool.submit(attempt, k) for k in range(len(mutants))]):
                yield future.result()
