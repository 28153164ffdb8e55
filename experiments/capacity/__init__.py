"""The highest rate that keeps a level of attainment: ``prefillsim capacity``."""
