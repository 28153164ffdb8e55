"""What is repaired, assumed or skipped with a warning, and what needs none."""

from pathlib import Path

from tests.traces.bad_cases import BURST, MOON, VIDUR, moon
from traces.io import read_trace
from traces.lint import lint_trace


def test_unsorted_rows_are_sorted_with_a_warning(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(VIDUR + "3,1,1\n1,2,1\n2,3,1\n0,4,1\n")
    trace = read_trace(path)
    assert trace.prompt_tokens.tolist() == [4, 2, 3, 1]
    assert trace.arrival_ns.tolist() == [0, 10**9, 2 * 10**9, 3 * 10**9]
    assert trace.warnings == (
        f"{path}, line 3, column arrived_at: 2 requests arrive before the one above; "
        "the trace is sorted by arrival, ties in file order",
    )
    assert lint_trace(path).ok


def test_epoch_milliseconds_among_seconds_are_recognised_and_rebased(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(BURST + "1700000000123,5,5\n1700000001500.25,5,5\n")
    trace = read_trace(path)
    assert trace.arrival_ns.tolist() == [0, 1_377_250_000]
    assert trace.warnings == (
        f"{path}, line 2, column Timestamp: times are taken as milliseconds since 1970, not as seconds",
    )


def test_time_zero_and_epoch_seconds_need_no_warning(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    for times, expected in (("0", "0.5"), [0, 5 * 10**8]), (("1700000000.1", "1700000000.100000001"), [0, 1]):
        path.write_text(BURST + "".join(f"{t},5,5\n" for t in times))
        trace = read_trace(path)
        assert trace.arrival_ns.tolist() == expected
        assert trace.warnings == ()


def test_blank_lines_in_the_middle_are_skipped_with_a_warning(tmp_path: Path) -> None:
    path = tmp_path / "t"
    for text in (VIDUR + "0,5,5\n\n \n1,abc,5\n", MOON + "\n \n" + moon(input_length="abc")):
        path.write_text(text)
        report = lint_trace(path, block_size=512)
        assert [p.message for p in report.problems if p.severity == "warning"] == ["2 blank lines are skipped"]
        lines = [p.line for p in report.problems if p.severity == "error"]
        assert lines == [5 if text.startswith("arrived_at") else 4]


def test_columns_that_are_not_read_are_named(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("arrived_at,num_prefill_tokens,num_decode_tokens,colour\n0,5,5,red\n")
    assert read_trace(path).warnings == (
        f"{path}, line 1: colour is a column that format vidur does not have; not read",
    )


def test_a_seam_of_two_recordings_is_pointed_out(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    week = [f"{i},5,5\n" for i in range(100)]
    path.write_text(VIDUR + "".join(week + week))
    seam = "on line 102 times fall by 99 s, as where two recordings were joined: sorting lays one over the other"
    assert read_trace(path).warnings[0].endswith(f"sorted by arrival, ties in file order; {seam}")
    path.write_text(VIDUR + "".join(week[1:] + week))
    assert read_trace(path).warnings[0].endswith("ties in file order")
