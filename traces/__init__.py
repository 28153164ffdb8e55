"""Request traces: what arrives."""

from traces.schema import NONE, Segments, Trace, TraceError

__all__ = ["NONE", "Segments", "Trace", "TraceError"]
