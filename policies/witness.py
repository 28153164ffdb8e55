"""Watches a part decide, and notes what a host could not rely on: clocks, chance, side effects, changing answers."""

from __future__ import annotations

import builtins
import datetime
import gc
import os
import random
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any

import numpy as np

from costmodels.base import CostModel
from policies.base import Part

_CLOCKS = {
    getattr(time, name): f"time.{name}"
    for name in (
        "time",
        "time_ns",
        "monotonic",
        "monotonic_ns",
        "perf_counter",
        "perf_counter_ns",
        "process_time",
        "process_time_ns",
        "thread_time",
        "thread_time_ns",
        "clock_gettime",
        "clock_gettime_ns",
        "localtime",
        "gmtime",
        "ctime",
        "strftime",
    )
    if hasattr(time, name)
}

_SHARED_RANDOM = getattr(random.random, "__self__", None)

SHIFT_S = 123_456_789
"""How far :func:`another_day` is away."""


class Raised(Exception):
    """A part's method raised; already noted as a problem."""


class Witness:
    """Asks a part's methods and collects what was wrong, as sentences.

    A thorough one asks everything twice, watching for clocks and side effects; the other only takes the answers.
    """

    def __init__(self, part: Part, *, thorough: bool = True) -> None:
        self.part = part
        self._thorough = thorough
        self._noted: dict[str, str] = {}

    @property
    def problems(self) -> list[str]:
        """What was wrong, in the order in which it was seen."""
        return list(self._noted.values())

    def note(self, about: str, problem: str) -> None:
        """Add a problem; of several about the same, the first is an example for all."""
        self._noted.setdefault(about, problem)

    def ask(self, method: str, *arguments: Any) -> Any:
        """Return what ``method`` answers.

        Raises:
            Raised: if the method raised; the problem is noted.
        """
        call = getattr(self.part, method)
        before, given = (_frozen(vars(self.part)), _frozen(arguments)) if self._thorough else (None, None)
        try:
            if not self._thorough:
                return call(*arguments)
            with _watching() as seen:
                answer = call(*arguments)
                again = call(*arguments)
        except KeyboardInterrupt:
            raise
        except BaseException as e:
            said = (str(e).strip() or "no message").splitlines()[0]
            given_text = ", ".join(map(repr, arguments))
            self.note(f"{method} raised", f"{method} raised {type(e).__name__}: {said}; it was given {given_text}")
            raise Raised from e
        for what in seen:
            self.note(f"{method} {what}", f"{method} {what}")
        if not _same(answer, again):
            self.note(f"{method} varies", f"{method} answered {answer!r}, then {again!r} to the same question")
        if _frozen(vars(self.part)) != before:
            self.note(f"{method} learns", f"{method} changes the part; what a policy learns comes from observe")
        if _frozen(arguments) != given:
            self.note(f"{method} writes", f"{method} changes what it was given")
        return answer


@contextmanager
def _watching() -> Iterator[list[str]]:
    """Note calls of clocks and of shared random generators, whatever name they go by."""
    seen: list[str] = []

    def profile(frame: FrameType, event: str, called: Any) -> None:
        if event != "c_call":
            return
        owner = getattr(called, "__self__", None)
        name = getattr(called, "__name__", "")
        what = None
        if owner is time or owner is os or owner is _SHARED_RANDOM:
            if called in _CLOCKS:
                what = f"reads the clock ({_CLOCKS[called]})"
            elif owner is _SHARED_RANDOM or called is os.urandom:
                what = f"draws random numbers ({name})"
        elif isinstance(owner, type) and issubclass(owner, datetime.date) and name in ("now", "utcnow", "today"):
            what = f"reads the clock (datetime's {name})"
        if what is not None and what not in seen:
            seen.append(what)

    # Who wants to know how long a collection takes reads the clock whenever one happens to start.
    collecting = gc.isenabled()
    gc.disable()
    outer = sys.getprofile()
    sys.setprofile(profile)
    try:
        yield seen
    finally:
        sys.setprofile(outer)
        if collecting:
            gc.enable()


@contextmanager
def another_day(part: type[Part]) -> Iterator[None]:
    """Let every clock be ``SHIFT_S`` ahead, also where the part's own modules imported it by name."""

    def ahead(clock: Callable[..., Any], shift: float) -> Callable[..., Any]:
        return lambda *arguments: clock(*arguments) + shift

    def later(clock: Callable[..., Any], now: Callable[[], float]) -> Callable[..., Any]:
        return lambda seconds=None: clock(now() + SHIFT_S if seconds is None else seconds)

    shift = datetime.timedelta(seconds=SHIFT_S)

    class LaterDateTime(datetime.datetime):
        @classmethod
        def now(cls, tz: datetime.tzinfo | None = None) -> LaterDateTime:
            return super().now(tz) + shift

        @classmethod
        def utcnow(cls) -> LaterDateTime:
            return cls.now(datetime.UTC).replace(tzinfo=None)

        @classmethod
        def today(cls) -> LaterDateTime:
            return cls.now()

    class LaterDate(datetime.date):
        @classmethod
        def today(cls) -> LaterDate:
            return super().today() + shift

    swaps: dict[Any, Any] = {datetime.datetime: LaterDateTime, datetime.date: LaterDate}
    for clock, name in _CLOCKS.items():
        if name in ("time.localtime", "time.gmtime", "time.ctime"):
            swaps[clock] = later(clock, time.time)
        elif name != "time.strftime":
            swaps[clock] = ahead(clock, SHIFT_S * 1_000_000_000 if name.endswith("_ns") else SHIFT_S)
    with _swapped(part, swaps):
        yield


@contextmanager
def another_hash_seed(part: type[Part]) -> Iterator[None]:
    """Let ``hash`` differ for all but numbers, as it does for text between processes."""
    plain = builtins.hash

    def salted(value: object) -> int:
        return plain(value) if isinstance(value, int | float) else plain((plain(value), "another seed"))

    with _swapped(part, {plain: salted}):
        yield


@contextmanager
def _swapped(part: type[Part], swaps: Mapping[Any, Any]) -> Iterator[None]:
    homes = {sys.modules.get(c.__module__) for c in part.__mro__ if c is not object}
    instead = {id(plain): swap for plain, swap in swaps.items()}
    done: list[tuple[dict[str, Any], str, Any]] = []
    for module in {time, datetime, builtins, *homes} - {None, sys.modules[__name__]}:
        names = vars(module)
        for name, value in list(names.items()):
            if id(value) in instead:
                done.append((names, name, value))
                names[name] = instead[id(value)]
    try:
        yield
    finally:
        for names, name, value in done:
            names[name] = value


def _same(a: Any, b: Any) -> bool:
    return type(a) is type(b) and bool(a == b)


_PLAIN = frozenset((type(None), bool, int, float, str, bytes))


def _frozen(value: Any, above: tuple[int, ...] = ()) -> Any:
    """Return a copy of ``value`` in plain containers that compare by content; a cost model is only its identity."""
    kind = type(value)
    if kind in _PLAIN or isinstance(value, int | float | str | bytes):
        return (kind.__name__, value)
    if isinstance(value, list | tuple) or kind.__name__ == "deque":
        # The fields of a view and what a part counts are all plain, and there are many of both.
        types = tuple(map(type, value))
        if _PLAIN.issuperset(types):
            return (kind.__name__, types, tuple(value))
    elif isinstance(value, CostModel | type):
        return id(value)
    if id(value) in above:
        return id(value)
    above = (*above, id(value))
    if isinstance(value, list | tuple) or kind.__name__ == "deque":
        return (kind.__name__, [_frozen(v, above) for v in value])
    if isinstance(value, np.ndarray):
        return (value.shape, value.dtype.str, value.tobytes())
    if isinstance(value, Mapping):
        return [(_frozen(k, above), _frozen(v, above)) for k, v in value.items()]
    if isinstance(value, set | frozenset):
        return (id(type(value)), frozenset(map(repr, value)))
    try:
        return (id(value), _frozen(vars(value), above))
    except TypeError:
        return id(value)
