"""Advice on a trace of one's own: ``prefillsim advise``."""
