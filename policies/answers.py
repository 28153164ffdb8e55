"""What a part answers to the sample views, and whether each answer is one that a host can carry out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from policies.base import Chunking, Decision, Ordering, Part
from policies.rehearsal import NO_LIMIT, sample_batches, sample_loads, sample_requests
from policies.views import BatchView, Grant, RequestView
from policies.witness import Raised, Witness

NOW_NS = 10_000_000_000

VERDICTS = ("accept", "reject", "redirect")


def answers(witness: Witness, *, backwards: bool = False) -> list[Any]:
    """Ask ``witness.part`` everything there is to ask and return its answers, noting what is wrong with them.

    ``backwards`` puts the questions in the opposite order; the answers are returned in the same one.
    """
    part = witness.part
    asked: list[Any] = []
    questions = _questions(part)
    for method, arguments in reversed(questions) if backwards else questions:
        try:
            answer = witness.ask(method, *arguments)
        except Raised:
            answer = "raised"
        else:
            _judge(witness, method, arguments, answer)
        asked.append(answer)
    return asked[::-1] if backwards else asked


def picks(ordering: Ordering) -> bool:
    """Return whether an ordering looks at the whole queue instead of giving keys."""
    return type(ordering).choose is not Ordering.choose


def _questions(part: Part) -> list[tuple[str, tuple[Any, ...]]]:
    requests = sample_requests()
    if isinstance(part, Ordering):
        if not picks(part):
            return [("key", (r,)) for r in requests]
        queues = [requests[:1], requests[3:5], requests, requests[10:17]]
        return [("choose", (list(queue), now)) for queue in queues for now in (NOW_NS, 3 * NOW_NS)]
    if isinstance(part, Chunking):
        # Grants only for as many requests as the part itself lets run.
        seats = part.seat_limit(None) or NO_LIMIT
        return [
            *(("deadline_ns", (r,)) for r in requests),
            ("seat_limit", (None,)),
            *(("grant", (batch,)) for batch in sample_batches(part.lookahead, seats)),
        ]
    return [("admit", (r, load)) for load in sample_loads() for r in requests[:12]]


def _judge(witness: Witness, method: str, arguments: tuple[Any, ...], answer: Any) -> None:
    judges: dict[str, Callable[..., None]] = {
        "key": _key,
        "choose": _choice,
        "deadline_ns": _deadline,
        "seat_limit": _seats,
        "grant": grant_is_fit,
        "admit": lambda w, request, load, decision: decision_is_fit(w, decision),
    }
    judges[method](witness, *arguments, answer)


def _key(witness: Witness, request: RequestView, key: Any) -> None:
    if type(key) is not int:
        witness.note("key", f"key returned {key!r}, a {type(key).__name__}; it must be an int")


def _choice(witness: Witness, waiting: Sequence[RequestView], now_ns: int, chosen: Any) -> None:
    if not any(chosen is r for r in waiting):
        witness.note("choose", f"choose returned {chosen!r}, which is not one of the waiting")


def _deadline(witness: Witness, request: RequestView, deadline: Any) -> None:
    if deadline is not None and (type(deadline) is not int or deadline <= 0):
        witness.note(
            "deadline_ns", f"deadline_ns returned {deadline!r}; it must be a positive int of nanoseconds, or None"
        )


def _seats(witness: Witness, limit: int | None, seats: Any) -> None:
    if seats is not None and (type(seats) is not int or seats < 1):
        witness.note("seat_limit", f"seat_limit returned {seats!r}; it must be an int, at least 1, or None")


def grant_is_fit(witness: Witness, batch: BatchView, grant: Any) -> None:
    """Note why a host could not carry out ``grant``."""
    if type(grant) is not Grant:
        witness.note("grant", f"grant returned {grant!r}; it must be a Grant")
        return
    values: tuple[Any, ...] = tuple(grant)
    tokens, prefills, cap, exception = values
    if type(tokens) is not int or tokens < 0:
        witness.note("tokens", f"grant gave {tokens!r} tokens; it must be an int, at least 0")
    elif not tokens and not batch.n_decode:
        witness.note("progress", "grant gave no tokens although nothing decodes, so the engine would wait for ever")
    for name, value in (("prefills", prefills), ("cap", cap)):
        if value is not None and (type(value) is not int or value < 1):
            witness.note(name, f"grant gave {name} = {value!r}; it must be an int, at least 1, or None")
    if type(exception) is not bool:
        witness.note("exception type", f"grant gave exception = {exception!r}; it must be a bool")
    elif exception and (batch.earliest_deadline_ns is None or not batch.n_decode):
        witness.note("exception", "grant records an exception to a deadline although there is none")


def decision_is_fit(witness: Witness, decision: Any) -> None:
    """Note why a host could not act on ``decision``."""
    if type(decision) is not Decision:
        witness.note("admit", f"admit returned {decision!r}; it must be a Decision")
    elif decision.verdict not in VERDICTS:
        witness.note("verdict", f"admit gave the verdict {decision.verdict!r}; it must be one of {', '.join(VERDICTS)}")
    elif decision.verdict != "accept" and not (isinstance(decision.reason, str) and decision.reason):
        witness.note("reason", f"admit gave no reason to {decision.verdict}; the results show it to the user")
