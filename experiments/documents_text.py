"""Markdown from docstrings and rows."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence

DASH = "–"


def as_markdown(text: str) -> str:
    """Return a docstring with single backticks in place of double ones and of roles such as ``:func:``."""
    return re.sub(r":\w+:`~?([^`]+)`", r"`\1`", text).replace("``", "`")


def filled(text: str) -> str:
    """Return a paragraph in lines of at most 120 characters."""
    return textwrap.fill(text, 120, break_long_words=False, break_on_hyphens=False)


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return rows as a table; bars within cells are escaped, as they must be even within code."""
    lines = [header, ["---"] * len(header), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def code(text: str) -> str:
    """Return text as code within a line."""
    return f"`{text}`"


def anchor(heading: str) -> str:
    """Return what a link to a heading ends with: small letters, digits and dashes, as on GitHub."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
