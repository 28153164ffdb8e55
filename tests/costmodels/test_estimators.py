"""What every estimator and its compiled model keep to: scikit-learn's conventions, exactness, monotony, refusals."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GroupKFold, cross_val_score

from costmodels import CostModel, CostModelError, load_cost_model, save_cost_model
from costmodels.boosted_fit import BoostedEstimator
from costmodels.checks import check_cost_model
from costmodels.estimator import StepEstimator
from costmodels.io import cost_model_from_dict
from costmodels.linear_fit import LinearEstimator
from costmodels.nnls_fit import NnlsEstimator
from costmodels.profile import FEATURES
from costmodels.table_fit import TableEstimator
from tests.costmodels.made_profiles import made, violations
from tests.seeded import cases, either, pick, whole, wide

ESTIMATORS: dict[str, StepEstimator] = {
    "linear": LinearEstimator(),
    "nnls": NnlsEstimator(),
    "nnls in tiles": NnlsEstimator(tile=64),
    "table": TableEstimator(),
    "table, upper": TableEstimator(lookup="upper"),
    "boosted": BoostedEstimator(trees=12),
}

STEPS, NS, SHAPES = made(noise=0.05, repeats=2)
FITTED = {name: clone(e).fit(STEPS, NS) for name, e in ESTIMATORS.items()}
COMPILED: dict[str, CostModel] = {name: e.compile(name, "made up") for name, e in FITTED.items()}

every = pytest.mark.parametrize("name", ESTIMATORS)

counts = either(whole(0, 400), wide(400), pick(0, 1, 4, 16, 64, 65))
tokens = either(whole(1, 6000), wide(6000, 1), pick(15, 16, 17, 128, 2048, 2049))
contexts = either(whole(0, 20_000), wide(20_000), pick(0, 64, 512, 4096))


@every
def test_it_is_an_estimator(name: str) -> None:
    estimator = ESTIMATORS[name]
    assert clone(estimator).get_params() == estimator.get_params()
    with pytest.raises(NotFittedError, match="is not fitted yet"):
        clone(estimator).predict(STEPS)
    scores = cross_val_score(estimator, STEPS, NS, groups=SHAPES, cv=GroupKFold(3))
    assert (scores > 0.5).all()


@every
def test_fitting_again_forgets_what_was_fitted_before(name: str) -> None:
    again = clone(ESTIMATORS[name]).fit(STEPS[::2], 3 * NS[::2]).fit(STEPS, NS)
    assert (again.predict(STEPS) == FITTED[name].predict(STEPS)).all()
    frame = pd.DataFrame(STEPS, columns=FEATURES)[[*FEATURES[::-1]]].assign(device="toy")
    assert (again.predict(frame) == again.predict(STEPS)).all()


@every
def test_the_compiled_model_is_the_prediction_rounded_up(name: str) -> None:
    rng = np.random.default_rng(1)
    beyond = (STEPS[rng.integers(0, len(STEPS), 300)] * rng.uniform(0.3, 2.5, (300, 1))).astype(int)
    beyond[:, 5] = np.maximum(beyond[:, 5], beyond[:, 4])
    steps = np.vstack([STEPS, beyond[beyond[:, 0] + beyond[:, 4] > 0]]).astype(int)
    predicted = FITTED[name].predict(steps)
    exact = np.array([COMPILED[name].step_ns(*map(int, step)) for step in steps])
    assert (exact >= predicted - 1e-3).all()
    assert (exact < predicted + 1 + 1e-3).all()


@every
def test_the_compiled_model_passes_the_checks(name: str) -> None:
    assert check_cost_model(COMPILED[name]) == []


@every
def test_time_never_falls(name: str) -> None:
    assert violations(COMPILED[name], 8_000) == 0


@every
def test_the_largest_chunk_is_what_bisection_finds(name: str) -> None:
    model = COMPILED[name]

    @cases(60, counts, contexts, contexts, tokens, tokens, whole(-1, 1))
    def holds(n: int, mean: int, before: int, limit: int, chunk: int, off: int) -> None:
        pairs = chunk * before + chunk * (chunk + 1) // 2
        budget = model.step_ns(n, n * mean, mean * (n > 0), 1, chunk, pairs) + off
        asked = (n, n * mean, mean * (n > 0), before, limit, budget)
        assert model.max_chunk(*asked) == CostModel.max_chunk(model, *asked)

    holds()


@every
def test_a_run_of_decodes_is_step_by_step(name: str) -> None:
    model = COMPILED[name]

    @cases(60, wide(300, 1), wide(9000, 1), lambda rng: rng.choice([0, 1, rng.random(), rng.random()]), wide(80))
    def holds(n: int, longest: int, share: float, steps: int) -> None:
        asked = (n, longest + int((n - 1) * longest * share), longest, steps)
        assert model.decode_run_ns(*asked).tolist() == CostModel.decode_run_ns(model, *asked).tolist()

    holds()


@every
def test_json_gives_the_model_back(name: str, tmp_path: Path) -> None:
    model = COMPILED[name]
    assert cost_model_from_dict(json.loads(json.dumps(model.to_dict(), allow_nan=False))) == model
    save_cost_model(model, tmp_path / "m.json")
    assert load_cost_model(str(tmp_path / "m.json")) == model
    hash(model)


def changed(column: int, value: float, row: int = 3) -> Any:
    steps = STEPS.copy()
    steps[row, column] = value
    return steps


BAD: dict[str, tuple[Any, Any, str]] = {
    "negative feature": (changed(4, -1), NS, "prefill_tokens of row 3 is -1; it must be a number, at least 0"),
    "missing feature": (changed(1, np.nan), NS, "decode_context of row 3 is nan"),
    "endless feature": (changed(0, np.inf), NS, "n_decode of row 3 is inf"),
    "text": (STEPS.astype(str).astype(object) + "x", NS, "the features hold what is not a number"),
    "five columns": (STEPS[:, :5], NS, "features of shape"),
    "column missing": (pd.DataFrame(STEPS[:, :5], columns=FEATURES[:5]), NS, "column prefill_pairs is missing"),
    "negative duration": (STEPS, -NS, "duration_ns of row 0 is -"),
    "zero duration": (STEPS, 0 * NS, "duration_ns of row 0 is 0; it must be a number of nanoseconds above 0"),
    "missing duration": (STEPS, NS * np.nan, "duration_ns of row 0 is nan"),
    "rows too few": (STEPS, NS[:-1], "durations of shape"),
    "one shape": (STEPS[:2], NS[:2], "the 2 rows are of one shape; a fit needs several"),
    "nothing": (STEPS[:0], NS[:0], "the 0 rows are of one shape"),
}


@every
@pytest.mark.parametrize("case", BAD)
def test_a_profile_that_makes_no_sense_is_refused(name: str, case: str) -> None:
    steps, ns, message = BAD[case]
    with pytest.raises(CostModelError, match=re.escape(message)) as e:
        clone(ESTIMATORS[name]).fit(steps, ns)
    assert "\n" not in str(e.value)


@every
@pytest.mark.parametrize("column", range(6))
def test_a_constant_column_is_not_in_the_way(name: str, column: int) -> None:
    """What a profile never varies cannot be priced; the rest is."""
    steps = STEPS.copy()
    steps[:, column] = steps[0, column] if column not in (0, 4) else 1
    fitted = clone(ESTIMATORS[name]).fit(steps, NS)
    assert np.isfinite(fitted.predict(steps)).all()
    assert check_cost_model(fitted.compile("flat")) == []


@pytest.mark.parametrize(
    ("estimator", "message"),
    [
        (NnlsEstimator(tile=0), "tile is 0; it must be a whole number, at least 1"),
        (TableEstimator(lookup="nearest"), "lookup is 'nearest'; it must be interpolate or upper"),
        (TableEstimator(most_knots=1), "most_knots is 1; it must be at least 3"),
        (BoostedEstimator(share=0), "share is 0; it must be above 0 and at most 1"),
    ],
)
def test_a_parameter_out_of_range_is_refused(estimator: StepEstimator, message: str) -> None:
    with pytest.raises(CostModelError, match=re.escape(message)):
        estimator.fit(STEPS, NS)
