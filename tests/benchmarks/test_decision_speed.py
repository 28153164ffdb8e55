"""A decision of calibrated SRJF against Algorithm 1's full rescan in the same run; ``make bench`` prints the curve."""

import statistics

import numpy as np
import pytest

from experiments.prefillonly.decisions import ORDERS, REGIMES, USERS, Load, Order, Regime, measure

pytestmark = pytest.mark.benchmarks

REPEATS = 3


@pytest.mark.parametrize("regime", REGIMES)
@pytest.mark.parametrize("order", ORDERS)
def test_a_decision_over_the_number_of_users(order: Order, regime: Regime, capsys: pytest.CaptureFixture[str]) -> None:
    """At most 1/50 of the rescan with 10,000 waiting, 200 users of 50 requests; logarithmic in the users.

    Over these sizes the logarithm of the queue's depth grows like the power 0.13 of the users, and the rescan like the
    power 1; between them lies 0.87, were all memory equally fast. By turns a decision reads some 147 requests again, so
    it cannot do with less than 1/68 of looking at 10,000.
    """
    rounds = [[measure(Load(n, order=order, regime=regime)) for n in USERS] for _ in range(REPEATS)]
    ratios = []
    with capsys.disabled():
        print(f"\n{order}, {regime}: users, waiting, touched, µs per decision, µs per rescan, ratio")
        for rows in zip(*rounds, strict=True):
            heap, rescan, ratio = (statistics.median(r[c] for r in rows) for c in ("heap_ns", "rescan_ns", "ratio"))
            users, waiting, touched = (rows[0][c] for c in ("users", "waiting", "touched"))
            print(f"{users:5} {waiting:6} {touched:6.1f} {heap / 1e3:8.1f} {rescan / 1e3:8.0f} {ratio:6.1f}")
            ratios.append(ratio)
        power = np.polyfit(np.log(USERS), np.log(ratios), 1)[0]
        print(f"the ratio grows like the power {power:.2f} of the users")
    assert power > 0.75
    assert ratios[USERS.index(200)] >= (50 if order == "by user" else 15)
