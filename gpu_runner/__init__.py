"""What really happens: the same policy objects inside vLLM. Empty so far; the simulator does not need it."""
