"""A grant being handed out, request by request, while vLLM schedules a step."""

from __future__ import annotations

from typing import Any, NamedTuple

from policies.views import Grant


class Share(NamedTuple):
    """What one request may prefill in the step; vLLM may still find no blocks for it."""

    request: Any
    before: int
    """Tokens of it that are computed, cached ones included."""
    tokens: int


class Allotment:
    """The tokens of one step's grant, as far as they are not handed out."""

    def __init__(self, grant: Grant) -> None:
        self._tokens = grant.tokens
        self._prefills = grant.prefills
        self._cap = grant.cap
        self.shares: list[Share] = []

    @property
    def open(self) -> bool:
        """Whether another request could get tokens."""
        return self._tokens > 0 and (self._prefills is None or len(self.shares) < self._prefills)

    def share(self, request: Any, before: int, wanted: int) -> int:
        """Give a request its tokens, at most ``wanted``, and return how many those are."""
        if not self.open:
            return 0
        tokens = min(wanted, self._tokens)
        if self._cap is not None:
            tokens = min(tokens, self._cap)
        self._tokens -= tokens
        self.shares.append(Share(request, before, tokens))
        return tokens


NOTHING = Grant(0)
