"""The simulator: what then happens."""
