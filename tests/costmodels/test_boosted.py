"""Boosted residuals: monotone by their constraints, exact without scikit-learn, and what scikit-learn does not keep."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from sklearn.ensemble import HistGradientBoostingRegressor
from threadpoolctl import threadpool_limits

from costmodels import CostModelError
from costmodels.boosted import BoostedCost, Tree, trees_ns
from costmodels.boosted_fit import BoostedEstimator
from costmodels.io import cost_model_from_dict
from costmodels.nnls_fit import NnlsEstimator
from tests.costmodels.made_profiles import made, relative_errors


def test_trees_take_up_what_the_closed_form_cannot_say() -> None:
    steps, ns, _ = made()
    # Half of the step twice: once a batch is full, as with another kernel.
    odd = ns * np.where((steps[:, 0] >= 16) & (steps[:, 4] > 0), 1.6, 1.0)
    closed, boosted = NnlsEstimator().fit(steps, odd), BoostedEstimator(least_rows=2).fit(steps, odd)
    assert relative_errors(boosted, steps, odd).mean() < 0.5 * relative_errors(closed, steps, odd).mean()


def _falls(loss: str) -> bool:
    """Say whether a fit that must rise with the first feature falls.

    Where the second feature is 1, 12 % of the small values are very large and 15 % of the large ones fairly large: the
    gradient of the 90 % quantile rises with the first feature, the quantile itself falls.
    """
    rng = np.random.default_rng(3)
    x, z, chance = rng.uniform(0, 1, 4000), rng.integers(0, 2, 4000), rng.uniform(0, 1, 4000)
    y = rng.uniform(0, 1, 4000)
    y[(z == 1) & (x < 0.5) & (chance < 0.12)] += 100
    y[(z == 1) & (x >= 0.5) & (chance < 0.15)] += 10
    extra = {"quantile": 0.9} if loss == "quantile" else {}
    with threadpool_limits(limits=1):
        model = HistGradientBoostingRegressor(loss=loss, monotonic_cst=[1, 0], max_iter=30, **extra)
        predicted = model.fit(np.column_stack([x, z]), y).predict(np.column_stack([np.sort(x), np.ones(4000)]))
        return bool((np.diff(predicted) < 0).any())


def test_scikit_learn_does_not_keep_monotone_constraints_with_the_quantile_loss() -> None:
    """Leaf values are replaced after a tree is grown, with no eye to the constraints; so the loss here is squared.

    When this fails, scikit-learn has changed, and a P99 could be learned directly.
    """
    assert _falls("quantile")
    assert not _falls("squared_error")


def test_nested_conditions_and_flat_arrays_agree() -> None:
    tree = Tree((4, -1, 6, -1, -1), (10, 0, 20, 0, 0), (1, 0, 3, 0, 0), (2, 0, 4, 0, 0), (0, -5, 0, 7, 9))
    model = BoostedCost("toy", trees=(tree, tree))
    for tokens, n, value in ((10, 50, -5), (11, 9, 7), (11, 10, 9)):
        row = np.array([[n, 0, 0, 1, tokens, tokens, n + tokens, 0]])
        assert trees_ns((tree, tree), row)[0] == 2 * value
        assert model.step_ns(n, 0, 0, 1, tokens, tokens) == max(1, 1 + 2 * value)


GOOD: dict[str, Any] = BoostedCost(trees=(Tree((0, -1, -1), (3, 0, 0), (1, 0, 0), (2, 0, 0), (0, 1, 2)),)).to_dict()


def tree(**change: list[Any]) -> dict[str, Any]:
    return {"trees": [GOOD["trees"][0] | change]}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (tree(left=[0, 0, 0]), "tree 0: node 0 has the child 0; children come after their parents"),
        (tree(right=[3, 0, 0]), "tree 0: 3 is no node of it"),
        (tree(values=[0, 1]), "tree 0: its arrays must be of one length"),
        (tree(values=[0, 1, 1.5]), "tree 0: it must hold whole numbers"),
        (tree(thresholds=["__import__('os')", 0, 0]), "tree 0: it must hold whole numbers"),
        (tree(inputs=[9, -1, -1]), "tree 0: an input must be -1 to 7"),
        (tree(values=[0, 1, 10**13]), "node 2 has a value beyond 1,000 s"),
        (tree(depth=[1]), "unknown field depth"),
        ({"trees": [3]}, "tree 0 is a number; it must be an object"),
        ({"base": {"kind": "table"}}, "base: batches is missing"),
        ({"version": 2}, "it was written by a newer version"),
    ],
)
def test_a_model_that_makes_no_sense_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(CostModelError, match=re.escape(message)):
        cost_model_from_dict(GOOD | change)


def test_a_tree_is_not_deeper_than_the_parser() -> None:
    size = 120
    inputs = [0, -1] * size
    deep = Tree(
        (*inputs, -1),
        (0,) * (2 * size + 1),
        tuple([v for k in range(size) for v in (2 * k + 1, 0)] + [0]),
        tuple([v for k in range(size) for v in (2 * k + 2, 0)] + [0]),
        (0,) * (2 * size + 1),
    )
    with pytest.raises(CostModelError, match="it is deeper than 40"):
        BoostedCost(trees=(deep,))
