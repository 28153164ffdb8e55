"""The list of mutants fits the code as it is; ``python -m tests.mutation`` runs it."""

from __future__ import annotations

import pytest

from tests.mutation.catalogue import MUTANTS, TESTS, modules_for
from tests.mutation.mutant import GROUPS, ROOT
from tests.mutation.results import RESULTS, read


@pytest.mark.parametrize("file", sorted({m.file for m in MUTANTS}))
def test_a_mutant_changes_one_place_and_is_still_python(file: str) -> None:
    for mutant in (m for m in MUTANTS if m.file == file):
        assert mutant.source.count(mutant.old) == 1, mutant
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
    assert all(modules_for(mutant) for mutant in MUTANTS)


def test_no_mutant_survived_when_it_was_run_last() -> None:
    rows = read(RESULTS)
    assert rows
    assert [m for m, row in rows.items() if row["outcome"] != "killed"] == []
