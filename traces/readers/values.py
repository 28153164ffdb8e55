"""Numbers and times as files spell them, turned into exact integers: whole columns at a time where they are clean.

A raw column is an Arrow array (CSV: strings; Parquet: any type) or a list of JSON values, in which :data:`MISSING`
stands for a key that a row does not have.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from traces.schema import LATEST_NS, IntArray

BoolArray = NDArray[np.bool_]
Values = Any
"""A ``pa.Array`` or a ``list``."""

NOT_WHOLE = -(2**63)
"""Stands for a value that is no whole number."""
INT64_MAX = 2**63 - 1
WHOLE = re.compile(r"\s*[+-]?[0-9]{1,400}(\.0*)?\s*")
FRACTION_DIGITS = 12
"""Digits after the decimal point that are kept while the unit is open."""


class Missing:
    """The type of :data:`MISSING`."""


MISSING = Missing()


def as_list(values: Values) -> list[Any]:
    """Return a raw column as Python objects."""
    return values if isinstance(values, list) else list(values.to_pylist())


def show(value: Any) -> str:
    """Return a value as the file spells it, shortened."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "infinity" if value > 0 else "-infinity"
    if isinstance(value, Decimal):
        return str(value)
    text = repr(value) if isinstance(value, str) else json.dumps(value, default=str)
    return text if len(text) <= 40 else text[:37] + "..."


def listed(names: Iterable[str]) -> str:
    """Return column names as a list to print, shortened."""
    shown = [name if name.isprintable() else repr(name) for name in names]
    text = ", ".join(name if len(name) <= 40 else name[:37] + "..." for name in shown[:12])
    return f"{text} and {len(shown) - 12} more" if len(shown) > 12 else text


def absent(value: Any) -> str | None:
    """Say how there is no value, or return ``None`` where there is one."""
    if value is MISSING:
        return "the key is missing"
    if value is None or (isinstance(value, str) and not value.strip()):
        return "the value is missing"
    return None


def whole_numbers(values: Values) -> IntArray:
    """Return a raw column as int64, with ``NOT_WHOLE`` where there is no whole number.

    Numbers beyond 64 bits become the nearest that has 64. Text may have a sign, surrounding blanks and a fraction of
    zeros; floats must be whole.
    """
    if isinstance(values, list):
        if set(map(type, values)) == {int}:
            try:
                return np.array(values, dtype=np.int64)
            except OverflowError:
                pass
    elif not values.null_count and (
        pa.types.is_signed_integer(values.type)
        or (pa.types.is_string(values.type) and pc.all(pc.match_substring_regex(values, "^-?[0-9]{1,18}$")).as_py())
    ):
        return _numpy(pc.cast(values, pa.int64()))
    parsed = map(_whole, as_list(values))
    return np.array([NOT_WHOLE if v is None else min(max(v, NOT_WHOLE), INT64_MAX) for v in parsed], dtype=np.int64)


def _whole(value: Any) -> int | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    if isinstance(value, float):
        return int(value) if value.is_integer() else None
    if isinstance(value, Decimal):
        return int(value) if value.is_finite() and value.adjusted() < 20 and value == value.to_integral() else None
    if isinstance(value, str) and WHOLE.fullmatch(value):
        return int(value.partition(".")[0])
    return None


def _numpy(values: pa.Array) -> IntArray:
    array: IntArray = values.to_numpy(zero_copy_only=False)
    return array


@dataclass(frozen=True)
class Decimals:
    """Decimal numbers split at the point; a fraction has :data:`FRACTION_DIGITS` digits and the sign of the number."""

    whole: IntArray
    fraction: IntArray
    valid: BoolArray
    """Where there is a finite number of at most 18 digits before the point."""

    def scaled(self, digits: int) -> IntArray:
        """Return the numbers times ``10 ** digits``, rounded, halves away from zero; no check for overflow."""
        unit = 10 ** (FRACTION_DIGITS - digits)
        part = (np.abs(self.fraction) + unit // 2) // unit * np.sign(self.fraction)
        scaled: IntArray = self.whole * 10**digits + part
        return scaled


def decimals(values: Values) -> Decimals:
    """Read a raw column of numbers exactly as they are written, not through binary fractions."""
    if isinstance(values, list):
        if set(map(type, values)) == {int}:
            try:
                whole = np.array(values, dtype=np.int64)
                return Decimals(whole, np.zeros_like(whole), np.abs(whole) < 10**18)
            except OverflowError:
                pass
        text = pa.array([_spelling(v) for v in values], type=pa.string())
    elif pa.types.is_string(values.type):
        text = pc.fill_null(values, "")
    else:
        text = pa.array([_spelling(v) for v in values.to_pylist()], type=pa.string())
    parts = pc.extract_regex(
        pc.utf8_trim_whitespace(text), r"^(?P<sign>[+-]?)(?P<whole>[0-9]{0,18})(?P<point>\.?)(?P<fraction>[0-9]*)$"
    )
    sign, digits, fraction = (pc.struct_field(parts, name) for name in ("sign", "whole", "fraction"))
    plain = pc.fill_null(pc.or_(pc.greater(pc.utf8_length(digits), 0), pc.greater(pc.utf8_length(fraction), 0)), False)
    digits = pc.if_else(plain, pc.utf8_lpad(pc.fill_null(digits, ""), 1, "0"), "0")
    fraction = pc.utf8_rpad(pc.fill_null(fraction, ""), FRACTION_DIGITS, "0")
    fraction = pc.if_else(plain, pc.utf8_slice_codeunits(fraction, 0, FRACTION_DIGITS), "0")
    negative = np.where(_numpy(pc.fill_null(pc.equal(sign, "-"), False)), -1, 1)
    result = Decimals(
        _numpy(pc.cast(digits, pa.int64())) * negative,
        _numpy(pc.cast(fraction, pa.int64())) * negative,
        _numpy(plain).astype(bool),
    )
    for i in np.flatnonzero(~result.valid).tolist():
        _read_scientific(text[i].as_py(), i, result)
    return result


def _spelling(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal | str):
        return ""
    return repr(value) if isinstance(value, float) else str(value)


def _read_scientific(text: str, i: int, into: Decimals) -> None:
    """Read what has an exponent, such as ``1e-07``; leave anything else invalid."""
    try:
        number = Decimal(text.strip())
    except InvalidOperation:
        return
    if not number.is_finite() or not text.isascii() or "_" in text or number.adjusted() >= 18:
        return
    if number.adjusted() < -FRACTION_DIGITS - 1:
        number = Decimal(0)
    into.whole[i] = int(number)
    into.fraction[i] = int((number - int(number)).scaleb(FRACTION_DIGITS))
    into.valid[i] = True


DATE_TIME = (
    r"^(?P<date>[0-9]{4}-[0-9]{2}-[0-9]{2})[ T](?P<time>[0-9]{2}:[0-9]{2}:[0-9]{2})"
    r"(?:\.(?P<fraction>[0-9]+))?(?P<zone>Z|[+-][0-9]{2}:?[0-9]{2})?$"
)


def date_times(values: Values) -> tuple[IntArray, BoolArray]:
    """Read ``2023-11-16 18:17:03.9799600`` with an optional ``Z`` or ``+00:00``, without one as UTC.

    Returns:
        Nanoseconds since 1970, exact for up to nine digits of a second, and where there is a time from 1970 to 2115.
    """
    text = pa.array(
        [v if isinstance(v, str) else "" for v in values] if isinstance(values, list) else values, type=pa.string()
    )
    parts = pc.extract_regex(pc.utf8_trim_whitespace(text), DATE_TIME)
    valid = _numpy(pc.is_valid(parts)).astype(bool)
    date, time, fraction, zone = (pc.struct_field(parts, n) for n in ("date", "time", "fraction", "zone"))
    stamps = pc.fill_null(pc.binary_join_element_wise(date, time, "T"), "1970-01-01T00:00:00").to_pylist()
    try:
        seconds = np.array(stamps, dtype="datetime64[s]").astype(np.int64)
    except ValueError:
        seconds = np.array([_seconds(s) for s in stamps], dtype=np.int64)
    seconds -= _offsets(zone)
    valid &= (seconds >= 0) & (seconds < LATEST_NS // 10**9)
    seconds[~valid] = 0
    fraction = pc.utf8_slice_codeunits(pc.utf8_rpad(pc.fill_null(fraction, ""), 9, "0"), 0, 9)
    return seconds * 10**9 + _numpy(pc.cast(fraction, pa.int64())), valid


def _seconds(stamp: str) -> int:
    try:
        return int(np.datetime64(stamp, "s").astype(np.int64))
    except ValueError:
        return LATEST_NS


def _offsets(zone: pa.Array) -> IntArray:
    """Return what each time zone is ahead of UTC, in seconds."""
    coded = pc.dictionary_encode(pc.fill_null(zone, ""))
    ahead = []
    for name in coded.dictionary.to_pylist():
        digits = name[1:].replace(":", "")
        sign = -1 if name.startswith("-") else 1
        ahead.append(sign * (int(digits[:2]) * 3600 + int(digits[2:]) * 60) if digits else 0)
    return np.array(ahead, dtype=np.int64)[_numpy(coded.indices)] if ahead else np.zeros(len(zone), dtype=np.int64)
