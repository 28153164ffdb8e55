"""Why requests waited: ``prefillsim why``."""
