"""Random traces, cost models, policies and limits.

Everything is on a scale of some tens of nanoseconds per step, so that arrivals, deadlines, ages and horizons often fall
exactly on the end of a step, where an engine that confuses "before" and "at" shows it.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from costmodels import CostModel, LinearCost, with_margin
from policies import ALIASES, Policy, PolicySpec
from sim.engine import simulate
from sim.limits import Limits
from sim.memory import Memory
from sim.objectives import Objectives
from tests.engine.costs import GrowingCost
from tests.seeded import Maker, built, either, fields, just, maybe, pick, rarely, whole
from tests.tables import RunTables
from traces import NONE, Trace

TENANTS = ("interactive", "batch")


def ms(ns: int) -> str:
    """Write a time as a policy string wants it."""
    return f"{ns / 1e6:.6f}"


def traces(
    max_size: int = 16,
    max_prompt: int = 40,
    max_output: int = 40,
    own_objectives: bool = True,
    min_size: int = 1,
) -> Maker:
    """Make a trace with bursts, simultaneous arrivals, idle gaps, outputs of one token and long outputs."""

    def make(seed: random.Random) -> Trace:
        n = seed.randint(min_size, max_size)
        rng = np.random.default_rng(seed.getrandbits(64))
        gap, idle = rng.choice([30, 120, 250, 4, 0]), rng.choice([0.0, 0.0, 0.2])
        one_token, own = rng.choice([0.0, 0.2, 0.0, 1.0]), rng.random(3) < 0.5
        gaps = np.where(rng.random(n) < idle, rng.integers(2000, 3000, n), rng.integers(0, gap + 1, n))
        outputs = np.where(rng.random(n) < one_token, 1, rng.integers(1, max_output + 1, n))
        columns = {}
        for column, has in zip(("slo_ttft_ns", "slo_tpot_ns"), own[:2], strict=True):
            if has and own_objectives:
                columns[column] = np.where(rng.random(n) < 0.3, NONE, rng.integers(10, 400, n))
        if own[2]:
            columns["tenant"] = np.array(TENANTS, dtype=object)[rng.integers(0, 2, n)]
        return Trace(np.cumsum(gaps), rng.integers(1, max_prompt + 1, n), outputs, **columns)

    return make


def such_that(holds: Callable[[Any], bool], maker: Maker) -> Maker:
    """Make until what is made holds."""

    def make(rng: random.Random) -> Any:
        while not holds(made := maker(rng)):
            pass
        return made

    return make


def times(low: int, high: int) -> Maker:
    """Make a time as a policy string wants it."""
    return built(ms, whole(low, high))


small = whole(0, 12)
smaller = whole(0, 4)

LINEAR_COSTS = built(LinearCost, step=whole(1, 12), decode=small, per_decode=small, prefill=small, per_token=small)
GROWING_COSTS = built(
    GrowingCost,
    base=whole(1, 9),
    batch=smaller,
    context=smaller,
    tallest=whole(1, 9),
    tokens=smaller,
    pairs=smaller,
)
CAREFUL_COSTS = built(
    with_margin,
    either(LINEAR_COSTS, GROWING_COSTS),
    either(times(0, 40), pick("0%", "5%", "12.5%", "100%")),
)
COSTS = either(LINEAR_COSTS, GROWING_COSTS, CAREFUL_COSTS)
"""Costs of a few nanoseconds per token: linear, linear in nothing, and either with a constant or relative margin."""


def _joined(name: str, params: dict[str, object]) -> str:
    given = ",".join(f"{k}={v}" for k, v in params.items() if v is not None)
    return f"{name}:{given}" if given else name


def _part(name: str, params: Maker) -> Maker:
    return built(_joined, just(name), params)


ESTIMATORS = pick("tokens", "tokens", "linear", "attention", "perfect")
LAMS = pick("0", "1e6", "2.5e7", "1e8", "333333333.3", "1e9", "inf")

ORDERINGS = {
    "fcfs": just("fcfs"),
    "srjf-static": built("srjf-static:jct={},longest=1000".format, ESTIMATORS),
    "srjf-calibrated": built("srjf-calibrated:lam={},jct={},longest=1000".format, LAMS, ESTIMATORS),
    "lpm": just("lpm"),
    "k-lpm": built("k-lpm:k={}".format, whole(1, 4)),
    "dfs-weight": just("dfs-weight"),
    "hrrn": pick("hrrn", "hrrn:most=3"),
    "lars": _part(
        "lars",
        fields(
            ttft=maybe(times(1, 500)),
            stretch=pick(None, "1.5", "4"),
            jct=pick("linear", "attention", "perfect"),
            longest=just(1000),
        ),
    ),
    "fair": pick("fair", "fair:weights=interactive:3", "fair:weights=interactive:0.5|batch:0.7"),
    "two-lane": built("two-lane:short={},wait={}".format, whole(1, 40), times(0, 500)),
    "qoserve": _part("qoserve", fields(ttft=maybe(times(1, 500)), alpha=pick(0, ms(1), ms(9)))),
    "edf": either(just("edf"), built("edf:ttft={}".format, times(1, 500))),
}
"""Every built-in ordering by name."""

ANY_ORDERING = either(*ORDERINGS.values(), pick("test-hrrn", "test-longest-first"))
"""Every built-in ordering, and two of the tests' own."""

DEADLINES = fields(
    tpot=pick(None, "inf", *map(ms, (25, 60, 110, 170, 250))),
    cap=pick(None, None, 1, 9, 30),
    margin=pick(None, None, ms(0), ms(3), ms(17), "5%", "33.3%"),
    margins=pick(None, "interactive:0.00002", "interactive:0.000005|batch:0.00003"),
)
AGING = pick({}, {"age": ms(20), "overrun": ms(100)}, {"age": ms(1), "overrun": ms(7)})


def deadlines(**more: Maker) -> Maker:
    """Make every parameter of deadline filling, and ``more``."""
    return built(lambda params, aging, own: params | aging | own, DEADLINES, AGING, fields(**more))


BUDGETS = built(
    lambda budget, spare, threshold: {"budget": budget, "seqs": max(1, budget - spare), "threshold": threshold},
    whole(1, 40),
    whole(0, 39),
    pick(None, 1, 4, 9),
)
"""A token budget, seats that it has room for, and a threshold."""

PRESSURES = built(
    lambda low, more, spare, large: {"low": low, "high": low + more, "seqs": max(1, low - spare), "large": large},
    whole(1, 20),
    whole(0, 30),
    whole(0, 19),
    pick(None, 1, 15),
)
"""Two budgets, seats that the lower one has room for, and what is a large prefill."""

CHUNKINGS = {
    "full": just("full"),
    "fixed": pick("fixed", "fixed:chunk=1", "fixed:chunk=7", "fixed:chunk=16"),
    "token-budget": _part("token-budget", BUDGETS),
    "deadline-fill": _part("deadline-fill", deadlines()),
    "deadline-slots": _part("deadline-slots", deadlines(slots=pick(None, 1, 2, 3, 20))),
    "p-pas": _part("p-pas", PRESSURES),
    "deadline-sum": _part("deadline-sum", deadlines()),
    "qoserve": _part(
        "qoserve",
        fields(
            tpot=pick(None, "inf", *map(ms, (25, 60, 110, 170))),
            grid=pick(None, "1", "4|9|16|40", "2|3|30"),
            margin=pick(None, ms(0), ms(3), "5%"),
            per_gap=pick(None, None, True),
        ),
    ),
    "guarded": _part("guarded", deadlines(window=pick(None, 1, 3, 20))),
}
"""Every built-in chunking by name."""

ANY_CHUNKING = either(
    *CHUNKINGS.values(),
    # Twice as often, for they have the most to get wrong.
    CHUNKINGS["token-budget"],
    CHUNKINGS["deadline-fill"],
    pick("test-learning:start=8", "test-pair", "test-capped"),
)
"""Every built-in chunking, and three of the tests' own."""

ACTIONS = pick(None, "reject", "redirect")

ADMISSIONS = {
    "decode-saturation": _part(
        "+decode-saturation",
        fields(fraction=pick(None, 0.5, 1.0), tpot=pick(None, ms(60), ms(110)), action=ACTIONS),
    ),
    "queue-limit": _part("+queue-limit", fields(limit=whole(1, 5), action=ACTIONS)),
}
"""Every built-in admission by name."""

ANY_ADMISSION = either(just(""), just(""), *ADMISSIONS.values())
"""Every built-in admission, and none."""

ANY_ALIAS = either(
    pick(*ALIASES),
    _part("sloweave", deadlines()),
    _part("sarathi", BUDGETS),
    _part("vllm-default", BUDGETS),
    built("prefillonly:lam={}".format, LAMS),
)

POLICIES = either(
    built("{}+{}{}".format, ANY_ORDERING, ANY_CHUNKING, ANY_ADMISSION),
    built("{}+{}{}".format, ANY_ORDERING, ANY_CHUNKING, ANY_ADMISSION),
    built("{}{}".format, ANY_ALIAS, ANY_ADMISSION),
)
"""Every policy."""


@functools.lru_cache(10_000)
def _parsed(policy: str) -> PolicySpec:
    return PolicySpec.parse(policy)


@dataclass(frozen=True)
class Run:
    """Everything that decides a run."""

    trace: Trace
    policy: str
    cost: CostModel
    predictor: CostModel | None = None
    objectives: Objectives | None = None
    limits: Limits = field(default_factory=Limits)
    memory: Memory | None = None

    def build(self) -> Policy:
        return _parsed(self.policy).build()

    def simulate(self, stretch: bool = True) -> RunTables:
        """Run the engine."""
        return simulate(
            self.trace,
            self.build(),
            self.cost,
            predictor=self.predictor,
            objectives=self.objectives,
            limits=self.limits,
            cache=None if self.memory is None else self.memory.build(self.trace),
            stretch=stretch,
        )


OBJECTIVES = built(
    Objectives,
    ttft=maybe(whole(1, 1000)),
    tpot=pick(None, 40, 90, 160),
    tpot_p99=pick(None, 50, 100, 150),
    itl_max=pick(None, 60, 120),
)


def seats(policy: str, rng: random.Random) -> int | None:
    """Limit how many run at once; a budget below the seats is refused, which is another test's business."""
    limit = rng.choice((None, rng.randint(1, 6)))
    return None if "budget" in policy or policy.startswith(("sarathi", "vllm")) else limit


def runs(policy: Maker = POLICIES) -> Maker:
    """Make a run of any policy, or of one that ``policy`` makes."""

    def make(rng: random.Random) -> Run:
        trace, text = traces()(rng), policy(rng)
        cost, predictor, goals = COSTS(rng), maybe(COSTS)(rng), maybe(OBJECTIVES)(rng)
        longest, horizon = rarely(whole(30, 75))(rng), rarely(whole(300, 4000))(rng)
        return Run(trace, text, cost, predictor, goals, Limits(seats(text, rng), longest, horizon))

    return make
