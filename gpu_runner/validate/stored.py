"""Run folders of a real engine, simulated again from their requests, policy, limits and memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from costmodels.base import CostModel
from costmodels.io import cost_model_from_dict, load_cost_model
from gpu_runner.validate.ends import sample_of
from gpu_runner.validate.ends_report import ends_section
from gpu_runner.validate.pictures import steps_picture
from gpu_runner.validate.sections import Section, steps_section
from gpu_runner.validate.step_times import StepErrors, predicted_ns
from gpu_runner.validate.tolerances import Tolerances, ValidationError
from policies.spec import PolicySpec
from policies.units import MS
from sim.engine import simulate
from sim.limits import Limits
from sim.memory import Memory
from sim.objectives import Objectives
from sim.records import Tables
from sim.store import StoredRun, read_run
from traces.schema import Trace

STEP_FEATURES = ("n_decode", "decode_context", "decode_context_max", "n_prefill", "prefill_tokens", "prefill_pairs")

BLIND = (
    "The engine's prefix cache was hit, but the trace that was replayed cannot be read any more, so the simulated "
    "prompts share nothing."
)

Content = Callable[[Mapping[str, Any]], Trace | None]
"""Finds the trace that a ``run.json`` names, for what its prompts have in common; ``None`` where it cannot."""


def trace_of(run: StoredRun, content: Trace | None = None) -> Trace:
    """Return what arrived in a run.

    Args:
        run: of any host.
        content: the trace that was replayed, for what its prompts have in common; without it they share nothing.

    Raises:
        ValidationError: if ``content`` is another trace.
    """
    r = run.requests
    n = len(r["arrival_ns"])
    segments = None
    if content is not None:
        content = content.limit(n)
        if not np.array_equal(content.prompt_tokens, r["prompt_tokens"]):
            raise ValidationError(
                f"trace {content.name} is not the one that was replayed: its prompts differ in length"
            )
        segments = content.segments
    order = np.argsort(r["arrival_ns"], kind="stable").astype(np.int64)
    trace = Trace(
        arrival_ns=np.sort(r["arrival_ns"]),
        prompt_tokens=r["prompt_tokens"][order],
        output_tokens=r["output_tokens"][order],
        segments=None if segments is None else segments.select(order),
        session=r["session"][order] if "session" in r else None,
        tenant=r["tenant"][order] if "tenant" in r else None,
        slo_ttft_ns=r["slo_ttft_ns"][order],
        slo_tpot_ns=r["slo_tpot_ns"][order],
        id=r["id"][order],
        name="recorded",
    )
    start = int(trace.arrival_ns[0]) if n else 0
    return replace(trace, arrival_ns=trace.arrival_ns - min(start, 0))


def simulate_again(
    run: StoredRun,
    cost: CostModel,
    content: Trace | None = None,
    pipeline_depth: int | None = None,
    objectives: Objectives | None = None,
) -> Tables:
    """Simulate what was run, under the policy, limits and memory that its ``run.json`` resolved.

    Raises:
        ValidationError: if ``run.json`` does not say what the run was made with.
        PolicyError: if the policy cannot work so.
    """
    resolved = run.info.get("resolved")
    if not isinstance(resolved, dict) or "policy" not in resolved:
        raise ValidationError("run.json lacks resolved.policy: it does not say what the run was made with")
    trace = trace_of(run, content)
    limits = Limits(**_known(Limits, resolved.get("engine")))
    if pipeline_depth is not None:
        limits = replace(limits, pipeline_depth=pipeline_depth)
    memory = resolved.get("memory")
    return simulate(
        trace,
        PolicySpec.from_dict(resolved["policy"]).build(),
        cost,
        predictor=_model(resolved.get("policy_cost_model")),
        objectives=objectives or Objectives(**_known(Objectives, resolved.get("objectives"))),
        limits=limits,
        cache=None if memory is None else Memory(**_known(Memory, memory)).build(trace),
    )


def _known(kind: type[Any], given: Any) -> dict[str, Any]:
    names = {f.name for f in fields(kind)}
    return {key: value for key, value in (given or {}).items() if key in names}


def _model(data: Any) -> CostModel | None:
    return None if data is None else cost_model_from_dict(data, "run.json")


def cost_of(run: StoredRun, name: str | None) -> CostModel:
    """Return the cost model named, or else the one that the run was made with.

    Raises:
        ValidationError: if there is neither.
        CostModelError: if it cannot be read.
    """
    if name is not None:
        return load_cost_model(name)
    stored = (run.info.get("resolved") or {}).get("cost_model")
    if stored is None:
        raise ValidationError("run.json names no cost model; say what steps take with --cost-model")
    return cost_model_from_dict(stored, "run.json")


def stored_sections(
    folders: Sequence[Path],
    tolerances: Tolerances,
    objectives: Objectives | None = None,
    cost_model: str | None = None,
    pipeline_depth: int | None = None,
    content: Content = lambda info: None,
) -> list[Section]:
    """Return levels L1 and L3 of repeats of one run, each simulated with its own arrivals.

    Raises:
        StoreError: if a folder holds no run.
        ValidationError: if a run cannot be simulated again, or the folders are not repeats of one.
    """
    runs = [read_run(folder) for folder in folders]
    policies = {str((run.info.get("resolved") or {}).get("policy")) for run in runs}
    if len(policies) > 1:
        raise ValidationError("the recorded folders are runs of different policies; give repeats of one")
    measured, simulated, predicted, real = [], [], [], []
    blind = False
    for folder, run in zip(folders, runs, strict=True):
        cost = cost_of(run, cost_model)
        known = content(run.info)
        blind |= known is None and bool((run.requests["cached_tokens"] > 0).any())
        try:
            tables = simulate_again(run, cost, known, pipeline_depth, objectives)
        except ValidationError as e:
            raise ValidationError(f"{folder}: {e}") from None
        goals = objectives or Objectives(**_known(Objectives, (run.info.get("resolved") or {}).get("objectives")))
        measured.append(sample_of(run.requests, run.steps, run.preemptions, goals))
        simulated.append(sample_of(tables.requests, tables.steps, tables.preemptions, goals))
        if len(run.steps.get("start_ns", ())):
            predicted.append(predicted_ns(cost, np.stack([run.steps[name] for name in STEP_FEATURES], axis=1)))
            real.append(run.steps["duration_ns"])
    label = str(runs[0].info.get("policy", folders[0].name))
    sections = []
    if real:
        ours, theirs = np.concatenate(predicted), np.concatenate(real)
        picture = steps_picture(ours / MS, theirs / MS, tolerances.of("step"))
        sections.append(steps_section(StepErrors.of(ours, theirs), tolerances, f"steps of {label}", pictures=[picture]))
    ends = ends_section(label, measured, simulated, tolerances)
    if blind:
        ends = replace(ends, text=[*ends.text, BLIND])
    return [*sections, ends]
