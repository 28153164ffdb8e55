"""Numbers and times against exact arithmetic, and the fast CSV path against the careful one."""

import random
from datetime import datetime, timedelta
from decimal import ROUND_HALF_UP, Decimal

import pyarrow as pa
import pytest

from tests.seeded import Maker, built, cases, either, pick, whole
from traces.readers.problems import Problems
from traces.readers.tabular import _read_careful, _read_clean
from traces.readers.values import INT64_MAX, NOT_WHOLE, date_times, decimals, show, whole_numbers


def digits_of(rng: random.Random, low: int, high: int) -> str:
    """Make from ``low`` to ``high`` digits, at times the same throughout."""
    return "".join(rng.choices(rng.choice(("0123456789", "0123456789", "0", "9", "05")), k=rng.randint(low, high)))


def plain(rng: random.Random) -> str:
    fraction = "." + digits_of(rng, 0, 20) if rng.randrange(2) else ""
    return rng.choice(("", "+", "-")) + digits_of(rng, 1, 18) + fraction


def scientific(rng: random.Random) -> str:
    fraction = "." + digits_of(rng, 1, 6) if rng.randrange(2) else ""
    number = rng.choice(("", "+", "-")) + digits_of(rng, 1, 3) + fraction
    if rng.randrange(4) == 0:  # one of the largest
        return f"{number}e{17 - Decimal(number).adjusted()}"
    exponent = rng.choice("eE") + rng.choice(("", "+", "-")) + digits_of(rng, 1, 2)
    return number + exponent if Decimal(number + exponent).adjusted() < 18 else number + "e-" + exponent[-1]


nonsense = pick("", " ", ".", "-", "+", "abc", "1_000", "0x10", "1e", "NaN", "inf", "1e400", "12 3", "١٢", "--1")


def several(maker: Maker, low: int = 1, high: int = 6) -> Maker:
    """Make a list."""
    return lambda rng: [maker(rng) for _ in range(rng.randint(low, high))]


@cases(100, several(either(plain, scientific)), pick(6, 9))
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


@cases(50, several(either(plain, nonsense)))
def test_only_finite_numbers_are_decimals(texts: list[str]) -> None:
    def is_number(text: str) -> bool:
        try:
            return text.isascii() and "_" not in text and Decimal(text).is_finite() and Decimal(text) < 10**18
        except ArithmeticError:
            return False

    assert decimals(pa.array(texts)).valid.tolist() == [is_number(t) for t in texts]


wholes = either(
    built(str, whole(-(2**70), 2**70)),
    built(lambda power, more: str(power + more), pick(0, 2**62, 2**63, -(2**63), 2**64), whole(-2, 2)),
    built(" {}.00 ".format, whole(-99, 99)),
    built("{}.5".format, whole(0, 99)),
    nonsense,
)


@cases(100, several(wholes))
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


FIRST, LAST = datetime(1970, 1, 2), datetime(2110, 1, 1)


def stamp(rng: random.Random) -> tuple[datetime, int, tuple[str, int], str]:
    """Make a time, the digits of its fraction, its zone, and what stands before the time of day."""
    at = FIRST + rng.random() * (LAST - FIRST)
    if rng.randrange(4) == 0:  # about the ends of months and years, in leap years and others
        at = datetime(rng.choice((1972, 2000, 2100)), rng.choice((2, 12)), 28) + rng.random() * timedelta(days=4)
    if rng.randrange(4) == 0:
        at = at.replace(**dict.fromkeys(("hour", "minute", "second"), 0)) - timedelta(seconds=rng.randrange(2))
    return (
        at.replace(microsecond=rng.choice((0, 999_999, at.microsecond))),
        rng.randint(0, 9),
        rng.choice((("", 0), ("Z", 0), ("+00:00", 0), ("+05:30", 19_800), ("-0800", -28_800))),
        rng.choice(" T"),
    )


@cases(100, several(stamp, high=5))
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


def cell(rng: random.Random) -> str:
    return "".join(rng.choices("ab1 .-é", k=rng.randint(0, 4)))


@cases(150, several(several(cell, 2, 2), 0), several(whole(0, 6), 0, 3), pick(False, True))
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
