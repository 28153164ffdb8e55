"""Fits every estimator to a profile, scores each on shapes that it has not seen, and picks one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.model_selection import GroupKFold, GroupShuffleSplit, cross_val_predict

from costmodels.base import CostModel
from costmodels.boosted_fit import BoostedEstimator
from costmodels.calibrated import CalibratedCost, WithResiduals
from costmodels.checks import check_cost_model
from costmodels.conformal import calibrate as fit_with_margins
from costmodels.conformal import residual_table, split_conformal
from costmodels.estimator import StepEstimator
from costmodels.linear_fit import LinearEstimator
from costmodels.nnls_fit import NnlsEstimator
from costmodels.profile import FEATURES, Profile
from costmodels.table_fit import TableEstimator
from experiments.config import ConfigError
from experiments.orders import PAIRS, count_falls
from policies.registry import nearest

ESTIMATORS: dict[str, Callable[[], StepEstimator]] = {
    "linear": LinearEstimator,
    "nnls": NnlsEstimator,
    "table": TableEstimator,
    "boosted": BoostedEstimator,
}
"""From the simplest on."""

FOLDS = 5
SPLITS = 20
HELD_OUT = 0.3
COVERAGE = 0.99
FEWEST_SHAPES = 10

MOST_MAE, MOST_WORST_DECILE = 0.03, 0.10
"""Errors within which the simplest model is good enough."""


@dataclass(frozen=True)
class Score:
    """What an estimator is worth; errors are predicted ÷ measured − 1, on held-out shapes."""

    estimator: str
    mae: float
    """Mean of the sizes of the errors."""
    worst_decile: float
    """Mean of the largest tenth of them."""
    worst: float
    bias: float
    """Mean of the errors; positive where steps are predicted too long."""
    falls: int
    """Of 100,000 random pairs of steps with at most one prefill, how many have a shorter prediction for more work."""
    falls_several: int
    """Of 20,000 with several prefills, which no policy searches over: a blemish, and no reason to refuse a model."""
    problems: tuple[str, ...]
    """Why the model is not certified, see :func:`costmodels.checks.check_cost_model`."""
    repaired: int | None = None
    """Entries of a table that its cumulative maximum along the chunk axis raised."""

    @property
    def certified(self) -> bool:
        """Whether policies and engines can rely on it."""
        return not self.problems and not self.falls

    @property
    def within_targets(self) -> bool:
        """Whether its errors leave no need for a less simple model."""
        return self.mae <= MOST_MAE and self.worst_decile <= MOST_WORST_DECILE


@dataclass(frozen=True)
class Coverage:
    """Shares of held-out rows that took no longer than the P99 margins allow: means over random splits by shape."""

    splits: int
    conformal: float
    conformal_least: float
    """Of a single split."""
    residual_table: float
    margin: float
    """The conformal margin itself, a share of the prediction, on average."""


@dataclass(frozen=True, eq=False)
class Calibration:
    """Fitted models of a profile, and what they are worth."""

    profile: Profile
    rows: pd.DataFrame
    """The rows that were fitted: all but flagged outliers."""
    scores: Mapping[str, Score]
    held_out: Mapping[str, NDArray[np.float64]]
    """Predictions in ns of each row by models that have not seen its shape."""
    picked: str
    model: CalibratedCost
    coverage: Coverage | None
    """``None`` where the rows are too few."""

    @property
    def truth(self) -> str:
        """What the steps are: measured, or composed from the times of kernels."""
        return "composed" if self.profile.provenance.get("composed") else "measured"

    @property
    def why(self) -> str:
        """Say why this estimator was picked."""
        score = self.scores[self.picked]
        if score.within_targets:
            return (
                f"the simplest whose held-out errors are within {MOST_MAE:.0%} on average and {MOST_WORST_DECILE:.0%} "
                "in the worst decile"
            )
        return "of the certified ones, that with the least mean error"

    def card(self, command: str) -> dict[str, Any]:
        """Return what goes into the model's file beside its numbers: what was fitted, how well, and what to mind."""
        frame, provenance = self.rows, self.profile.provenance
        return {
            **self.profile.setting,
            "estimated": self.profile.estimated,
            "command": command,
            "source": provenance["source"],
            "provenance": {k: v for k, v in provenance.items() if k not in ("source", "notes", "estimated")},
            "range": {c: [int(frame[c].min()), int(frame[c].max())] for c in FEATURES},
            "fit": {
                "picked": self.picked,
                "why": self.why,
                "rows": len(frame),
                "shapes": int(frame[list(FEATURES)].drop_duplicates().shape[0]),
                "folds": FOLDS,
                "held_out": {
                    name: {k: _short(v) for k, v in asdict(s).items() if k not in ("estimator", "problems")}
                    for name, s in self.scores.items()
                },
                "p99_margins": self.coverage and {k: _short(v) for k, v in asdict(self.coverage).items()},
            },
            "caveats": list(self.profile.warnings),
        }


def calibrate(profile: Profile, name: str, only: str | None = None, splits: int = SPLITS) -> Calibration:
    """Fit all estimators, score them on folds of shapes, and fit the chosen one to everything with its margins.

    The simplest model whose errors are within the targets is chosen, else the one with the least mean error; never one
    that is not certified.

    Args:
        profile: measured or composed steps; rows flagged as outliers are left out.
        name: of the model.
        only: the estimator to choose, whatever the scores.
        splits: random ones for the coverage of the margins.

    Raises:
        ConfigError: if there are too few shapes, no estimator is named so, or none can be certified.
        CostModelError: if the profile cannot be fitted.
    """
    if only is not None and only not in ESTIMATORS:
        raise ConfigError(f"unknown estimator {only!r}{nearest(only, ESTIMATORS)} ({', '.join(ESTIMATORS)})")
    rows = profile.frame[~profile.outlier].reset_index(drop=True)
    shapes = rows.groupby(list(FEATURES), sort=True).ngroup().to_numpy()
    if shapes.max() + 1 < FEWEST_SHAPES:
        raise ConfigError(
            f"{profile.name}: {shapes.max() + 1} shapes of steps are too few to hold some out; it takes at least "
            f"{FEWEST_SHAPES}"
        )
    steps, ns = rows[list(FEATURES)].to_numpy(), rows["duration_ns"].to_numpy()
    # Shapes are in order; numbers at random keep a fold from being one level of an axis.
    mixed = np.random.default_rng(0).permutation(shapes.max() + 1)[shapes]
    held_out, scores = {}, {}
    for kind, make in ESTIMATORS.items():
        predicted = cross_val_predict(make(), steps, ns, groups=mixed, cv=GroupKFold(FOLDS))
        fitted = make().fit(steps, ns)
        held_out[kind] = predicted
        scores[kind] = score(
            kind, predicted, ns, fitted.compile(name), fitted.within_, getattr(fitted, "repaired_", None)
        )
    picked = only or pick(scores)
    if not scores[picked].certified:
        raise ConfigError(f"{profile.name}: {picked} cannot be used: {_reason(scores[picked])}")
    source = f"{profile.provenance['source']}; {profile.setting['engine']} {profile.setting['engine_version']}"
    model = fit_with_margins(ESTIMATORS[picked](), steps, ns, name, groups=mixed, source=source)
    enough = len(ns) * (1 - HELD_OUT) * HELD_OUT >= 1 / (1 - COVERAGE)
    coverage = measure_coverage(ESTIMATORS[picked], steps, ns, shapes, splits) if enough and splits else None
    return Calibration(profile, rows, scores, held_out, picked, model, coverage)


def pick(scores: Mapping[str, Score]) -> str:
    """Return the simplest certified estimator that is within the targets, else the one with the least mean error.

    Raises:
        ConfigError: if none is certified.
    """
    good = {name: s for name, s in scores.items() if s.certified}
    if not good:
        first, s = next(iter(scores.items()))
        raise ConfigError(f"no model can be used; the first, {first}: {_reason(s)}")
    within = [name for name, s in good.items() if s.within_targets]
    return within[0] if within else min(good, key=lambda name: good[name].mae)


def score(
    kind: str,
    predicted: NDArray[Any],
    ns: NDArray[Any],
    model: CostModel,
    within: tuple[int, ...],
    repaired: int | None = None,
) -> Score:
    """Score held-out predictions, and the model that was fitted to all rows for what policies rely on."""
    error = predicted / ns - 1
    size = np.sort(np.abs(error))
    return Score(
        kind,
        mae=float(size.mean()),
        worst_decile=float(size[-max(len(size) // 10, 1) :].mean()),
        worst=float(size[-1]),
        bias=float(error.mean()),
        falls=count_falls(model, within, PAIRS),
        falls_several=count_falls(model, within, PAIRS // 5, several=True),
        problems=tuple(check_cost_model(model)),
        repaired=repaired,
    )


def measure_coverage(
    make: Callable[[], StepEstimator], steps: NDArray[Any], ns: NDArray[Any], shapes: NDArray[Any], splits: int
) -> Coverage:
    """Return what the P99 margins cover of rows of shapes that neither the model nor its margin has seen.

    In each split 30 % of the shapes are tested, and 30 % of the others calibrate the margin of a model that is fitted
    to the rest.
    """
    conformal, table, margins = [], [], []
    for seed, (known, tested) in enumerate(
        GroupShuffleSplit(splits, test_size=HELD_OUT, random_state=0).split(steps, ns, shapes)
    ):
        fitted, share = split_conformal(
            make(), steps[known], ns[known], COVERAGE, groups=shapes[known], held_out=HELD_OUT, seed=seed
        )
        predicted = fitted.predict(steps[tested])
        conformal.append(float(np.mean(ns[tested] <= predicted * (1 + float(share)))))
        margins.append(float(share))
        inner = GroupShuffleSplit(1, test_size=HELD_OUT, random_state=seed)
        _, rest = next(inner.split(steps[known], ns[known], shapes[known]))
        at = known[rest]
        residuals = residual_table(steps[at, 0], steps[at, 4], ns[at], fitted.predict(steps[at]), COVERAGE)
        careful = WithResiduals(fitted.compile("split"), residuals)
        covered = [
            ns_one <= careful.step_ns(*row)
            for row, ns_one in zip(steps[tested].tolist(), ns[tested].tolist(), strict=True)
        ]
        table.append(float(np.mean(covered)))
    return Coverage(splits, float(np.mean(conformal)), min(conformal), float(np.mean(table)), float(np.mean(margins)))


def _reason(score: Score) -> str:
    if score.problems:
        return score.problems[0]
    return f"its prediction falls in {score.falls} of 100,000 pairs of steps that have more work"


def _short(value: Any) -> Any:
    return round(value, 5) if isinstance(value, float) else value
