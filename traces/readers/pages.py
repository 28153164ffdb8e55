"""How much a Parquet file becomes when it is read, found out from its page headers, without unpacking anything."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

NESTED = 8
"""Page headers are no deeper than three; what goes on for longer is none."""


class Page(NamedTuple):
    """What a page's header promises."""

    unpacked: int
    """Bytes when it is unpacked."""
    values: int
    """Values that it holds, nulls included; those of a dictionary too."""


def pages(data: bytes | memoryview, start: int, length: int) -> Iterator[Page]:
    """Yield the pages of a column chunk.

    A file's footer says how large its columns are as well, but whoever wrote the file may have written anything there;
    what a page's own header says is what a reader goes by.

    Args:
        data: the file.
        start: where the chunk begins.
        length: its packed bytes.

    Raises:
        ValueError: if there is something else than pages.
    """
    end = min(start + length, len(data))
    if start < 0:
        raise ValueError("a column begins before the file")
    while start < end:
        header, start = _struct(data, start, end, 0)
        packed, unpacked = header.get(3), header.get(2)
        if type(packed) is not int or type(unpacked) is not int or packed < 0 or unpacked < 0:
            raise ValueError("a page header has no sizes")
        about = [part for field in (5, 7, 8) if isinstance(part := header.get(field), dict)]
        values = sum(v for part in about if type(v := part.get(1)) is int and v > 0)
        yield Page(unpacked, values)
        start += packed


def _struct(data: bytes | memoryview, at: int, end: int, depth: int) -> tuple[dict[int, Any], int]:
    """Return the fields by number of a structure in Thrift's compact protocol, and where it ends."""
    if depth > NESTED:
        raise ValueError("a page header is nested too deeply")
    fields: dict[int, Any] = {}
    number = 0
    while True:
        head, at = _byte(data, at, end)
        kind = head & 15
        if not kind:
            return fields, at
        if head >> 4:
            number += head >> 4
        else:
            number, at = _signed(data, at, end)
        fields[number], at = _value(data, at, end, kind, depth)


def _value(data: bytes | memoryview, at: int, end: int, kind: int, depth: int) -> tuple[Any, int]:
    if kind in (1, 2):
        return kind == 1, at
    if kind == 3:
        return _byte(data, at, end)
    if kind in (4, 5, 6):
        return _signed(data, at, end)
    if kind == 7:
        return None, at + 8
    if kind == 8:
        size, at = _varint(data, at, end)
        return None, at + size
    if kind in (9, 10):
        return _list(data, at, end, depth)
    if kind == 12:
        return _struct(data, at, end, depth + 1)
    raise ValueError("a page header is damaged")


def _list(data: bytes | memoryview, at: int, end: int, depth: int) -> tuple[None, int]:
    head, at = _byte(data, at, end)
    size, kind = head >> 4, head & 15
    if size == 15:
        size, at = _varint(data, at, end)
    for _ in range(size):
        if kind in (1, 2):
            at += 1
        else:
            _, at = _value(data, at, end, kind, depth + 1)
        if at > end:
            raise ValueError("a page header breaks off")
    return None, at


def _byte(data: bytes | memoryview, at: int, end: int) -> tuple[int, int]:
    if at >= end:
        raise ValueError("a page header breaks off")
    return data[at], at + 1


def _varint(data: bytes | memoryview, at: int, end: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte, at = _byte(data, at, end)
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7
        if shift > 63:
            raise ValueError("a page header has a number of more than 64 bits")


def _signed(data: bytes | memoryview, at: int, end: int) -> tuple[int, int]:
    value, at = _varint(data, at, end)
    return (value >> 1) ^ -(value & 1), at
