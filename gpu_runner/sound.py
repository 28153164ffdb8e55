"""What a policy has answered, if it is sound: inside an engine a wrong answer would fail later, or somewhere else."""

from __future__ import annotations

from policies.answers import VERDICTS
from policies.base import Admission, Decision, PolicyError
from policies.views import Grant, LoadView, RequestView


def sound_deadline(deadline: int | None) -> int | None:
    """Return a chunking's deadline.

    Raises:
        PolicyError: unless it is a positive number of nanoseconds or ``None``.
    """
    if deadline is not None and (type(deadline) is not int or deadline <= 0):
        raise PolicyError(f"deadline_ns answered {deadline!r}, not a positive number of nanoseconds or None")
    return deadline


def sound_grant(grant: Grant, name: str, n_decode: int) -> Grant:
    """Return the grant of the chunking ``name``.

    Raises:
        PolicyError: if vLLM would fail on it in the middle of a step, or wait on it for ever.
    """
    tokens, prefills, cap, _ = grant
    sound = type(tokens) is int and tokens >= (0 if n_decode else 1)
    if not sound or not all(n is None or (type(n) is int and n >= 1) for n in (prefills, cap)):
        where = "" if n_decode else " where nothing decodes"
        raise PolicyError(f"chunking {name} granted {grant!r}{where}")
    return grant


def turned_away(admission: Admission, view: RequestView, load: LoadView) -> str | None:
    """Return why an admission does not let a request in, ``None`` where it does.

    Raises:
        PolicyError: if its verdict is none.
    """
    decision: Decision = admission.admit(view, load)
    if decision.verdict not in VERDICTS:
        raise PolicyError(f"admission {admission.name} answered {decision!r}")
    return None if decision.verdict == "accept" else str(decision.reason or decision.verdict)
