"""The list of mutants fits the code as it is; ``python -m tests.mutation`` runs it."""

from __future__ import annotations

import json

import pytest

from tests.mutation.__main__ import RESULTS
from tests.mutation.catalogue import MUTANTS, TESTS, tests_for
from tests.mutation.mutant import GROUPS, ROOT, Mutant


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: f"{m.file}-{m.breaks}")
def test_a_mutant_changes_one_place_and_is_still_python(mutant: Mutant) -> None:
    assert mutant.source.count(mutant.old) == 1
    assert mutant.mutated != mutant.source
    compile(mutant.mutated, mutant.file, "exec")


def test_no_mutant_is_listed_twice() -> None:
    assert len({(m.file, m.mutated) for m in MUTANTS}) == len(MUTANTS)


def test_every_entry_of_the_design_s_list_has_mutants() -> None:
    assert {m.group for m in MUTANTS} - {""} == set(GROUPS)


def test_the_tests_that_should_notice_exist() -> None:
    for modules in TESTS.values():
        assert modules
        assert all((ROOT / "tests" / module).is_file() for module in modules)
    assert all(tests_for(mutant) for mutant in MUTANTS)


def test_every_mutant_was_killed_when_the_list_was_run_last() -> None:
    rows = json.loads(RESULTS.read_text(encoding="utf-8"))["mutants"]
    assert {(r["file"], r["old"], r["new"]) for r in rows} == {(m.file, m.old, m.new) for m in MUTANTS}
    assert {r["outcome"] for r in rows} == {"killed"}
