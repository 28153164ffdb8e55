"""vLLM's waiting queue in a policy's order, with a gate for how many prefills a step may start."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from gpu_runner.hooks import Request, RequestQueue
from gpu_runner.known import known
from policies.base import Ordering, PolicyError
from policies.ordering.fcfs import Fcfs
from policies.queue import PolicyQueue
from policies.views import RequestView


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
        self._peeked: RequestView | None = None
        self._open = False

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
        """From now on, first come, first served, and all are let in; what was preempted still goes first.

        The ordering may have failed in the middle of anything, so of its queue only those at the front are believed.
        """
        front = [view for view in self.policy if self._requests[view.number].num_preemptions]
        self.policy = PolicyQueue(Fcfs())
        self._open = True
        for request in self.arrivals:
            self._requests[known(request).view.number] = request
        self.arrivals.clear()
        ahead = {view.number for view in front}
        for number in sorted(self._requests.keys() - ahead):
            self.policy.add(known(self._requests[number]).view)
        for view in reversed(front):
            self.policy.push_front(view)

    def add_request(self, request: Request) -> None:
        """Note an arrival; the next step decides whether it is let in."""
        if self._open:
            self.enter(request)
        else:
            self.arrivals.append(request)

    def peek_request(self) -> Request:
        """Return the next request."""
        try:
            view = self.policy.peek(self.now_ns)
        except Exception as e:
            self._failed(e)
            view = self.policy.peek(self.now_ns)
        self._peeked = view
        return self._requests[view.number]

    def pop_request(self) -> Request:
        """Take the next request out: the one that was last looked at, for vLLM has given that one its blocks."""
        peeked, self._peeked = self._peeked, None
        number = None if peeked is None else peeked.number
        try:
            popped = self.policy.pop(self.now_ns).number
            if number is not None and popped != number:
                raise PolicyError("the ordering named another request than before, in the same step")
        except Exception as e:
            # Nothing has left self._requests, so this puts back what may be out.
            self._failed(e)
            if number is None:
                popped = self.policy.pop(self.now_ns).number
            else:
                self.policy.remove(number)
                popped = number
        return self._requests.pop(popped)

    def prepend_request(self, request: Request) -> None:
        """Put a preempted request before all others."""
        note = known(request)
        # A token that is still on its way is delivered, and then there to be prefilled again.
        coming = bool(request.num_stale_output_tokens and not request.is_prefill_chunk)
        note.view = note.view._replace(cached_tokens=0, generated_tokens=request.num_output_tokens + coming)
        self._requests[note.view.number] = request
        self.policy.push_front(note.view)
        self._peeked = None
        self.returned.append(request)

    def prepend_requests(self, requests: Iterable[Request]) -> None:
        """Put requests before all others, the last of them first."""
        for request in requests:
            self.prepend_request(request)

    def remove_request(self, request: Request) -> None:
        """Take a request out wherever it is, as when its client goes away."""
        number = known(request).view.number
        self._peeked = None
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
