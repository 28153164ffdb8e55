"""Validations as the command asks for them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from tqdm import tqdm

from gpu_runner.validate.prediction import FITTING_ROUNDS, fit_host, kernels_of, llm_of, predict
from gpu_runner.validate.recorded import is_recorded, read_recorded
from gpu_runner.validate.recorded_report import first_seconds_section, judged_section, other_section
from gpu_runner.validate.sections import Section
from gpu_runner.validate.stored import Content, stored_sections
from gpu_runner.validate.tolerances import Tolerances, ValidationError
from sim.objectives import Objectives


def recorded_sections(
    folders: Sequence[Path],
    tolerances: Tolerances,
    objectives: Objectives | None = None,
    cost_model: str | None = None,
    pipeline_depth: int | None = None,
    llm: str | None = None,
    content: Content = lambda info: None,
) -> list[Section]:
    """Return the sections of a validation against recorded runs: one public run, or repeats in run folders.

    Raises:
        ValidationError: if they cannot be used so.
        StoreError, CostModelError, PolicyError: if what they hold cannot be read or simulated.
    """
    public = [folder for folder in folders if is_recorded(folder)]
    if not public:
        if llm is not None:
            raise ValidationError("--llm is for public runs with kernel times; a run folder takes --cost-model")
        return stored_sections(folders, tolerances, objectives, cost_model, pipeline_depth, content)
    if len(folders) > 1:
        raise ValidationError(f"{public[0]} is a public run, of which one is validated at a time")
    if cost_model is not None:
        raise ValidationError(f"{public[0]} brings its kernel times; --cost-model is for run folders")
    return _public(public[0], tolerances, pipeline_depth, llm)


def _public(folder: Path, tolerances: Tolerances, pipeline_depth: int | None, llm: str | None) -> list[Section]:
    recorded = read_recorded(folder)
    kernels = kernels_of(recorded, llm_of(recorded, llm))
    judged = pipeline_depth or recorded.config.pipeline_depth
    with tqdm(total=2 + FITTING_ROUNDS, unit="run", file=sys.stderr, disable=None, leave=False) as bar:
        plain = predict(recorded, kernels, judged)
        bar.update()
        fitted = fit_host(recorded, kernels, plain, bar.update)
        other = predict(recorded, kernels, 3 - judged)
        bar.update()
    steps = first_seconds_section(recorded, kernels, tolerances)
    ends = [judged_section(recorded, plain, fitted, tolerances), other_section(recorded, other, tolerances)]
    return ends if steps is None else [steps, *ends]
