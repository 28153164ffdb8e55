"""Orderings: which waiting request goes first."""
