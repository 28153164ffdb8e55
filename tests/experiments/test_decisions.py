"""The measurement of a decision's cost: what it serves is what it says; times are a benchmark's business."""

from __future__ import annotations

import pytest

from experiments.prefillonly import decisions
from experiments.prefillonly.decisions import ORDERS, REGIMES, Load, Order, Regime, decision_table, measure


@pytest.mark.parametrize("regime", REGIMES)
@pytest.mark.parametrize("order", ORDERS)
def test_every_decision_is_compared_with_a_rescan(order: Order, regime: Regime) -> None:
    row = measure(Load(8, per_user=10, order=order, regime=regime), decisions=8, rescans=8)
    assert (row["users"], row["waiting"], row["order"], row["regime"]) == (8, 80, order, regime)
    assert row["heap_ns"] > 0 < row["rescan_ns"]
    # By turns a profile comes and at least one goes; by user nothing changes until the user is done.
    assert row["touched"] > 12 if order == "by turns" else row["touched"] < 3


def test_a_heap_that_goes_wrong_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decisions.PolicyQueue, "reread", lambda queue, numbers, hit_tokens: False)
    with pytest.raises(RuntimeError, match="the heap takes request"):
        measure(Load(8, per_user=10, order="by user"), decisions=8, rescans=8)


def test_the_table_has_a_row_for_each_combination() -> None:
    rows = decision_table(users=(5, 6), orders=("by user",), decisions=3)
    assert [(r["regime"], r["users"]) for r in rows] == [(regime, n) for regime in REGIMES for n in (5, 6)]
