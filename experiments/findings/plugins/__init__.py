"""Policies that only questions need; an experiment's TOML file names them under ``plugins``."""
