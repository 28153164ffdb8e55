"""A policy of one's own: short prompts overtake long ones, but never one that has waited longer than the head start."""

from typing import Annotated

from annotated_types import Ge

from policies import Ordering, RequestView, register


@register
class ShortLane(Ordering):
    """Short prompts first: a long one queues as if it had arrived later by the head start."""

    name = "short-lane"
    source = "examples/my_policy.py"

    short: Annotated[int, Ge(1)] = 512
    """Most prompt tokens of a short request."""
    head_start: Annotated[int, Ge(0)] = 500
    """How many ms a long request queues behind its arrival."""

    def key(self, request: RequestView) -> int:
        is_short = request.prompt_tokens <= self.short
        return request.arrival_ns + (0 if is_short else self.head_start * 1_000_000)
