"""``prefillsim figures all`` and ``figures findings``."""
