"""vLLM's waiting queue in a policy's order, with a gate for how many prefills a step may start."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from gpu_runner.hooks import Request, RequestQueue
from policies.base import Ordering
from policies.ordering.fcfs import Fcfs
from policies.queue import PolicyQueue
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
    generated: int = 0
    """Tokens that it got, once it has left."""
    reason: str = ""
    """Why it was not let in."""


def known(request: Request) -> Known:
    """Return what was noted of a request when it came."""
    note: Known = request.prefillsim
    return note


class WaitingQueue(RequestQueue):
    """Requests that have arrived, and those that a policy has let in, in the policy's order.

    Its length is true at all times; its truth value is whether another request may start in this step.

    Args:
        ordering: the policy's.
        may_start: asked for the truth value.
        failed: called with an exception of the ordering, from which on the order is first come, first served.
    """

    def __init__(self, ordering: Ordering, may_start: Callable[[], bool], failed: Callable[[Exception], None]) -> None:
        self.policy = PolicyQueue(ordering)
        self.now_ns = 0
        """What the ordering takes for the time."""
        self.arrivals: list[Request] = []
        """Came since the last step."""
        self.returned: list[Request] = []
        """Preempted since the last step; they wait."""
        self._may_start = may_start
        self._failed = failed
        self._requests: dict[int, Request] = {}

    def enter(self, request: Request) -> None:
        """Let a request in."""
        view = known(request).view
        self._requests[view.number] = request
        self.policy.add(view)

    def request(self, number: int) -> Request:
        """Return the request that waits under a number."""
        return self._requests[number]

    def first(self, n: int) -> list[Request]:
        """Return the next ``n`` requests, fewer where fewer wait."""
        return [self._requests[view.number] for view in self.policy.first(n, self.now_ns)]

    def by_arrival(self) -> None:
        """From now on, first come, first served; what was preempted still goes first."""
        waiting = list(self.policy)
        self.policy = PolicyQueue(Fcfs())
        for view in waiting:
            self.policy.add(view)
        for request in self.arrivals:
            self.enter(request)
        self.arrivals.clear()

    def add_request(self, request: Request) -> None:
        """Note an arrival; the next step decides whether it is let in."""
        self.arrivals.append(request)

    def peek_request(self) -> Request:
        """Return the next request."""
        try:
            view = self.policy.peek(self.now_ns)
        except Exception as e:
            self._failed(e)
            view = self.policy.peek(self.now_ns)
        return self._requests[view.number]

    def pop_request(self) -> Request:
        """Take the next request out."""
        try:
            view = self.policy.pop(self.now_ns)
        except Exception as e:
            self._failed(e)
            view = self.policy.pop(self.now_ns)
        return self._requests.pop(view.number)

    def prepend_request(self, request: Request) -> None:
        """Put a preempted request before all others."""
        note = known(request)
        # A token that is still on its way is delivered, and then there to be prefilled again.
        coming = bool(request.num_stale_output_tokens and not request.is_prefill_chunk)
        note.view = note.view._replace(cached_tokens=0, generated_tokens=request.num_output_tokens + coming)
        self._requests[note.view.number] = request
        self.policy.push_front(note.view)
        self.returned.append(request)

    def prepend_requests(self, requests: Iterable[Request]) -> None:
        """Put requests before all others, the last of them first."""
        for request in requests:
            self.prepend_request(request)

    def remove_request(self, request: Request) -> None:
        """Take a request out wherever it is, as when its client goes away."""
        number = known(request).view.number
        if self._requests.pop(number, None) is not None:
            self.policy.remove(number)
        else:
            self.arrivals.remove(request)

    def remove_requests(self, requests: Iterable[Request]) -> None:
        """Take requests out."""
        for request in list(requests):
            self.remove_request(request)

    def __bool__(self) -> bool:
        return bool(self.policy.size) and self._may_start()

    def __len__(self) -> int:
        return self.policy.size + len(self.arrivals)

    def __iter__(self) -> Iterator[Request]:
        yield from (self._requests[view.number] for view in self.policy)
        yield from self.arrivals
