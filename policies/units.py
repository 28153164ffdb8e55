"""Seconds and milliseconds at the edge, whole nanoseconds inside."""

from __future__ import annotations

MS = 1_000_000
NS = 1_000_000_000

FOREVER_NS = 1 << 62
"""Later than any time; what an endless time becomes."""


def ns_from_ms(ms: float) -> int:
    """Return the nearest whole number of nanoseconds, at most ``FOREVER_NS``."""
    return FOREVER_NS if ms >= FOREVER_NS / MS else round(ms * MS)


def ns_from_s(s: float) -> int:
    """Return the nearest whole number of nanoseconds, at most ``FOREVER_NS``."""
    return FOREVER_NS if s >= FOREVER_NS / NS else round(s * NS)
