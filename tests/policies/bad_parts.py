"""Parts that no host can rely on, each in one way, and in ``says`` what is to be said of it.

test_checks loads this file as a plug-in; importing it registers them all.
"""

from __future__ import annotations

import datetime
import random
import time
from collections.abc import Callable, Sequence
from datetime import date
from functools import partial
from random import randint
from time import monotonic_ns, perf_counter
from typing import Annotated, Any, ClassVar

import numpy as np
from annotated_types import Ge

from costmodels import CostModel
from policies import (
    ACCEPT,
    Admission,
    BatchView,
    Chunking,
    Decision,
    Grant,
    LoadView,
    Observer,
    Ordering,
    RequestView,
    StepRecord,
    register,
)


@register
class Clock(Ordering):
    """Reads the clock through its module."""

    name = "clock"
    says = "key reads the clock (time.time)"

    def key(self, request: RequestView) -> int:
        return int(time.time() * 1e9) - request.arrival_ns


@register
class ClockByName(Ordering):
    """Reads the clock by a name of its own."""

    name = "clock-by-name"
    says = "key reads the clock (time.monotonic_ns)"

    def key(self, request: RequestView) -> int:
        return monotonic_ns() // 10**12


@register
class ClockAsDefault(Ordering):
    """Reads the clock through a default argument, which no patch of a module reaches; too coarsely to show."""

    name = "clock-as-default"
    says = "key reads the clock (time.perf_counter)"

    def key(self, request: RequestView, clock: Callable[[], float] = perf_counter) -> int:
        return int(clock()) // 10**9


@register
class Datetime(Ordering):
    """Reads the date."""

    name = "datetime"
    says = "key reads the clock (datetime's now)"

    def key(self, request: RequestView) -> int:
        return datetime.datetime.now().year


@register
class HiddenClock(Ordering):
    """Reads the clock where no call of it can be seen."""

    name = "hidden-clock"
    says = "key answered"
    clock: ClassVar[Any] = partial(partial, time.time_ns)

    def key(self, request: RequestView) -> int:
        return int(self.clock()())


@register
class ClockAtReset(Ordering):
    """Reads the clock once a run."""

    name = "clock-at-reset"
    says = "its answers depend on the clock"

    def reset(self, predictor: CostModel | None) -> None:
        self._begin = int(time.time()) // 86400

    def key(self, request: RequestView) -> int:
        return self._begin + request.prompt_tokens


@register
class ClockByNameAtReset(Ordering):
    """Reads the clock once a run, by a name of its own and too coarsely to show."""

    name = "clock-by-name-at-reset"
    says = "its answers depend on the clock"

    def reset(self, predictor: CostModel | None) -> None:
        self._begin = monotonic_ns() // 10**15

    def key(self, request: RequestView) -> int:
        return self._begin + request.prompt_tokens


@register
class DateAtReset(Ordering):
    """Has a different order every day."""

    name = "date-at-reset"
    says = "its answers depend on the clock"

    def reset(self, predictor: CostModel | None) -> None:
        self._today = date.today().toordinal()

    def key(self, request: RequestView) -> int:
        return request.prompt_tokens * self._today % 1009


@register
class LocalTimeAtReset(Ordering):
    """Has a different order every year."""

    name = "local-time-at-reset"
    says = "its answers depend on the clock"

    def reset(self, predictor: CostModel | None) -> None:
        self._year = time.localtime().tm_year

    def key(self, request: RequestView) -> int:
        return request.prompt_tokens * self._year % 1009


@register
class ClockInChoose(Ordering):
    """Has a clock of its own although it is given one."""

    name = "clock-in-choose"
    says = "choose reads the clock (time.time_ns)"

    def choose(self, waiting: Sequence[RequestView], now_ns: int) -> RequestView:
        return waiting[0 if time.time_ns() else -1]


@register
class ClockInGrant(Chunking):
    """Watches how long deciding takes."""

    name = "clock-in-grant"
    says = "grant reads the clock (time.perf_counter)"

    def grant(self, batch: BatchView) -> Grant:
        return Grant(100 if perf_counter() else 200)


@register
class Chance(Ordering):
    """Rolls dice."""

    name = "chance"
    says = "key draws random numbers (random)"

    def key(self, request: RequestView) -> int:
        return int(random.random() * 1e9)


@register
class ChanceByName(Ordering):
    """Rolls dice that always show the same."""

    name = "chance-by-name"
    says = "key draws random numbers (getrandbits)"

    def key(self, request: RequestView) -> int:
        return randint(3, 4) // 5


@register
class NumpyChance(Ordering):
    """Rolls numpy's dice."""

    name = "numpy-chance"
    says = "to the same question"

    def key(self, request: RequestView) -> int:
        return int(np.random.random() * 1e9)  # noqa: NPY002


@register
class OwnChance(Ordering):
    """Has seeded dice, which still answer differently each time."""

    name = "own-chance"
    says = "to the same question"

    def reset(self, predictor: CostModel | None) -> None:
        self._rng = random.Random(7)

    def key(self, request: RequestView) -> int:
        return self._rng.getrandbits(30)


@register
class Hash(Ordering):
    """Spreads tenants by hash, which differs between processes."""

    name = "hash"
    says = "its answers depend on hash() of something other than a number"

    def key(self, request: RequestView) -> int:
        return hash(request.tenant or "") % 1000


@register
class FloatKey(Ordering):
    """Rounds where exactness was promised."""

    name = "float-key"
    says = "a float; it must be an int"

    def key(self, request: RequestView) -> int:
        return request.arrival_ns / 1e9  # type: ignore[return-value]


@register
class BoolKey(Ordering):
    """Answers yes or no."""

    name = "bool-key"
    says = "a bool; it must be an int"

    def key(self, request: RequestView) -> int:
        return request.prompt_tokens > 512


@register
class NoneKey(Ordering):
    """Forgets to answer."""

    name = "none-key"
    says = "a NoneType; it must be an int"

    def key(self, request: RequestView) -> int:
        if request.tenant:
            return 1
        return None  # type: ignore[return-value]


@register
class NumpyKey(Ordering):
    """Answers with a number that overflows."""

    name = "numpy-key"
    says = "a int64; it must be an int"

    def key(self, request: RequestView) -> int:
        return np.int64(request.arrival_ns)  # type: ignore[return-value]


@register
class NoneIsNoNumber(Ordering):
    """Takes for granted what a request may not have."""

    name = "none-is-no-number"
    says = "key raised TypeError: unsupported operand"

    def key(self, request: RequestView) -> int:
        return request.arrival_ns + request.slo_ttft_ns  # type: ignore[operator]


@register
class CacheUndeclared(Ordering):
    """Follows the prefix cache without saying so."""

    name = "cache-undeclared"
    says = "depends on cached_tokens, which hosts read once, at arrival"

    def key(self, request: RequestView) -> int:
        return request.uncached_tokens


@register
class CacheInChoose(Ordering):
    """Chooses the best hit without saying so."""

    name = "cache-in-choose"
    says = "depends on cached_tokens, which hosts read once, at arrival"

    def choose(self, waiting: Sequence[RequestView], now_ns: int) -> RequestView:
        return max(waiting, key=lambda r: r.cached_tokens / r.prompt_tokens)


@register
class BothWays(Ordering):
    """Wants the cache read again and not again."""

    name = "both-ways"
    says = "cache_aware and key_at_arrival exclude each other"
    cache_aware = True
    key_at_arrival = True

    def key(self, request: RequestView) -> int:
        return request.uncached_tokens


@register
class Counts(Ordering):
    """Counts its calls, in a key of all places."""

    name = "counts"
    says = "key changes the part"

    def reset(self, predictor: CostModel | None) -> None:
        self._calls = 0

    def key(self, request: RequestView) -> int:
        self._calls += 1
        return request.arrival_ns


@register
class RemembersTheFirst(Ordering):
    """Keeps what it saw where no look at the part finds it."""

    name = "remembers-the-first"
    says = "its answers depend on what was asked before"

    def reset(self, predictor: CostModel | None) -> None:
        seen: list[int] = []

        def first(request: RequestView) -> int:
            seen.append(request.arrival_ns)
            return request.arrival_ns - seen[0]

        self._first = first

    def key(self, request: RequestView) -> int:
        return self._first(request)


@register
class ChoosesACopy(Ordering):
    """Answers with a request that looks the same."""

    name = "chooses-a-copy"
    says = "which is not one of the waiting"

    def choose(self, waiting: Sequence[RequestView], now_ns: int) -> RequestView:
        return waiting[0]._replace(cached_tokens=0)


@register
class ChoosesNobody(Ordering):
    """Forgets to answer."""

    name = "chooses-nobody"
    says = "choose returned None, which is not one of the waiting"

    def choose(self, waiting: Sequence[RequestView], now_ns: int) -> RequestView:
        return None  # type: ignore[return-value]


@register
class Sorts(Ordering):
    """Sorts the host's own list."""

    name = "sorts"
    says = "choose changes what it was given"

    def choose(self, waiting: Sequence[RequestView], now_ns: int) -> RequestView:
        waiting.sort(key=lambda r: r.prompt_tokens)  # type: ignore[attr-defined]
        return waiting[0]


@register
class NoOrder(Ordering):
    """Leaves the work to others."""

    name = "no-order"
    says = "defines no key or choose"


@register
class LearnsKeys(Observer, Ordering):
    """Learns, where nobody asks again."""

    name = "learns-keys"
    says = "keys change with what is observed, but hosts read a key once"

    def reset(self, predictor: CostModel | None) -> None:
        self._sum = 0

    def observe(self, step: StepRecord) -> None:
        self._sum += step.duration_ns

    def key(self, request: RequestView) -> int:
        return request.prompt_tokens * self._sum


@register
class NeverForgets(Observer, Chunking):
    """Takes what it learned into the next run."""

    name = "never-forgets"
    says = "reset does not forget what was observed"
    tokens: ClassVar[int] = 1

    def __post_init__(self) -> None:
        self._tokens = 1

    def observe(self, step: StepRecord) -> None:
        self._tokens += 1

    def grant(self, batch: BatchView) -> Grant:
        return Grant(self._tokens)


@register
class ForgetsALittle(Observer, Chunking):
    """Remembers one thing in a thousand, which only a run shows."""

    name = "forgets-a-little"
    says = "a second run differs from the first: reset does not forget everything"

    def __post_init__(self) -> None:
        self._extra = 0

    def reset(self, predictor: CostModel | None) -> None:
        self._tokens = 100

    def observe(self, step: StepRecord) -> None:
        self._extra = max(self._extra, step.prefill_tokens // 2048)

    def grant(self, batch: BatchView) -> Grant:
        return Grant(5000 + self._extra)


@register
class CannotObserve(Observer, Chunking):
    """Divides by the decodes of a step that has none."""

    name = "cannot-observe"
    says = "observe raised ZeroDivisionError"

    def observe(self, step: StepRecord) -> None:
        self._per_decode = step.duration_ns // step.n_decode

    def grant(self, batch: BatchView) -> Grant:
        return Grant(100)


@register
class ObservesInVain(Chunking):
    """Waits to be told."""

    name = "observes-in-vain"
    says = "has observe but is no Observer, so no host calls it"

    def observe(self, step: StepRecord) -> None:
        self._last = step

    def grant(self, batch: BatchView) -> Grant:
        return Grant(100)


@register
class NoDocstring(Ordering):
    name = "no-docstring"
    says = "the class NoDocstring has no docstring"

    def key(self, request: RequestView) -> int:
        return 0


@register
class NoSource(Ordering):
    """From nowhere."""

    name = "no-source"
    says = "source is empty"
    source = " "

    def key(self, request: RequestView) -> int:
        return 0


@register
class NoVersion(Ordering):
    """Never released."""

    name = "no-version"
    says = "version is 0; it must be an int, at least 1"
    version = 0

    def key(self, request: RequestView) -> int:
        return 0


@register
class BadDefault(Chunking):
    """Has a default that it would refuse from a user."""

    name = "bad-default"
    says = "cannot be made of its own parameters: chunking bad-default: chunk=0: input should be greater"

    chunk: Annotated[int, Ge(1)] = 0

    def grant(self, batch: BatchView) -> Grant:
        return Grant(self.chunk or 1)


@register
class ListParameter(Chunking):
    """Has a parameter that no policy string can carry."""

    name = "list-parameter"
    says = "do not survive JSON and the policy string"

    sizes: tuple[int, ...] = (64, 256)

    def grant(self, batch: BatchView) -> Grant:
        return Grant(self.sizes[0])


@register
class FloatTokens(Chunking):
    """Grants half tokens."""

    name = "float-tokens"
    says = "grant gave 99.5 tokens; it must be an int"

    def grant(self, batch: BatchView) -> Grant:
        return Grant(99.5)  # type: ignore[arg-type]


@register
class NegativeTokens(Chunking):
    """Takes tokens back from a large batch."""

    name = "negative-tokens"
    says = "grant gave -86 tokens; it must be an int, at least 0"

    def grant(self, batch: BatchView) -> Grant:
        return Grant(64 - batch.n_decode)


@register
class Stalls(Chunking):
    """Waits for a batch that never comes."""

    name = "stalls"
    says = "grant gave no tokens although nothing decodes"

    def grant(self, batch: BatchView) -> Grant:
        return Grant(100 if batch.n_decode else 0)


@register
class NoPrefills(Chunking):
    """Grants tokens to nobody."""

    name = "no-prefills"
    says = "grant gave prefills = 0; it must be an int, at least 1, or None"

    def grant(self, batch: BatchView) -> Grant:
        return Grant(100, prefills=0)


@register
class NoCap(Chunking):
    """Grants tokens that nobody may take."""

    name = "no-cap"
    says = "grant gave cap = 0; it must be an int, at least 1, or None"

    def grant(self, batch: BatchView) -> Grant:
        return Grant(100, cap=0)


@register
class NoDeadline(Chunking):
    """Confesses without guilt."""

    name = "no-deadline"
    says = "grant records an exception to a deadline although there is none"

    def grant(self, batch: BatchView) -> Grant:
        return Grant(100, exception=True)


@register
class BareNumber(Chunking):
    """Answers with a number."""

    name = "bare-number"
    says = "grant returned 100; it must be a Grant"

    def grant(self, batch: BatchView) -> Grant:
        return 100  # type: ignore[return-value]


@register
class LearnsInGrant(Chunking):
    """Learns when it is asked, which a host may do twice."""

    name = "learns-in-grant"
    says = "grant changes the part; what a policy learns comes from observe"

    def reset(self, predictor: CostModel | None) -> None:
        self._seen: list[int] = []

    def grant(self, batch: BatchView) -> Grant:
        self._seen.append(batch.n_decode)
        return Grant(100)


@register
class LooksAhead(Chunking):
    """Looks at a candidate that it did not ask for."""

    name = "looks-ahead"
    says = "grant raised IndexError"

    def grant(self, batch: BatchView) -> Grant:
        return Grant(batch.candidates[0].remaining + batch.candidates[1].remaining)


@register
class LooksDespiteZero(Chunking):
    """Asks for no candidates and looks at one."""

    name = "looks-despite-zero"
    says = "grant raised IndexError"
    lookahead = 0

    def grant(self, batch: BatchView) -> Grant:
        return Grant(batch.candidates[0].remaining)


@register
class LooksBack(Chunking):
    """Looks the wrong way."""

    name = "looks-back"
    says = "lookahead is -1; it must be an int, at least 0"
    lookahead = -1

    def grant(self, batch: BatchView) -> Grant:
        return Grant(100)


@register
class ZeroDeadline(Chunking):
    """Wants the next token before the last."""

    name = "zero-deadline"
    says = "deadline_ns returned 0; it must be a positive int of nanoseconds, or None"

    def deadline_ns(self, request: RequestView) -> int | None:
        return 0

    def grant(self, batch: BatchView) -> Grant:
        return Grant(100)


@register
class NoSeats(Chunking):
    """Lets nobody run."""

    name = "no-seats"
    says = "seat_limit returned 0; it must be an int, at least 1, or None"

    def seat_limit(self, max_num_seqs: int | None) -> int | None:
        return 0

    def grant(self, batch: BatchView) -> Grant:
        return Grant(100)


@register
class BelievesInSecret(Chunking):
    """Consults a cost model without saying so."""

    name = "believes-in-secret"
    says = "decides by the cost model; declare needs_predictor = True"

    def reset(self, predictor: CostModel | None) -> None:
        self._model = predictor

    def grant(self, batch: BatchView) -> Grant:
        if self._model is None:
            return Grant(1)
        return Grant(max(1, self._model.max_chunk(0, 0, 0, 0, 4096, 5_000_000)))


@register
class NeedsInSecret(Chunking):
    """Cannot do without a cost model, and does not say so."""

    name = "needs-in-secret"
    says = "reset without a cost model raised AttributeError: 'NoneType' object has no attribute 'max_chunk'; declare"

    def reset(self, predictor: CostModel | None) -> None:
        self._tokens = predictor.max_chunk(0, 0, 0, 0, 4096, 5_000_000)  # type: ignore[union-attr]

    def grant(self, batch: BatchView) -> Grant:
        return Grant(self._tokens)


@register
class FirstLove(Chunking):
    """Believes the first cost model for ever."""

    name = "first-love"
    says = "reset keeps the cost model of an earlier run"
    needs_predictor = True

    def __post_init__(self) -> None:
        self._model: CostModel | None = None

    def reset(self, predictor: CostModel | None) -> None:
        self._model = self._model or predictor

    def grant(self, batch: BatchView) -> Grant:
        assert self._model is not None
        return Grant(max(1, self._model.max_chunk(0, 0, 0, 0, 4096, 5_000_000)))


@register
class Refuses(Chunking):
    """Works with no cost model at all."""

    name = "refuses"
    says = "cannot begin a run: nothing will do"

    def reset(self, predictor: CostModel | None) -> None:
        raise ValueError("nothing will do")

    def grant(self, batch: BatchView) -> Grant:
        return Grant(100)


@register
class SaysNo(Admission):
    """Has words of its own."""

    name = "says-no"
    says = "admit gave the verdict 'no'; it must be one of accept, reject, redirect"

    def admit(self, request: RequestView, load: LoadView) -> Decision:
        return Decision("no") if load.n_waiting else ACCEPT


@register
class WithoutReason(Admission):
    """Sends away without a word."""

    name = "without-reason"
    says = "admit gave no reason to redirect; the results show it to the user"

    def admit(self, request: RequestView, load: LoadView) -> Decision:
        return Decision("redirect") if load.n_waiting else ACCEPT


@register
class BareTruth(Admission):
    """Answers yes or no."""

    name = "bare-truth"
    says = "admit returned True; it must be a Decision"

    def admit(self, request: RequestView, load: LoadView) -> Decision:
        return True  # type: ignore[return-value]


@register
class EveryOther(Admission):
    """Lets in every other request by counting."""

    name = "every-other"
    says = "admit changes the part"

    def reset(self, predictor: CostModel | None) -> None:
        self._count = 0

    def admit(self, request: RequestView, load: LoadView) -> Decision:
        self._count += 1
        return ACCEPT


@register
class OnlyWholeQueues(Ordering):
    """Cannot choose among few when it has chosen among many."""

    name = "only-whole-queues"
    says = "a run of the sample requests stopped: "
    seen: ClassVar[list[int]] = []

    def choose(self, waiting: Sequence[RequestView], now_ns: int) -> RequestView:
        if now_ns < 10**9 and len(waiting) == 2:
            raise RuntimeError("two is a crowd")
        return waiting[0]


@register
class HalfCached(Ordering):
    """Breaks on a cache state that no sample has, until the checks make one."""

    name = "half-cached"
    says = "the checks stopped: ZeroDivisionError"

    def key(self, request: RequestView) -> int:
        return request.prompt_tokens // (request.cached_tokens - 50_000)
