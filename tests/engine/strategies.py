"""Random traces, cost models, policies and limits.

Everything is on a scale of some tens of nanoseconds per step, so that arrivals, deadlines, ages and horizons often fall
exactly on the end of a step, where an engine that confuses "before" and "at" shows it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from hypothesis import strategies as st

from costmodels import CostModel, LinearCost, with_margin
from policies import ALIASES, Policy, parse_policy
from sim.engine import Limits, simulate
from sim.memory import Memory
from sim.objectives import Objectives
from tests.engine.costs import GrowingCost
from tests.tables import RunTables
from traces import NONE, Trace

TENANTS = ("interactive", "batch")


def ms(ns: int) -> str:
    """Write a time as a policy string wants it."""
    return f"{ns / 1e6:.6f}"


def maybe(strategy: st.SearchStrategy) -> st.SearchStrategy:
    """Draw ``None`` in a half of all cases."""
    return st.one_of(st.none(), strategy)


def rarely(strategy: st.SearchStrategy) -> st.SearchStrategy:
    """Draw ``None`` in five cases of six."""
    return st.builds(lambda chance, value: None if chance else value, st.integers(0, 5), strategy)


def traces(
    max_size: int = 16,
    max_prompt: int = 40,
    max_output: int = 40,
    own_objectives: bool = True,
    min_size: int = 1,
) -> st.SearchStrategy[Trace]:
    """Draw a trace with bursts, simultaneous arrivals, idle gaps, outputs of one token and long outputs.

    Hypothesis chooses the size and the scales; the values come from a seed that it draws, which is a tenth of the work
    of drawing each and still shrinks to few requests.
    """

    def make(n: int, gap: int, idle: float, one_token: float, own: tuple[bool, bool, bool], seed: int) -> Trace:
        rng = np.random.default_rng(seed)
        gaps = np.where(rng.random(n) < idle, rng.integers(2000, 3000, n), rng.integers(0, gap + 1, n))
        outputs = np.where(rng.random(n) < one_token, 1, rng.integers(1, max_output + 1, n))
        columns = {}
        for column, has in zip(("slo_ttft_ns", "slo_tpot_ns"), own[:2], strict=True):
            if has and own_objectives:
                columns[column] = np.where(rng.random(n) < 0.3, NONE, rng.integers(10, 400, n))
        if own[2]:
            columns["tenant"] = np.array(TENANTS, dtype=object)[rng.integers(0, 2, n)]
        return Trace(np.cumsum(gaps), rng.integers(1, max_prompt + 1, n), outputs, **columns)

    return st.builds(
        make,
        st.integers(min_size, max_size),
        st.sampled_from([30, 120, 250, 4, 0]),
        st.sampled_from([0.0, 0.0, 0.2]),
        st.sampled_from([0.0, 0.2, 0.0, 1.0]),
        st.tuples(st.booleans(), st.booleans(), st.booleans()),
        st.integers(0, 2**32),
    )


small = st.integers(0, 12)
smaller = st.integers(0, 4)

linear_costs = st.builds(
    LinearCost, step=st.integers(1, 12), decode=small, per_decode=small, prefill=small, per_token=small
)
"""Linear costs of a few nanoseconds per token."""

growing_costs = st.builds(
    GrowingCost,
    base=st.integers(1, 9),
    batch=smaller,
    context=smaller,
    tallest=st.integers(1, 9),
    tokens=smaller,
    pairs=smaller,
)
"""Costs that grow with the batch, the contexts and the pairs, and are linear in none."""

careful_costs = st.builds(
    with_margin,
    st.one_of(linear_costs, growing_costs),
    st.one_of(st.integers(0, 40).map(ms), st.sampled_from(["0%", "5%", "12.5%", "100%"])),
)
"""Either with a constant or relative margin."""

costs = st.one_of(linear_costs, growing_costs, careful_costs)


def _joined(name: str, params: dict[str, object]) -> str:
    given = ",".join(f"{k}={v}" for k, v in params.items() if v is not None)
    return f"{name}:{given}" if given else name


def _part(name: str, params: st.SearchStrategy[dict[str, object]]) -> st.SearchStrategy[str]:
    return params.map(lambda drawn: _joined(name, drawn))


estimators = st.sampled_from(["tokens", "tokens", "linear", "attention", "perfect"])
lams = st.sampled_from(["0", "1e6", "2.5e7", "1e8", "333333333.3", "1e9", "inf"])

ORDERINGS = {
    "fcfs": st.just("fcfs"),
    "srjf-static": estimators.map(lambda jct: f"srjf-static:jct={jct},longest=1000"),
    "srjf-calibrated": st.builds("srjf-calibrated:lam={},jct={},longest=1000".format, lams, estimators),
    "lpm": st.just("lpm"),
    "k-lpm": st.integers(1, 4).map("k-lpm:k={}".format),
    "dfs-weight": st.just("dfs-weight"),
    "hrrn": st.sampled_from(["hrrn", "hrrn:most=3"]),
    "lars": st.builds(
        lambda ttft, stretch, jct: _joined("lars", {"ttft": ttft, "stretch": stretch, "jct": jct, "longest": 1000}),
        maybe(st.integers(1, 500).map(ms)),
        st.sampled_from([None, "1.5", "4"]),
        st.sampled_from(["linear", "attention", "perfect"]),
    ),
    "fair": st.sampled_from(["fair", "fair:weights=interactive:3", "fair:weights=interactive:0.5|batch:0.7"]),
    "two-lane": st.builds("two-lane:short={},wait={}".format, st.integers(1, 40), st.integers(0, 500).map(ms)),
    "qoserve": st.builds(
        lambda ttft, alpha: _joined("qoserve", {"ttft": ttft, "alpha": alpha}),
        maybe(st.integers(1, 500).map(ms)),
        st.sampled_from([0, ms(1), ms(9)]),
    ),
    "edf": st.one_of(st.just("edf"), st.integers(1, 500).map(lambda ns: f"edf:ttft={ms(ns)}")),
}
"""Every built-in ordering by name."""

orderings = st.one_of(*ORDERINGS.values(), st.sampled_from(["test-hrrn", "test-longest-first"]))
"""Every built-in ordering, and two of the tests' own."""

deadline_params = st.builds(
    lambda params, aging: params | aging,
    st.fixed_dictionaries(
        {
            "tpot": st.sampled_from([None, "inf", *map(ms, (25, 60, 110, 170, 250))]),
            "cap": st.sampled_from([None, None, 1, 9, 30]),
            "margin": st.sampled_from([None, None, ms(0), ms(3), ms(17), "5%", "33.3%"]),
            "margins": st.sampled_from([None, "interactive:0.00002", "interactive:0.000005|batch:0.00003"]),
        }
    ),
    st.sampled_from([{}, {"age": ms(20), "overrun": ms(100)}, {"age": ms(1), "overrun": ms(7)}]),
)
"""Every parameter of deadline filling."""

budget_params = st.builds(
    lambda budget, spare, threshold: {"budget": budget, "seqs": max(1, budget - spare), "threshold": threshold},
    st.integers(1, 40),
    st.integers(0, 39),
    st.sampled_from([None, 1, 4, 9]),
)
"""A token budget, seats that it has room for, and a threshold."""

pressures = st.builds(
    lambda low, more, spare, large: {"low": low, "high": low + more, "seqs": max(1, low - spare), "large": large},
    st.integers(1, 20),
    st.integers(0, 30),
    st.integers(0, 19),
    st.sampled_from([None, 1, 15]),
)
"""Two budgets, seats that the lower one has room for, and what is a large prefill."""

CHUNKINGS = {
    "full": st.just("full"),
    "fixed": st.sampled_from(["fixed", "fixed:chunk=1", "fixed:chunk=7", "fixed:chunk=16"]),
    "token-budget": _part("token-budget", budget_params),
    "deadline-fill": _part("deadline-fill", deadline_params),
    "deadline-slots": _part(
        "deadline-slots",
        st.builds(
            lambda params, slots: params | {"slots": slots}, deadline_params, st.sampled_from([None, 1, 2, 3, 20])
        ),
    ),
    "p-pas": _part("p-pas", pressures),
    "deadline-sum": _part("deadline-sum", deadline_params),
    "qoserve": _part(
        "qoserve",
        st.fixed_dictionaries(
            {
                "tpot": st.sampled_from([None, "inf", *map(ms, (25, 60, 110, 170))]),
                "grid": st.sampled_from([None, "1", "4|9|16|40", "2|3|30"]),
                "margin": st.sampled_from([None, ms(0), ms(3), "5%"]),
                "per_gap": st.sampled_from([None, None, True]),
            }
        ),
    ),
    "guarded": _part(
        "guarded",
        st.builds(
            lambda params, window: params | {"window": window}, deadline_params, st.sampled_from([None, 1, 3, 20])
        ),
    ),
}
"""Every built-in chunking by name."""

chunkings = st.one_of(
    *CHUNKINGS.values(),
    # Twice as often, for they have the most to get wrong; ``one_of`` would count the same object once.
    CHUNKINGS["token-budget"].map(str),
    CHUNKINGS["deadline-fill"].map(str),
    st.sampled_from(["test-learning:start=8", "test-pair"]),
)
"""Every built-in chunking, and two of the tests' own."""

actions = st.sampled_from([None, "reject", "redirect"])

ADMISSIONS = {
    "decode-saturation": _part(
        "+decode-saturation",
        st.fixed_dictionaries(
            {
                "fraction": st.sampled_from([None, 0.5, 1.0]),
                "tpot": st.sampled_from([None, ms(60), ms(110)]),
                "action": actions,
            }
        ),
    ),
    "queue-limit": _part("+queue-limit", st.fixed_dictionaries({"limit": st.integers(1, 5), "action": actions})),
}
"""Every built-in admission by name."""

admissions = st.one_of(st.just(""), st.just(""), *ADMISSIONS.values())
"""Every built-in admission, and none."""

aliases = st.one_of(
    st.sampled_from(list(ALIASES)),
    _part("sloweave", deadline_params),
    _part("sarathi", budget_params),
    _part("vllm-default", budget_params),
    lams.map(lambda lam: f"prefillonly:lam={lam}"),
)

policies = st.one_of(
    st.builds("{}+{}{}".format, orderings, chunkings, admissions),
    st.builds("{}+{}{}".format, orderings, chunkings, admissions),
    st.builds("{}{}".format, aliases, admissions),
)
"""Every policy."""


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
        return parse_policy(self.policy)

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


objectives = st.builds(
    Objectives,
    ttft=st.one_of(st.none(), st.integers(1, 1000)),
    tpot=st.sampled_from([None, 40, 90, 160]),
    tpot_p99=st.sampled_from([None, 50, 100, 150]),
    itl_max=st.sampled_from([None, 60, 120]),
)


def _run(
    trace: Trace,
    policy: str,
    cost: CostModel,
    predictor: CostModel | None,
    goals: Objectives | None,
    seats: int | None,
    longest: int | None,
    horizon: int | None,
) -> Run:
    # A budget below the seats is refused, which is another test's business.
    if "budget" in policy or policy.startswith(("sarathi", "vllm")):
        seats = None
    return Run(trace, policy, cost, predictor, goals, Limits(seats, longest, horizon))


def runs(policy: st.SearchStrategy[str] = policies) -> st.SearchStrategy[Run]:
    """Draw a run of any policy, or of one that ``policy`` draws."""
    return st.builds(
        _run,
        traces(),
        policy,
        costs,
        maybe(costs),
        maybe(objectives),
        maybe(st.integers(1, 6)),
        rarely(st.integers(30, 75)),
        rarely(st.integers(300, 4000)),
    )
