"""Which arrivals enter the queue of a replica."""

from __future__ import annotations

from policies.base import Policy, PolicyError
from policies.views import LoadView, RequestView
from sim.inbox import Inbox
from sim.kvcache import KVCache
from sim.records import REDIRECTED, REJECTED, RunLog


class Gate:
    """Turns away what can never run here, then asks the policy's admission; what is turned away is logged."""

    def __init__(
        self, policy: Policy, cache: KVCache, max_model_len: int | None, totals: list[int], log: RunLog
    ) -> None:
        self._policy, self._cache, self._longest = policy, cache, max_model_len
        self._totals, self._log = totals, log
        self.open = not cache.tracks and policy.admission is None and max_model_len is None
        """Everybody gets in, so nobody need ask."""

    def admits(self, view: RequestView, load: LoadView, inbox: Inbox | None) -> bool:
        """Return whether an arrival is let in.

        Raises:
            PolicyError: if the admission's answer is none.
        """
        reason = self._impossible(view)
        if reason is not None:
            self._turn_away(view, REJECTED, reason, load.now_ns, inbox)
            return False
        admission = self._policy.admission
        if admission is None:
            return True
        decision = admission.admit(view, load)
        if decision.verdict == "accept":
            return True
        if decision.verdict not in ("reject", "redirect"):
            raise PolicyError(
                f"policy {self._policy.label}: {admission.name} answered {decision.verdict!r}, which is none of "
                "accept, reject and redirect"
            )
        redirected = decision.verdict == "redirect"
        if not (redirected and inbox is not None and inbox.send_on(view, load.now_ns)):
            self._turn_away(view, REDIRECTED if redirected else REJECTED, decision.reason, load.now_ns, inbox)
        return False

    def _impossible(self, view: RequestView) -> str | None:
        total = self._totals[view.number]
        if self._longest is not None and total > self._longest:
            outputs = total - view.prompt_tokens
            return f"{view.prompt_tokens} prompt and {outputs} output tokens exceed max_model_len {self._longest}"
        return self._cache.refusal(view.number) if self._cache.tracks else None

    def _turn_away(self, view: RequestView, outcome: int, reason: str, now: int, inbox: Inbox | None) -> None:
        self._log.outcome[view.number] = outcome
        self._log.reasons[view.number] = reason
        if inbox is not None:
            inbox.left(now, [view.number])
