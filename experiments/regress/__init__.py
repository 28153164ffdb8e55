"""Runs held against a committed baseline: ``prefillsim regress``."""
