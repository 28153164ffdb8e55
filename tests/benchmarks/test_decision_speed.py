"""A decision of calibrated SRJF against Algorithm 1's full rescan in the same run; ``make bench`` prints the curve."""

import statistics

import numpy as np
import pytest

from experiments.prefillonly.decisions import ORDERS, REGIMES, USERS, Load, Order, Regime, measure
from tests.benchmarks.bare import Bench

pytestmark = pytest.mark.benchmarks

REPEATS = 3


@pytest.mark.parametrize("regime", REGIMES)
@pytest.mark.parametrize("order", ORDERS)
def test_a_decision_over_the_number_of_users(order: Order, regime: Regime, bench: Bench) -> None:
    """At most 1/50 of the rescan with 10,000 waiting, 200 users of 50 requests; logarithmic in the users.

    Over these sizes the logarithm of the queue's depth grows like the power 0.13 of the users, and the rescan like the
    power 1; between them lies 0.87, were all memory equally fast. By turns a decision reads some 147 requests again, so
    it cannot do with less than 1/68 of looking at 10,000.
    """
    rounds = [[measure(Load(n, order=order, regime=regime)) for n in USERS] for _ in range(REPEATS)]
    ratios = []
    for rows in zip(*rounds, strict=True):
        heap, rescan, ratio = (statistics.median(r[c] for r in rows) for c in ("heap_ns", "rescan_ns", "ratio"))
        told = f"{1e9 / heap:,.0f} decisions/s, {rescan / 1e3:,.0f} µs per rescan, {ratio:.1f} times"
        bench(f"decisions {order}, {regime}, {rows[0]['waiting']} waiting", told, "")
        ratios.append(ratio)
    power = np.polyfit(np.log(USERS), np.log(ratios), 1)[0]
    bench(f"decisions {order}, {regime}: power of the users", f"{power:.2f}", "> 0.75")
    assert power > 0.75
    assert ratios[USERS.index(200)] >= (50 if order == "by user" else 15)
