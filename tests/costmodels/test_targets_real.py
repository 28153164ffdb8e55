"""How well steps composed from measured kernels are predicted: held-out shapes, margins, monotony."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.model_selection import GroupKFold, cross_val_predict

from costmodels.boosted_fit import BoostedEstimator
from costmodels.conformal import split_conformal
from costmodels.estimator import StepEstimator
from costmodels.hardware import load_llm
from costmodels.kernels import compose_profile, step_grid
from costmodels.kernels_csv import read_csv_kernels
from costmodels.linear_fit import LinearEstimator
from costmodels.nnls_fit import NnlsEstimator
from costmodels.profile import FEATURES
from costmodels.table_fit import TableEstimator
from tests.costmodels.made_profiles import violations

pytestmark = pytest.mark.real

# Mean relative error and the mean of the worst tenth, over held-out shapes; None: not asked for.
TARGETS: dict[str, tuple[StepEstimator, float | None, float | None]] = {
    "linear": (LinearEstimator(), None, None),
    "nnls": (NnlsEstimator(), 0.12, None),
    "table": (TableEstimator(), 0.03, None),
    "boosted": (BoostedEstimator(), 0.03, 0.10),
}


@pytest.fixture(scope="module")
def rows() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    shared = Path(os.environ.get("PREFILLSIM_MEASURED", Path(__file__).parents[3] / "shared" / "measured"))
    folder = shared / "rtx4090-llama3.1-8b"
    if not folder.is_dir():
        pytest.skip("the kernel tables are neither in $PREFILLSIM_MEASURED nor in ../shared/measured")
    # The table ends at 2,048 tokens of a step, 256 of them decodes.
    grid = step_grid(chunks=(0, 16, 64, 128, 256, 512, 1024, 1536, 1792))
    profile = compose_profile(read_csv_kernels(folder, load_llm("llama-3.1-8b")), grid)
    frame = profile.frame
    return frame[list(FEATURES)].to_numpy(float), frame["duration_ns"].to_numpy(float), profile.shape


@pytest.mark.parametrize("name", TARGETS)
def test_held_out_shapes(name: str, rows: tuple[np.ndarray, np.ndarray, np.ndarray]) -> None:
    estimator, most, worst = TARGETS[name]
    steps, ns, shapes = rows
    folds = GroupKFold(5, shuffle=True, random_state=0)
    error = np.sort(np.abs(cross_val_predict(clone(estimator), steps, ns, groups=shapes, cv=folds) / ns - 1))
    assert most is None or error.mean() <= most
    assert worst is None or error[-len(error) // 10 :].mean() <= worst


@pytest.mark.parametrize("name", TARGETS)
def test_100_000_random_pairs(name: str, rows: tuple[np.ndarray, np.ndarray, np.ndarray]) -> None:
    model = clone(TARGETS[name][0]).fit(*rows[:2]).compile(name)
    assert violations(model, 100_000) == 0


@pytest.mark.parametrize("name", ["nnls", "table"])
def test_the_conformal_p99_covers_99_per_cent(name: str, rows: tuple[np.ndarray, np.ndarray, np.ndarray]) -> None:
    """Mean over 20 splits into rows that a model and its margin are made of, and rows that they must cover."""
    steps, ns, _ = rows
    covered = []
    for seed in range(20):
        order = np.random.default_rng(seed).permutation(len(ns))
        seen, held = order[: 2 * len(ns) // 3], order[2 * len(ns) // 3 :]
        model, share = split_conformal(TARGETS[name][0], steps[seen], ns[seen], 0.99, held_out=0.4, seed=seed)
        covered.append(np.mean(ns[held] <= model.predict(steps[held]) * (1 + float(share))))
    assert abs(np.mean(covered) - 0.99) <= 0.005
