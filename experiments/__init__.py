"""The questions asked: command line, sweeps, figures."""
