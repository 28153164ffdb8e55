"""Messages that repeat what somebody has written stay one line."""

from __future__ import annotations


def one_line(text: str) -> str:
    """Return text with its control characters written out, a line break as backslash and n."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
