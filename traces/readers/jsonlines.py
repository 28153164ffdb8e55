"""JSON-lines files as tables of raw values."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import numpy as np

from traces.readers.problems import Problems
from traces.readers.table import MOST_COLUMNS, Table
from traces.readers.tabular import warn_blank
from traces.readers.values import MISSING


def read_json_lines(text: str, problems: Problems) -> Table:
    """Read one JSON object per line, fractions as decimals; blank lines are skipped.

    Raises:
        Unreadable: if the text is one JSON array, or one object that is not a request.
    """
    lines = text.split("\n")
    numbers = [i for i, line in enumerate(lines, 1) if line and not line.isspace()]
    _refuse_document(text, lines, numbers, problems)
    decode = json.JSONDecoder(parse_float=Decimal).decode
    objects: list[dict[str, Any]] = []
    at: list[int] = []
    for number in numbers:
        line = lines[number - 1]
        try:
            value = decode(line)
        except (ValueError, RecursionError, ArithmeticError) as e:
            problems.error(number, None, _explain(e, line, number == numbers[-1]))
            continue
        if type(value) is dict:
            objects.append(value)
            at.append(number)
        else:
            problems.error(number, None, f"the line holds {_kind(value)}; a JSON object is needed")
    # Keys in the order in which they appear; a set would have an order of its own.
    keys = dict.fromkeys(key for o in objects for key in o)
    if len(keys) > MOST_COLUMNS:
        problems.fatal(f"the objects have {len(keys):,} different keys; requests share a few")
    columns: dict[str, list[Any]] = {key: [MISSING] * len(objects) for key in keys}
    for i, o in enumerate(objects):
        for key, held in o.items():
            columns[key][i] = held
    table = Table(columns, np.array(at, dtype=np.int64), problems)
    warn_blank(text, 1, np.array(numbers, dtype=np.int64), problems)
    return table


def _refuse_document(text: str, lines: list[str], numbers: list[int], problems: Problems) -> None:
    """Recognise a file that is one JSON value instead of lines of them."""
    first = lines[numbers[0] - 1].strip()
    needed = "one JSON object per line is needed, one for each request"
    if first.startswith("["):
        problems.fatal(f"the file is one JSON array; {needed}")
    try:
        value = json.loads(first)
    except (ValueError, RecursionError):
        try:
            json.loads(text)
        except (ValueError, RecursionError):
            return
        problems.fatal(f"the file is one JSON object; {needed}")
    if len(numbers) == 1 and any(isinstance(v, list) and v and isinstance(v[0], dict) for v in value.values()):
        problems.fatal(f"the file is one JSON object; {needed}")


def _kind(value: Any) -> str:
    names = {list: "a JSON array", str: "a text", bool: "a truth value", type(None): "null"}
    return names.get(type(value), "a number")


def _explain(error: Exception, line: str, last: bool) -> str:
    if not isinstance(error, json.JSONDecodeError):
        return f"the line is not JSON that can be read ({error})"
    cut = error.pos >= len(line.rstrip()) or error.msg.startswith("Unterminated string")
    if last and cut:
        return "the JSON object breaks off in the middle; the file is probably cut off"
    return f"the line is not JSON ({error.msg.removesuffix(' at')} at character {error.pos + 1})"
