"""On a GPU: how long requests take by new and cached tokens, as a profile table, and what models make of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.model_selection import GroupKFold, cross_val_predict

from costmodels.base import CostModel, CostModelError
from costmodels.conformal import FOLDS
from costmodels.conformal import calibrate as fit_with_margins
from costmodels.estimator import StepEstimator, prefill_contexts
from costmodels.hardware import load_gpu
from costmodels.io import save_cost_model
from costmodels.jct import ESTIMATORS
from costmodels.jct_fit import jct_from_profile
from costmodels.linear_fit import LinearEstimator
from costmodels.nnls_fit import NnlsEstimator
from costmodels.parallel import prefill_cost
from costmodels.profile import FEATURES, Profile
from gpu_runner.hybrid.bench import HybridBench
from gpu_runner.hybrid.on_gpu_book import Part
from gpu_runner.hybrid.on_gpu_subject import BLOCK, Subject
from gpu_runner.profile import Plan, Visit, run_profile
from gpu_runner.profiling.grid import Axes, Cell
from gpu_runner.profiling.journal import Entry

REPEATS = 3
CHECKED = 4
FEWEST = 4
"""Shapes that a fit needs."""
PAPER_PEARSON = 0.987
"""Of JCT and uncached tokens: Qwen-32B, FP8, one A100 (PrefillOnly §6.3)."""

FITS: dict[str, type[StepEstimator]] = {"linear": LinearEstimator, "nnls": NnlsEstimator}


class ShortPlan(Plan):
    """A plan for when time is short: no round to warm up, and the cheapest cells alone are measured again."""

    def visits(self, entries: Sequence[Entry]) -> list[Visit]:
        return [visit for visit in super().visits(entries) if visit[0] is not None]

    def checks(self) -> list[Cell]:
        return sorted(self.cells, key=_size)[:CHECKED]


def jct(subject: Subject, part: Part, folder: Path, about: Mapping[str, Any]) -> None:
    """Measure the grid with the engine as a replay has it, write ``jct.parquet``, and fit ``jct.json`` to it.

    The cells that would take longest are left out until a round fits a third of the time.
    """
    sizes = subject.sizes
    subject.hold(max(sizes.contexts))
    bench = HybridBench(subject.engine, seed=subject.seed)
    axes = Axes(decodes=(0,), decode_contexts=(1,), prefill_tokens=sizes.tokens, prefill_contexts=sizes.contexts)
    fitting = [cell for cell in axes.cells(BLOCK) if bench.why_not(cell) is None]
    cells = _affordable(subject, fitting, part.left_s / REPEATS)
    part.left_out += len(fitting) - len(cells)
    plan = Plan.of(bench, cells, REPEATS, subject.seed)
    short = ShortPlan(plan.cells, plan.repeats, plan.seed, plan.skipped)
    bench.measure(min(cells, key=_size))
    outcome = run_profile(
        bench,
        short,
        folder / "jct.parquet",
        folder / "jct.journal.jsonl",
        {**about, "energy": "not measured"},
        max_s=part.left_s,
    )
    part.left_out += outcome.incomplete
    profile = outcome.profile
    part.summary |= {"rows": len(profile), "quality": outcome.quality.to_dict(), "pearson": pearson(profile)}
    part.summary["pearson"]["paper"] = PAPER_PEARSON
    for shape, group in profile.frame.groupby(profile.shape):
        tokens, cached, ns = _columns(profile, group.index.to_numpy())
        part.add(shape=int(str(shape)), tokens=int(tokens[0]), cached=int(cached[0]), ns=[int(n) for n in ns.tolist()])
    fit(subject, part, profile, folder)


def fit(subject: Subject, part: Part, profile: Profile, folder: Path) -> None:
    """Fit cost models and JCT estimators, and compare what they say with what was measured.

    Errors are predicted over measured, less 1, of shapes held out for the fits of step times, and of all shapes for
    the JCT estimators and for the model from data sheets, which has seen none of them.
    """
    steps, ns = profile.frame[list(FEATURES)].to_numpy(), profile.frame["duration_ns"].to_numpy()
    shapes = len(np.unique(profile.shape))
    if shapes < FEWEST:
        part.summary["fit"] = f"{shapes} shapes are too few to fit a model to; it takes at least {FEWEST}"
        return
    # Shapes are in order; numbers at random keep a fold from being one level of an axis.
    groups = np.random.default_rng(0).permutation(shapes)[profile.shape]
    compared = {}
    for name, kind in FITS.items():
        held_out = cross_val_predict(kind(), steps, ns, groups=groups, cv=GroupKFold(min(FOLDS, shapes)))
        compared[f"step time, {name}"] = _errors(held_out, ns)
    tokens, cached, _ = _columns(profile, np.arange(len(profile)))
    for name in ESTIMATORS:
        estimator = jct_from_profile(name, NnlsEstimator(), steps, ns)
        predicted = [estimator.ns(int(t + c), int(c)) for t, c in zip(tokens, cached, strict=True)]
        compared[f"jct, {name}"] = _errors(np.array(predicted, dtype=np.float64), ns)
    card = subject.card()
    if card is not None:
        sheet: CostModel = prefill_cost(subject.shape, load_gpu(card))
        predicted = [sheet.step_ns(*(int(v) for v in row)) for row in steps]
        compared[f"data sheet, {card}"] = _errors(np.array(predicted, dtype=np.float64), ns)
    part.summary["errors"] = compared
    try:
        model = fit_with_margins(
            NnlsEstimator(), steps, ns, profile.setting["model"], groups=groups, source=profile.provenance["source"]
        )
    except CostModelError as e:
        part.summary["model"] = f"none: {e}"
        return
    save_cost_model(model, folder / "jct.json", {**profile.setting, "source": profile.provenance["source"]})
    part.summary["model"] = "jct.json"


def pearson(profile: Profile) -> dict[str, float | None]:
    """Return the correlation of JCT with uncached tokens: of all requests, and of those with and without a prefix."""
    tokens, cached, ns = _columns(profile, np.arange(len(profile)))
    chosen = {"all": cached >= 0, "without_prefix": cached == 0, "with_prefix": cached > 0}
    return {
        name: float(np.corrcoef(tokens[rows], ns[rows])[0, 1]) if len(np.unique(tokens[rows])) > 1 else None
        for name, rows in chosen.items()
    }


def _columns(profile: Profile, rows: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Return new tokens, cached tokens and nanoseconds of some rows."""
    frame = profile.frame.iloc[rows]
    steps = frame[list(FEATURES)].to_numpy(dtype=np.float64)
    return steps[:, 4], prefill_contexts(steps), frame["duration_ns"].to_numpy(dtype=np.float64)


def _errors(predicted: NDArray[Any], ns: NDArray[Any]) -> dict[str, float]:
    error = predicted / ns - 1
    return {"mean": float(np.abs(error).mean()), "worst": float(np.abs(error).max()), "bias": float(error.mean())}


def _affordable(subject: Subject, cells: Sequence[Cell], seconds: float) -> list[Cell]:
    """Return the cells without the largest ones, so that all of them together take so many seconds."""
    chosen = sorted(cells, key=lambda c: subject.expected_s(c.prefill_tokens, c.prefill_context))
    spent = 0.0
    for i, cell in enumerate(chosen):
        spent += subject.expected_s(cell.prefill_tokens, cell.prefill_context)
        if spent > seconds and i >= 2:
            return chosen[:i]
    return chosen


def _size(cell: Cell) -> int:
    return cell.prefill_tokens * (cell.prefill_tokens + cell.prefill_context)
