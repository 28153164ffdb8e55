"""Traces in the public formats, one module each."""
