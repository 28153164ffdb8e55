"""An engine that serves whoever asks, in a thread of its own."""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple, Protocol

from gpu_runner.hybrid.scheduler import Ended
from gpu_runner.hybrid.scoring import Question

logger = logging.getLogger("prefillsim.hybrid")


class Engine(Protocol):
    """The part of :class:`gpu_runner.hybrid.engine.HybridEngine` that a service needs."""

    answers: dict[str, Ended]

    @property
    def busy(self) -> bool:
        """Whether any request has not finished."""
        ...

    def add(
        self,
        request_id: str,
        ids: Sequence[int],
        max_tokens: int = 1,
        arrival_ns: int | None = None,
        extra_args: Mapping[str, Any] | None = None,
        question: Question | None = None,
    ) -> None:
        """Hand in a request."""
        ...

    def step(self) -> list[str]:
        """Serve one request."""
        ...

    def abort(self, request_ids: Sequence[str]) -> None:
        """Drop requests that still wait."""
        ...


class Ticket(NamedTuple):
    """A request that was handed in, and what will come of it."""

    request_id: str
    ended: Future[Ended]


class Service:
    """Runs an engine's steps as long as there is something to do; all methods may be called from any thread."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._names = (f"cmpl-{i}" for i in itertools.count())
        self._tickets: dict[str, Future[Ended]] = {}
        self._wake = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._work, name="hybrid-engine", daemon=True)
        self._thread.start()

    def submit(self, ids: Sequence[int], question: Question, extra: Mapping[str, Any]) -> Ticket:
        """Hand in a request.

        Raises:
            ValueError: if it can never run.
        """
        with self._wake:
            ticket = Ticket(next(self._names), Future())
            self._engine.add(ticket.request_id, ids, extra_args=extra, question=question)
            self._tickets[ticket.request_id] = ticket.ended
            self._wake.notify()
        return ticket

    def cancel(self, request_id: str) -> None:
        """Drop a request that still waits; nobody waits for its end any more."""
        with self._wake:
            if self._tickets.pop(request_id, None) is not None:
                self._engine.abort([request_id])

    def close(self) -> None:
        """End after the step that runs; what waits fails."""
        with self._wake:
            self._closed = True
            self._wake.notify()
        self._thread.join()
        for request_id in list(self._tickets):
            self._settle(Ended(request_id, None, "failed", "the server has ended"))

    def _work(self) -> None:
        while True:
            with self._wake:
                self._wake.wait_for(lambda: self._closed or self._engine.busy)
                if self._closed:
                    return
            try:
                self._engine.step()
            except Exception:
                # The request that it was is told by the next step; the others go on.
                logger.exception("a prefill failed")
            for request_id in list(self._engine.answers):
                self._settle(self._engine.answers.pop(request_id))

    def _settle(self, ended: Ended) -> None:
        with self._wake:
            future = self._tickets.pop(ended.request_id, None)
        if future is not None and future.set_running_or_notify_cancel():
            future.set_result(ended)
