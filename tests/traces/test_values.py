"""Numbers and times against exact arithmetic, and the fast CSV path against the careful one."""

from datetime import datetime, timedelta
from decimal import ROUND_HALF_UP, Decimal

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from traces.readers.problems import Problems
from traces.readers.tabular import _read_careful, _read_clean
from traces.readers.values import INT64_MAX, NOT_WHOLE, date_times, decimals, show, whole_numbers

plain = st.from_regex(r"[+-]?[0-9]{1,18}(\.[0-9]{0,20})?", fullmatch=True)
scientific = st.from_regex(r"[+-]?[0-9]{1,3}(\.[0-9]{1,6})?[eE][+-]?[0-9]{1,2}", fullmatch=True).filter(
    lambda t: Decimal(t).adjusted() < 18
)
nonsense = st.sampled_from(
    ["", " ", ".", "-", "+", "abc", "1_000", "0x10", "1e", "NaN", "inf", "1e400", "12 3", "١٢", "--1"]
)


@settings(deadline=None, max_examples=100)
@given(texts=st.lists(plain | scientific, min_size=1, max_size=6), digits=st.sampled_from([6, 9]))
def test_decimals_are_exact(texts: list[str], digits: int) -> None:
    exact = [int((Decimal(t) * 10**digits).to_integral_value(ROUND_HALF_UP)) for t in texts]
    fits = [abs(v) < 2**63 for v in exact]
    for values in (pa.array(texts), texts, [Decimal(t) for t in texts]):
        read = decimals(values)
        assert read.valid.all()
        scaled = read.scaled(digits).tolist()
        assert [s for s, ok in zip(scaled, fits, strict=True) if ok] == [
            e for e, ok in zip(exact, fits, strict=True) if ok
        ]


@settings(deadline=None, max_examples=50)
@given(texts=st.lists(plain | nonsense, min_size=1, max_size=6))
def test_only_finite_numbers_are_decimals(texts: list[str]) -> None:
    def is_number(text: str) -> bool:
        try:
            return text.isascii() and "_" not in text and Decimal(text).is_finite() and Decimal(text) < 10**18
        except ArithmeticError:
            return False

    assert decimals(pa.array(texts)).valid.tolist() == [is_number(t) for t in texts]


@settings(deadline=None, max_examples=100)
@given(
    values=st.lists(
        st.integers(-(2**70), 2**70).map(str)
        | st.integers(-99, 99).map(lambda v: f" {v}.00 ")
        | st.integers(0, 99).map(lambda v: f"{v}.5")
        | nonsense,
        min_size=1,
        max_size=6,
    )
)
def test_whole_numbers_are_whole(values: list[str]) -> None:
    def naive(text: str) -> int:
        try:
            number = Decimal(text) if text.isascii() and "_" not in text else Decimal("NaN")
        except ArithmeticError:
            return NOT_WHOLE
        if not number.is_finite() or number != number.to_integral_value() or "e" in text.lower():
            return NOT_WHOLE
        return min(max(int(number), NOT_WHOLE), INT64_MAX)

    expected = [naive(v) for v in values]
    assert whole_numbers(pa.array(values)).tolist() == expected
    assert whole_numbers(values).tolist() == expected


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1, 2**63], [1, INT64_MAX]),
        ([True, 3.0, 2.5, float("nan")], [NOT_WHOLE, 3, NOT_WHOLE, NOT_WHOLE]),
        (
            [Decimal("7.0"), Decimal("7.5"), Decimal("1e30"), None, [1]],
            [NOT_WHOLE if x is None else x for x in (7, None, None, None, None)],
        ),
        (pa.array([1, None, 3]), [1, NOT_WHOLE, 3]),
        (pa.array([2**64 - 1], pa.uint64()), [INT64_MAX]),
        (pa.array([1.0, 1.5]), [1, NOT_WHOLE]),
    ],
)
def test_whole_numbers_of_other_types(values: object, expected: list[int]) -> None:
    assert whole_numbers(values).tolist() == expected


@settings(deadline=None, max_examples=100)
@given(
    st.lists(
        st.tuples(
            st.datetimes(datetime(1970, 1, 2), datetime(2110, 1, 1)),
            st.integers(0, 9),
            st.sampled_from([("", 0), ("Z", 0), ("+00:00", 0), ("+05:30", 19_800), ("-0800", -28_800)]),
            st.sampled_from([" ", "T"]),
        ),
        min_size=1,
        max_size=5,
    )
)
def test_dates_are_exact(stamps: list[tuple[datetime, int, tuple[str, int], str]]) -> None:
    texts, expected = [], []
    for stamp, digits, (zone, ahead), between in stamps:
        whole = stamp.replace(microsecond=0)
        # Nine digits, of which as many are written as the example says.
        fraction = f"{stamp.microsecond:06d}123"[:digits]
        texts.append(whole.strftime(f"%Y-%m-%d{between}%H:%M:%S") + (f".{fraction}" if fraction else "") + zone)
        seconds = (whole - datetime(1970, 1, 1)) // timedelta(seconds=1) - ahead
        expected.append(seconds * 10**9 + int(fraction.ljust(9, "0")))
    times, valid = date_times(pa.array(texts))
    assert valid.all()
    assert times.tolist() == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "abc",
        "2023-13-01 00:00:00",
        "2023-02-30 00:00:00",
        "2023-01-01 24:00:00",
        "2023-01-01",
        "18:17:03",
        "1066-10-14 09:00:00",
        "9999-01-01 00:00:00",
        "2023-1-1 00:00:00",
        "16/11/2023 18:17:03",
        "1700380023.5",
    ],
)
def test_what_is_no_date(text: str) -> None:
    good = "2023-11-16 18:17:03.9799600"
    times, valid = date_times(pa.array([good, text, good]))
    assert valid.tolist() == [True, False, True]
    assert times[0] == times[2] == 1_700_158_623_979_960_000


cells = st.text(alphabet="ab1 .-é", max_size=4)


@settings(deadline=None, max_examples=150)
@given(
    rows=st.lists(st.lists(cells, min_size=2, max_size=2), max_size=6),
    blanks=st.lists(st.integers(0, 6), max_size=3),
    newline=st.booleans(),
)
def test_both_ways_to_read_csv_agree(rows: list[list[str]], blanks: list[int], newline: bool) -> None:
    lines = [",".join(row) for row in rows]
    for at in blanks:
        lines.insert(at, "")
    body = "\n".join(lines) + "\n" * newline
    fast_problems, careful_problems = Problems("f"), Problems("f")
    fast = _read_clean(["x", "y"], body, 2, fast_problems)
    careful = _read_careful(["x", "y"], body, 2, careful_problems)
    if fast is None:
        assert not rows
        return
    assert fast.lines.tolist() == careful.lines.tolist()
    for column in ("x", "y"):
        assert fast.columns[column].to_pylist() == careful.columns[column].to_pylist()
    assert fast_problems.listed() == careful_problems.listed()


def test_values_are_shown_as_the_file_spells_them() -> None:
    shown = [
        show(v) for v in ("a\n", 1.5, Decimal("0.10"), float("nan"), float("-inf"), None, True, [1, {"a": 2}], "x" * 99)
    ]
    assert shown == [
        "'a\\n'",
        "1.5",
        "0.10",
        "NaN",
        "-infinity",
        "null",
        "true",
        '[1, {"a": 2}]',
        "'" + "x" * 36 + "...",
    ]
