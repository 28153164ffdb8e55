"""Lint goes on after an error, in the order of the file."""

from pathlib import Path

import pytest

from traces.lint import lint_trace
from traces.schema import TraceError

HEADER = "arrived_at,num_prefill_tokens,num_decode_tokens\n"


def test_every_fault_of_every_row_is_found(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(HEADER + "5,1,1\n3,0,x\n1,2\n4,5,6\n-1,5,6\n")
    report = lint_trace(path)
    assert (report.path, report.format, report.rows, report.ok) == (str(path), "vidur", 4, False)
    assert [(p.line, p.column, p.severity) for p in report.problems] == [
        (3, "num_prefill_tokens", "error"),
        (3, "num_decode_tokens", "error"),
        (4, None, "error"),
        (5, "arrived_at", "warning"),
        (6, "arrived_at", "error"),
    ]


def test_faulty_json_lines_do_not_hide_each_other(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    good = '{"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [1, 2]}\n'
    path.write_text(good + "{\n" + good.replace("600", '"x"') + good + good.replace("[1, 2]", "[1]"))
    report = lint_trace(path, block_size=512)
    assert [(p.line, p.column) for p in report.problems if p.severity == "error"] == [(2, None), (3, "input_length")]
    assert [(p.line, p.column) for p in report.problems if p.severity == "warning"] == [(5, "hash_ids")]
    assert report.rows == 4


@pytest.mark.parametrize("column", [0, 1])
def test_a_thousand_problems_are_listed_and_the_rest_counted(tmp_path: Path, column: int) -> None:
    path = tmp_path / "t.csv"
    faulty = ["0,0,0\n", "0,x\n"][column]
    path.write_text(HEADER + "0,5,5\n" + faulty * 1_500)
    report = lint_trace(path)
    each = 2 if column == 0 else 1
    assert len(report.problems) == 1_001
    assert [p.line for p in report.problems[:1_000]] == [3 + i // each for i in range(1_000)]
    assert report.problems[-1].message == f"{1_500 * each - 1_000:,} more problems are not shown"
    assert report.problems[-1].severity == "error"
    assert report.problems[-1].line is None


def test_a_clean_file_has_no_problems(data: Path) -> None:
    report = lint_trace(data / "azure_2023.csv")
    assert (report.ok, report.problems, report.rows, report.format) == (True, [], 3, "azure")


def test_warnings_leave_a_file_usable(data: Path) -> None:
    report = lint_trace(data / "ragpulse.jsonl")
    assert report.ok
    assert [p.severity for p in report.problems] == ["warning"]


def test_a_file_that_is_not_there_is_a_problem_and_an_unknown_format_an_error(tmp_path: Path) -> None:
    report = lint_trace(tmp_path / "no.csv")
    assert (report.ok, report.format, report.rows) == (False, None, 0)
    assert [p.message for p in report.problems] == ["there is no such file"]
    with pytest.raises(TraceError, match="unknown trace format no"):
        lint_trace(tmp_path / "no.csv", fmt="no")
