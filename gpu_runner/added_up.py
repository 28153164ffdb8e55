"""Token deadlines that add up, over vLLM's running requests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpu_runner import hooks
from gpu_runner.composition import FAR
from gpu_runner.known import known


def added_up_ns(requests: Sequence[Any], seen: int, *, deep: bool) -> int:
    """Return how long after ``seen`` the first of all next tokens is due, negative if it is late.

    Args:
        requests: vLLM's running ones.
        seen: when the step that is decided is expected to begin, and a first token in flight to be there.
        deep: whether some may get their last token from a step in flight.

    Returns:
        Nanoseconds; ``FAR`` where nobody who decodes has a deadline.
    """
    due = FAR
    for request in requests:
        if request.is_prefill_chunk or (deep and hooks.is_ending(request)):
            continue
        note = known(request)
        if note.allowed_ns is None:
            continue
        view = note.view
        first = seen if note.first_token_ns < 0 else note.first_token_ns
        outputs = request.num_computed_tokens - view.prompt_tokens + 1
        start = max(first, view.arrival_ns + (view.slo_ttft_ns or 0))
        due = min(due, start + note.allowed_ns * outputs)
    return due if due == FAR else due - seen
