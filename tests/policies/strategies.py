"""Random requests, and random parameters of every built-in part."""

from __future__ import annotations

import dataclasses
import random
from typing import Any

from hypothesis import strategies as st

from policies import RequestView, registry
from tests.seeded import Maker, wide

MS = 1_000_000

TENANTS = ("interactive", "batch", "café")

objectives = st.none() | st.integers(1, 10**10)


def request_view(number: int = 0, preempted: bool = True) -> Maker:
    """Make a request of the given number; small numbers abound."""

    def make(rng: random.Random) -> RequestView:
        prompt = rng.randint(1, rng.choice((8, 10**6)))
        generated = rng.randint(0, 3) if preempted else 0
        return RequestView(
            number,
            wide(10**13)(rng),
            prompt,
            rng.randint(0, prompt + generated - 1),
            generated,
            rng.choice((None, wide(10**10, 1)(rng))),
            rng.choice((None, wide(10**10, 1)(rng))),
            rng.choice((None, *TENANTS)),
        )

    return make


def queue(min_size: int = 1, max_size: int = 8) -> Maker:
    """Make waiting requests, numbered in order of arrival; on the smallest scales ties abound."""

    def make(rng: random.Random) -> list[RequestView]:
        n = rng.randint(min_size, max_size)
        span, most = rng.choice([3, 20, 10**9, 10**13]), rng.choice([2, 8, 10**6])
        requests = []
        for i, arrival in enumerate(sorted(rng.randint(0, span) for _ in range(n))):
            prompt = rng.randint(1, most)
            requests.append(
                RequestView(
                    i,
                    arrival,
                    prompt,
                    rng.randint(0, prompt - 1),
                    rng.choice((0, 0, 2)),
                    rng.choice((None, rng.randint(1, span))),
                    rng.choice((None, rng.randint(1, span))),
                    rng.choice((None, *TENANTS)),
                )
            )
        return requests

    return make


milliseconds = st.floats(1e-6, 1e6) | st.integers(1, 1000).map(float) | st.just(float("inf"))
margins = st.one_of(
    st.integers(0, 99).map(str),
    st.decimals(0, 99, places=3).map(str),
    st.integers(0, 300).map(lambda p: f"{p}%"),
    st.sampled_from(["p50", "p90", "p99", "p99.9"]),
)
tenant_margins = st.dictionaries(st.sampled_from(TENANTS), st.integers(0, 50) | st.floats(0, 9)).map(
    lambda m: "|".join(f"{tenant}:{ms}" for tenant, ms in m.items())
)
tenant_weights = st.dictionaries(st.sampled_from(TENANTS), st.integers(1, 50) | st.floats(0.001, 9)).map(
    lambda m: "|".join(f"{tenant}:{weight}" for tenant, weight in m.items())
)
counts = st.integers(1, 4096) | st.integers(1, 10**30)
actions = st.sampled_from(["reject", "redirect"])
estimators = st.sampled_from(["tokens", "linear", "attention", "perfect"])
longests = st.integers(1000, 20_000)

PARAMETERS: dict[tuple[str, str], dict[str, st.SearchStrategy[Any]]] = {
    ("ordering", "dfs-weight"): {},
    ("ordering", "edf"): {"ttft": st.none() | milliseconds},
    ("ordering", "fair"): {"weights": tenant_weights},
    ("ordering", "fcfs"): {},
    ("ordering", "hrrn"): {"most": st.none() | counts},
    ("ordering", "k-lpm"): {"k": counts},
    ("ordering", "lars"): {
        "ttft": st.none() | milliseconds,
        "stretch": st.floats(1, 1e6),
        "jct": estimators.filter(lambda jct: jct != "tokens"),
        "longest": longests,
    },
    ("ordering", "lpm"): {},
    ("ordering", "qoserve"): {"ttft": st.none() | milliseconds, "alpha": st.floats(0, 1e6)},
    ("ordering", "srjf-calibrated"): {
        "lam": st.floats(0, allow_infinity=True, allow_nan=False) | st.sampled_from([0.0, 500.0, 0.1, 1e-9, 1e22]),
        "jct": estimators,
        "longest": longests,
    },
    ("ordering", "srjf-static"): {"jct": estimators, "longest": longests},
    ("ordering", "two-lane"): {"short": counts, "wait": milliseconds | st.just(0.0)},
    ("chunking", "deadline-fill"): {
        "tpot": st.none() | milliseconds,
        "cap": counts,
        "margin": margins,
        "margins": tenant_margins,
        "age": milliseconds,
        "overrun": st.floats(0, 1e9),
    },
    ("chunking", "deadline-sum"): {
        "tpot": st.none() | milliseconds,
        "cap": counts,
        "margin": margins,
        "margins": tenant_margins,
        "age": milliseconds,
        "overrun": st.floats(0, 1e9),
    },
    ("chunking", "qoserve"): {
        "tpot": st.none() | milliseconds,
        "grid": st.lists(st.integers(1, 4096), min_size=1, unique=True).map(lambda g: "|".join(map(str, sorted(g)))),
        "margin": margins,
        "per_gap": st.booleans(),
    },
    ("chunking", "deadline-slots"): {
        "tpot": st.none() | milliseconds,
        "cap": counts,
        "margin": margins,
        "margins": tenant_margins,
        "age": milliseconds,
        "overrun": st.floats(0, 1e9),
        "slots": st.integers(1, 40),
    },
    ("chunking", "guarded"): {
        "tpot": st.none() | milliseconds,
        "cap": counts,
        "margin": margins,
        "margins": tenant_margins,
        "age": milliseconds,
        "overrun": st.floats(0, 1e9),
        "window": counts,
    },
    ("chunking", "fixed"): {"chunk": counts},
    ("chunking", "full"): {},
    ("chunking", "p-pas"): {
        "low": st.integers(1, 4096),
        "high": st.integers(4096, 10**30),
        "large": st.none() | counts,
        "seqs": st.none() | counts,
    },
    ("chunking", "token-budget"): {"budget": counts, "seqs": st.none() | counts, "threshold": st.none() | counts},
    ("admission", "decode-saturation"): {
        "fraction": st.floats(0, 10, exclude_min=True),
        "tpot": st.none() | milliseconds,
        "action": actions,
    },
    ("admission", "queue-limit"): {"limit": counts, "action": actions},
}

TOGETHER = {"age": "overrun", "overrun": "age"}
"""Parameters that only make sense with another one."""


@st.composite
def parameters(draw: st.DrawFn, kind: str, name: str) -> dict[str, Any]:
    """Draw values for some of a part's parameters."""
    known = PARAMETERS[kind, name]
    given = {k for k in known if draw(st.booleans())}
    given |= {TOGETHER[k] for k in given if k in TOGETHER}
    return {k: draw(known[k]) for k in known if k in given}


@st.composite
def stored_policies(draw: st.DrawFn) -> dict[str, Any]:
    """Draw a policy in its JSON form, with any built-in parts and parameters."""
    out: dict[str, Any] = {"label": draw(st.sampled_from(["", "mine"]))}
    for kind in registry.KINDS:
        names = sorted(name for k, name in PARAMETERS if k == kind)
        if kind == "admission" and draw(st.booleans()):
            out[kind] = None
            continue
        name = draw(st.sampled_from(names))
        part = registry.find(kind, name)
        params = {f.name: f.default for f in dataclasses.fields(part)}  # type: ignore[arg-type]
        out[kind] = {"name": name, "version": part.version, "params": params | draw(parameters(kind, name))}
    return out
