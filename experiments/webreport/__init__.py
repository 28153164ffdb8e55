"""The HTML report of runs and sweeps: one file that needs no other."""
