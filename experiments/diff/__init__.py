"""Where two runs part: ``prefillsim diff``."""
