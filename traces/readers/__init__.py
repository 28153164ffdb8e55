"""Traces in the public formats, one module each, and the checks that all of them share."""
