"""What the scheduler notes of a request, beside what vLLM knows of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from policies.views import RequestView


@dataclass(eq=False)
class Known:
    """What the scheduler knows of a request beside vLLM's own state; kept on the request itself."""

    view: RequestView
    allowed_ns: int | None
    """Time between two of its tokens, where the policy has a deadline for it."""
    keep_tokens: int | None
    """Leading tokens that others will share, where the application says so."""
    started: int = -1
    """Cached tokens when it first started; -1 until then."""
    first_token_ns: int = -1
    """On the engine's clock; -1 until then."""
    left_ns: int = -1
    """When it finished or was broken off, on the engine's clock; -1 until then."""
    generated: int = 0
    """Tokens that it got, once it has left."""
    preemptions: int = 0
    """How often it lost its blocks, once it has left."""
    outcome: str = "unfinished"
    reason: str = ""
    """Why it was not let in, or ended early."""


def known(request: Any) -> Known:
    """Return what was noted of a request when it came."""
    note: Known = request.prefillsim
    return note
