"""The requests of a trace as policies see them at arrival."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from itertools import chain, count, repeat

from policies.views import RequestView
from sim.least import FAR
from sim.numbers import as_list
from sim.objectives import Objectives
from traces.schema import NONE, IntArray, Trace


def request_views(trace: Trace, objectives: Objectives) -> Iterator[RequestView]:
    """Yield the requests as policies see them at arrival, then one that never arrives.

    The run's objectives stand in for missing ones.
    """
    ttft = own_or_default(trace.slo_ttft_ns, objectives.ttft)
    tpot = own_or_default(trace.slo_tpot_ns, objectives.deadline_ns)
    tenant = repeat(None) if trace.tenant is None else trace.tenant.tolist()
    session = repeat(None) if trace.session is None else trace.session.tolist()
    arrival, prompt = trace.arrival_ns.tolist(), as_list(trace.prompt_tokens)
    columns = zip(count(), arrival, prompt, repeat(0), repeat(0), ttft, tpot, tenant, session, strict=False)
    return chain(map(partial(tuple.__new__, RequestView), columns), [RequestView(len(trace), FAR, 1)])


def own_or_default(own: IntArray | None, default: int | None) -> Iterable[int | None]:
    """Give each request's own objective, ``default`` where it has none; without end where none has."""
    if own is None:
        return repeat(default)
    return [default if v == NONE else v for v in own.tolist()]
