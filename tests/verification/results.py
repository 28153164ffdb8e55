"""Runs the tests of the plan and reads what came of each."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree

from tests.mutation.mutant import ROOT
from tests.verification.checks import GROUPS, Check
from tests.verification.recorder import FILE

ORACLE = "oracle/"
"""Tests below need the real vLLM, and are not even collected without it."""


class Result(NamedTuple):
    """What became of a test function over all its parameters."""

    passed: int
    failed: int
    skipped: int

    @property
    def word(self) -> str:
        """``passed``, ``FAILED`` or ``not run``."""
        return "FAILED" if self.failed else "passed" if self.passed else "not run"


def checks() -> list[Check]:
    """Return all checks."""
    return [check for group in GROUPS.values() for check in group]


def run(pytest_arguments: Iterable[str] = ()) -> tuple[dict[str, Result], list[dict[str, Any]]]:
    """Run every test that a check names.

    Returns:
        Results by node id below ``tests/``, and the measurements that were compared with theory.
    """
    here = [test for check in checks() for test in check.tests if not test.startswith(ORACLE) or find_spec("vllm")]
    tests = [f"tests/{test}" for test in dict.fromkeys(here)]
    with tempfile.TemporaryDirectory() as folder:
        report, measured = Path(folder) / "junit.xml", Path(folder) / "theory.json"
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", "-p", "tests.verification.recorder"]
        command += ["-p", "no:cacheprovider", f"--junitxml={report}", "-o", "junit_family=xunit1"]
        environment = {**os.environ, "PYTHONPATH": str(ROOT), FILE: str(measured)}
        subprocess.run([*command, *pytest_arguments, *tests], cwd=ROOT, env=environment, check=False)
        return read_junit(report), json.loads(measured.read_text(encoding="utf-8"))


def read_junit(report: Path) -> dict[str, Result]:
    """Return the results of pytest's XML by node id below ``tests/``, without parameters."""
    found: dict[str, Result] = {}
    for case in ElementTree.parse(report).iter("testcase"):
        name = f"{case.get('classname', '').replace('.', '/')}.py::{case.get('name', '').partition('[')[0]}"
        name = name.removeprefix("tests/")
        bad = case.find("failure") is not None or case.find("error") is not None
        skipped = case.find("skipped") is not None
        old = found.get(name, Result(0, 0, 0))
        found[name] = Result(
            old.passed + (not bad and not skipped),
            old.failed + bad,
            old.skipped + skipped,
        )
    return found


def of(check: Check, results: dict[str, Result]) -> Result:
    """Add up a check's tests."""
    parts = [results.get(test, Result(0, 0, 1)) for test in check.tests]
    return Result(*(sum(column) for column in zip(*parts, strict=True)))  # type: ignore[arg-type]
