"""What hybrid prefilling refuses."""


class HybridError(ValueError):
    """A model, graph or request that hybrid prefilling cannot run; the message says what would be right."""
