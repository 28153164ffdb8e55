"""Cost models for people to look at: their cards, their errors on a profile, and their step times as a picture."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from costmodels.base import CostModel
from costmodels.calibrated import RangeWarning
from costmodels.checks import check_cost_model
from costmodels.kernels import step_grid
from costmodels.profile import FEATURES, Profile
from experiments.orders import PAIRS, count_falls, largest
from experiments.plotting import WIDE, new_figure, save_figure
from experiments.tables import Rows

if TYPE_CHECKING:
    from collections.abc import Iterator

DECODES, CONTEXTS, CHUNKS = (0, 1, 16, 64, 128), (512, 2048), (0, 128, 512, 2048)
"""Shapes that models are compared on without a profile."""

MOST_SHOWN = 30
"""Numbers of a model that are printed; its file has all."""


@contextmanager
def beyond_range() -> Iterator[list[str]]:
    """Collect, in place of warning of it, that a model was used beyond its range."""
    said: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", RangeWarning)
        yield said
    said += list(dict.fromkeys(str(w.message) for w in caught if issubclass(w.category, RangeWarning)))


def step_times(model: CostModel, steps: NDArray[Any]) -> NDArray[np.int64]:
    """Return what a model predicts for features of shape (steps, 6), in ns."""
    return np.array([model.step_ns(*row) for row in np.asarray(steps).tolist()], dtype=np.int64)


def parameters(data: dict[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Return a model's numbers by dotted name; long arrays by their length."""
    shown: list[tuple[str, str]] = []
    for key, value in data.items():
        if key in ("kind", "name", "source", "version"):
            continue
        if isinstance(value, dict):
            shown += parameters(value, f"{prefix}{key}.")
        elif isinstance(value, list) and (len(value) > 12 or any(isinstance(v, dict | list) for v in value)):
            shown.append((f"{prefix}{key}", f"{len(value)} entries"))
        elif isinstance(value, list):
            shown.append((f"{prefix}{key}", ", ".join(map(str, value))))
        else:
            shown.append((f"{prefix}{key}", f"{value:,}" if isinstance(value, int) else str(value)))
    return shown


def kinds(data: dict[str, Any]) -> str:
    """Return a model's kind, from the outermost wrapper in."""
    inner = data.get("model")
    return f"{data.get('kind')} {kinds(inner)}" if isinstance(inner, dict) else str(data.get("kind"))


def check(model: CostModel, pairs: int = PAIRS) -> dict[str, Any]:
    """Return whether policies and engines can rely on a model: what is wrong, and falls of random ordered pairs."""
    with beyond_range():
        problems = check_cost_model(model)
        within = largest(model)
        falls = count_falls(model, within, pairs)
        several = count_falls(model, within, pairs // 5, several=True)
    if falls:
        problems.append(
            f"cost model {model.name}: in {falls} of {pairs:,} random pairs of steps the one with more work is "
            "predicted to be shorter"
        )
    return {
        "name": model.name,
        "ok": not problems,
        "problems": problems,
        "pairs": pairs,
        "falls": falls,
        "falls_several_prefills": several,
        "within": dict(zip(FEATURES, within, strict=True)) if getattr(model, "within", ()) else None,
    }


def compare_on_profile(models: Sequence[CostModel], profile: Profile) -> Rows:
    """Return each model's errors on a profile's rows that are no outliers: predicted ÷ measured − 1."""
    frame = profile.frame[~profile.outlier]
    steps, ns = frame[list(FEATURES)].to_numpy(), frame["duration_ns"].to_numpy(dtype=np.float64)
    rows = []
    for model in models:
        error = step_times(model, steps) / ns - 1
        size = np.sort(np.abs(error))
        rows.append(
            {
                "model": model.name,
                "rows": len(ns),
                "mae": float(size.mean()),
                "worst_decile": float(size[-max(len(size) // 10, 1) :].mean()),
                "worst": float(size[-1]),
                "bias": float(error.mean()),
                "too_short": float(np.mean(error < 0)),
            }
        )
    return rows


def compare_on_grid(models: Sequence[CostModel]) -> Rows:
    """Return the step times of the models in ms on a small grid of shapes, and the others' over the first's."""
    grid = step_grid(DECODES, CONTEXTS, CHUNKS, (0,))
    times = [step_times(model, grid) / 1e6 for model in models]
    rows: Rows = []
    for k, step in enumerate(grid.tolist()):
        n, total, _, _, tokens, _ = step
        row: dict[str, Any] = {"n_decode": n, "context": total // n if n else 0, "prefill_tokens": tokens}
        for model, ms in zip(models, times, strict=True):
            row[f"{model.name} (ms)"] = float(ms[k])
        for model, ms in zip(models[1:], times[1:], strict=True):
            row[f"{model.name} / {models[0].name}"] = float(ms[k] / times[0][k])
        rows.append(row)
    return rows


def draw(models: Sequence[CostModel], folder: Path) -> list[Path]:
    """Write ``costmodel.{png,pdf,csv}``: step time over chunk, over decode batch, and over context."""
    chunks = np.unique(np.geomspace(1, 4096, 80).astype(int))
    batches, contexts = np.arange(1, 257, 3), np.unique(np.geomspace(64, 16384, 60).astype(int))
    panels: tuple[tuple[str, NDArray[Any], Callable[[int], tuple[int, ...]]], ...] = (
        ("prefill tokens, 32 decodes of 1,024", chunks, lambda c: (32, 32 * 1024, 1024, 1, c, c * (c + 1) // 2)),
        ("decodes of 1,024 tokens", batches, lambda n: (n, n * 1024, 1024, 0, 0, 0)),
        ("context of 16 decodes", contexts, lambda k: (16, 16 * k, k, 0, 0, 0)),
    )
    rows: Rows = []
    with new_figure(WIDE, 2.9) as figure:
        for axis, (title, values, shape) in zip(figure.subplots(1, 3), panels, strict=True):
            for model in models:
                ms = step_times(model, np.array([shape(int(v)) for v in values])) / 1e6
                axis.plot(values, ms, label=model.name)
                rows += [
                    {"model": model.name, "over": title, "value": int(v), "step_ms": float(t)}
                    for v, t in zip(values, ms, strict=True)
                ]
            axis.set_xlabel(title, fontsize=8)
            axis.set_ylim(bottom=0)
        figure.axes[0].set_ylabel("step (ms)")
        handles, labels = figure.axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=2)
        return save_figure(figure, folder, "costmodel", rows)
