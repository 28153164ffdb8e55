"""TOML of a configuration's size, whoever wrote it: what would take for ever to read is refused."""

from __future__ import annotations

import re
import tomllib
from typing import Any

MOST_TEXT, MOST_DOTS, MOST_BITS = 1 << 20, 16, 256
"""Characters of a TOML file, dots of a key in it, and bits of a number."""

_PART = r"""(?:[\w-]+|"[^"\n]*"|'[^'\n]*')"""
DOTTED = re.compile(rf"(?<![\w-]){_PART}(?:[ \t]*\.[ \t]*{_PART}){{{MOST_DOTS + 1}}}")
"""A key with too many dots, for which the parser takes a time that grows with their square."""


def read_toml(text: str) -> dict[str, Any]:
    """Parse TOML of a configuration's size.

    Raises:
        ValueError: if it is not TOML, too large, or nested too deeply; reading such text would take for ever.
    """
    if len(text) > MOST_TEXT:
        raise ValueError(f"it has more than {MOST_TEXT:,} characters")
    if DOTTED.search(text):
        raise ValueError(f"a key has more than {MOST_DOTS} dots")
    try:
        data = tomllib.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    _check_values(data, 0)
    return data


def _check_values(value: Any, depth: int) -> None:
    if depth > MOST_DOTS:
        raise ValueError("it is nested too deeply")
    if isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            _check_values(inner, depth + 1)
    elif isinstance(value, int) and value.bit_length() > MOST_BITS:
        raise ValueError(f"a number has more than {MOST_BITS} bits")
    elif isinstance(value, str) and "\0" in value:
        raise ValueError("a text has a zero byte")
