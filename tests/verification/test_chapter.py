"""The chapter names all that the plan asks for, and tests that exist."""

from __future__ import annotations

import ast

import pytest

from tests.mutation.mutant import GROUPS as DESIGNED
from tests.mutation.mutant import ROOT
from tests.verification.chapter import CHAPTER
from tests.verification.checks import GROUPS, Check
from tests.verification.results import ORACLE, checks

ASKED = [*(f"T{k}" for k in range(1, 13)), *(f"P{k}" for k in range(1, 7)), *(f"D{k}" for k in range(1, 6))]


def test_every_entry_of_the_plan_is_checked() -> None:
    names = [check.name for check in checks()]
    assert set(ASKED) <= set(names)
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("check", checks(), ids=lambda c: c.name)
def test_a_check_names_tests_that_exist(check: Check) -> None:
    assert check.tests
    for test in check.tests:
        file, _, name = test.partition("::")
        tree = ast.parse((ROOT / "tests" / file).read_text(encoding="utf-8"))
        assert name in {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}, test


def test_the_chapter_has_every_check_and_every_group_of_mutants() -> None:
    rows = [line for line in CHAPTER.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    for title, group in GROUPS.items():
        assert f"## {title}\n" in CHAPTER.read_text(encoding="utf-8")
        for check in group:
            own = [row for row in rows if row.startswith(f"| {check.name} | {check.holds} |")]
            assert len(own) == 1, check.name
            assert all(f"`{test}`" in own[0] for test in check.tests)
            only_vllm = all(test.startswith(ORACLE) for test in check.tests)
            assert "| passed |" in own[0] or (only_vllm and "| not run |" in own[0]), own[0]
    for group_name in DESIGNED:
        assert any(row.startswith(f"| {group_name} |") for row in rows)


def test_what_was_compared_with_theory_agrees() -> None:
    """The table of measurements has several lines for each of T1 to T6, all within their intervals."""
    table = CHAPTER.read_text(encoding="utf-8").partition("| | theory | simulated |")[2].partition("\n\n")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]
    assert {name for row in rows for name in row[0].split(", ")} >= {f"T{k}" for k in range(1, 7)}
    for row in rows:
        assert abs(float(row[1]) - float(row[2])) <= float(row[3]) * 1.05 + 1e-4 * abs(float(row[1])), row
