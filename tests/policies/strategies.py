"""Random requests, and random parameters of every built-in part."""

from __future__ import annotations

import dataclasses
import math
import random
from typing import Any

from policies import RequestView, registry
from tests.seeded import Maker, built, either, just, maybe, pick, whole, wide

MS = 1_000_000

TENANTS = ("interactive", "batch", "café")


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


def real(low: float, high: float) -> Maker:
    """Make a number between two: an end, or one of any size, with few digits or with all."""
    least, most = math.log(max(low, 5e-324)), math.log(high)

    def make(rng: random.Random) -> float:
        any_size = math.exp(rng.uniform(least, most))
        made = rng.choice([low, high, any_size, any_size, float(f"{any_size:.2g}"), rng.uniform(low, high)])
        return min(max(made, low), high)

    return make


def by_tenant(*values: Maker) -> Maker:
    """Make a text of some tenants and their values, or of none."""

    def make(rng: random.Random) -> str:
        tenants = rng.sample(TENANTS, rng.randint(0, len(TENANTS)))
        return "|".join(f"{tenant}:{either(*values)(rng)}" for tenant in tenants)

    return make


milliseconds = either(real(1e-6, 1e6), built(float, whole(1, 1000)), just(float("inf")))
margins = either(
    built(str, whole(0, 99)),
    built(lambda us: f"{us / 1000:.3f}", wide(99_000)),
    built("{}%".format, wide(300)),
    pick("p50", "p90", "p99", "p99.9"),
)
tenant_margins = by_tenant(whole(0, 50), real(0, 9))
tenant_weights = by_tenant(whole(1, 50), real(0.001, 9))
counts = either(whole(1, 4096), wide(10**30, 1))
actions = pick("reject", "redirect")
longests = whole(1000, 20_000)


def grid(rng: random.Random) -> str:
    sizes = rng.sample(range(1, 4097), rng.choice([1, 2, 3, 12]))
    return "|".join(map(str, sorted(sizes)))


PARAMETERS: dict[tuple[str, str], dict[str, Maker]] = {
    ("ordering", "dfs-weight"): {},
    ("ordering", "edf"): {"ttft": maybe(milliseconds)},
    ("ordering", "fair"): {"weights": tenant_weights},
    ("ordering", "fcfs"): {},
    ("ordering", "hrrn"): {"most": maybe(counts)},
    ("ordering", "k-lpm"): {"k": counts},
    ("ordering", "lars"): {
        "ttft": maybe(milliseconds),
        "stretch": real(1, 1e6),
        "jct": pick("linear", "attention", "perfect"),
        "longest": longests,
    },
    ("ordering", "lpm"): {},
    ("ordering", "qoserve"): {"ttft": maybe(milliseconds), "alpha": real(0, 1e6)},
    ("ordering", "srjf-calibrated"): {
        "lam": either(pick(0.0, 500.0, 0.1, 1e-9, 1e22, float("inf")), real(0, 1.7976931348623157e308)),
        "jct": pick("tokens", "linear", "attention", "perfect"),
        "longest": longests,
    },
    ("ordering", "srjf-static"): {"jct": pick("tokens", "linear", "attention", "perfect"), "longest": longests},
    ("ordering", "two-lane"): {"short": counts, "wait": either(milliseconds, just(0.0))},
    ("chunking", "deadline-fill"): {
        "tpot": maybe(milliseconds),
        "cap": counts,
        "margin": margins,
        "margins": tenant_margins,
        "age": milliseconds,
        "overrun": real(0, 1e9),
    },
    ("chunking", "deadline-sum"): {
        "tpot": maybe(milliseconds),
        "cap": counts,
        "margin": margins,
        "margins": tenant_margins,
        "age": milliseconds,
        "overrun": real(0, 1e9),
    },
    ("chunking", "qoserve"): {
        "tpot": maybe(milliseconds),
        "grid": grid,
        "margin": margins,
        "per_gap": pick(False, True),
    },
    ("chunking", "deadline-slots"): {
        "tpot": maybe(milliseconds),
        "cap": counts,
        "margin": margins,
        "margins": tenant_margins,
        "age": milliseconds,
        "overrun": real(0, 1e9),
        "slots": whole(1, 40),
    },
    ("chunking", "guarded"): {
        "tpot": maybe(milliseconds),
        "cap": counts,
        "margin": margins,
        "margins": tenant_margins,
        "age": milliseconds,
        "overrun": real(0, 1e9),
        "window": counts,
    },
    ("chunking", "fixed"): {"chunk": counts},
    ("chunking", "full"): {},
    ("chunking", "p-pas"): {
        "low": whole(1, 4096),
        "high": wide(10**30, 4096),
        "large": maybe(counts),
        "seqs": maybe(counts),
    },
    ("chunking", "token-budget"): {"budget": counts, "seqs": maybe(counts), "threshold": maybe(counts)},
    ("admission", "decode-saturation"): {
        "fraction": real(5e-324, 10),
        "tpot": maybe(milliseconds),
        "action": actions,
    },
    ("admission", "queue-limit"): {"limit": counts, "action": actions},
}

TOGETHER = {"age": "overrun", "overrun": "age"}
"""Parameters that only make sense with another one."""


def parameters(kind: str, name: str) -> Maker:
    """Make values for some of a part's parameters."""
    known = PARAMETERS[kind, name]

    def make(rng: random.Random) -> dict[str, Any]:
        given = {k for k in known if rng.random() < 0.5}
        given |= {TOGETHER[k] for k in given if k in TOGETHER}
        return {k: known[k](rng) for k in known if k in given}

    return make


def stored_policy(rng: random.Random) -> dict[str, Any]:
    """Make a policy in its JSON form, with any built-in parts and parameters."""
    out: dict[str, Any] = {"label": rng.choice(["", "mine"])}
    for kind in registry.KINDS:
        names = sorted(name for k, name in PARAMETERS if k == kind)
        if kind == "admission" and rng.random() < 0.5:
            out[kind] = None
            continue
        name = rng.choice(names)
        part = registry.find(kind, name)
        params = {f.name: f.default for f in dataclasses.fields(part)}  # type: ignore[arg-type]
        out[kind] = {"name": name, "version": part.version, "params": params | parameters(kind, name)(rng)}
    return out
