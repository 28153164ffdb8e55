"""The axes of a sweep: names and dotted keys, each with a list of values, and the cells of their product."""

from __future__ import annotations

import copy
import dataclasses
import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from experiments.cells import Cell, Plugin, Setting, load_plugins
from experiments.config import Config, ConfigError, dotted_keys, suggest
from experiments.draft import EXCLUSIVE, SHORT, Draft
from policies.base import PolicyError
from policies.registry import KINDS
from policies.spec import PolicySpec
from policies.units import ns_from_ms
from sim.objectives import ObjectiveError

PER_CELL = ("policies", "seeds")
"""Axes that every experiment has."""

MOST_RUNS = 1_000_000
"""Of one experiment; more would not be planned today."""

FIXED = ("name", "keep", "plugins", *PER_CELL)
"""Keys that cannot differ between the points of one experiment."""


@dataclass(frozen=True)
class Experiment:
    """An experiment taken apart: its configuration, its axes and its cells in the order of their product."""

    config: Config
    axes: dict[str, list[Any]]
    """Without those that every experiment has."""
    cells: tuple[Cell, ...]
    notes: tuple[str, ...]
    """What a user should know before reading the results."""


def plan(draft: Draft) -> Experiment:
    """Take an experiment apart, and refuse what cannot run.

    A policy without a swept parameter gets one cell for all values of that axis, where its value is ``None``.

    Raises:
        ConfigError, PolicyError, ObjectiveError, CostModelError, TraceError: in one sentence.
    """
    draft = draft.copy()
    taken = draft.take_axes()
    origins = {axis: o if o.startswith("--") else f"{o}: sweep.{axis}" for axis, (_, o) in taken.items()}
    for axis in PER_CELL:
        if axis in taken:
            draft.put(axis, taken.pop(axis)[0], origins[axis])
    axes = {axis: _values(values, origins[axis]) for axis, (values, _) in taken.items()}
    by_key: dict[str, str] = {}
    for axis in axes:
        _check_axis(axis, draft, origins[axis])
        key = SHORT.get(axis, axis)
        if other := by_key.get(key) or by_key.get(EXCLUSIVE.get(key, "")):
            raise ConfigError(f"{origins[axis]} and sweep.{other} exclude each other; give one of them")
        by_key[key] = axis
    config = draft.finish()
    plugins = load_plugins(config.plugins)
    policies = _policies(config)
    runs = math.prod(map(len, axes.values())) * len(policies) * len(config.seeds)
    if runs > MOST_RUNS:
        raise ConfigError(
            f"these are {runs:,} runs ({len(policies)} policies, {len(config.seeds)} seeds and the values of the axes "
            f"{', '.join(axes)}), but one experiment has at most {MOST_RUNS:,}; make several of it"
        )
    swept = [axis for axis in axes if _parameter(axis) is not None]
    for axis in swept:
        if not any(_takes(policy, str(_parameter(axis))) for policy in policies):
            raise ConfigError(f"{origins[axis]}: none of the policies has a parameter {_parameter(axis)}")
    cells: dict[tuple[Any, ...], Cell] = {}
    notes: dict[str, None] = {}
    settings: dict[str, Setting] = {}
    for values in itertools.product(*axes.values()):
        point = dict(zip(axes, values, strict=True))
        outer = {a: v for a, v in point.items() if a not in swept}
        setting = settings.get(repr(outer)) or _setting(draft, outer, origins, plugins)
        settings[repr(outer)] = setting
        if not setting.source.seeded and len(config.seeds) > 1:
            notes[_one_seed(setting)] = None
        for policy in policies:
            own = {a: v if a not in swept or _takes(policy, str(_parameter(a))) else None for a, v in point.items()}
            changed = _with_parameters(policy, {str(_parameter(a)): own[a] for a in swept if own[a] is not None})
            for seed in setting.seeds:
                at = (*map(repr, own.values()), policy.label, seed)
                if at not in cells:
                    cells[at] = setting.cell(changed, seed, own)
    return Experiment(config, axes, tuple(cells.values()), tuple(notes))


def only_cell(experiment: Experiment) -> Cell:
    """Return the cell of an experiment that has just one.

    Raises:
        ConfigError: if there are more policies, seeds or points.
    """
    if experiment.axes:
        raise ConfigError(f"simulate is one run, but [sweep] has {', '.join(experiment.axes)}; use `prefillsim sweep`")
    labels = [cell.label for cell in experiment.cells]
    if len(labels) > 1:
        raise ConfigError(f"simulate is one run, but there are the policies {', '.join(labels)}; give one, with -p")
    return experiment.cells[0]


def _one_seed(setting: Setting) -> str:
    return (
        f"the arrivals of {setting.source.label} are not random, so every seed gives the same run: one seed was run "
        "and there are no confidence intervals; --rate R gives Poisson arrivals that differ by seed"
    )


def _values(values: Any, origin: str) -> list[Any]:
    if not isinstance(values, list) or not values:
        raise ConfigError(f"{origin} is {values!r}, but it should be a list of at least one value")
    if (value := _twice(values)) is not None:
        raise ConfigError(f"{origin} lists {value!r} twice")
    return values


def _twice(values: Iterable[Any]) -> Any:
    """Return the first value that equals one before it, ``None`` where all differ."""
    seen = set()
    for value in values:
        known = repr(value) if isinstance(value, list | dict) else value
        if known in seen:
            return value
        seen.add(known)
    return None


def _parameter(axis: str) -> str | None:
    """Return the policy parameter that an axis sets, if it sets one."""
    key = SHORT.get(axis, axis)
    return key.removeprefix("policy.") if key.startswith("policy.") else None


def _check_axis(axis: str, draft: Draft, origin: str) -> None:
    if axis == "tpot" or _parameter(axis) is not None:
        return
    known = [key for key in dotted_keys() if key not in FIXED]
    if SHORT.get(axis, axis) not in known:
        names = [*SHORT, "tpot", *PER_CELL, "policy.PARAMETER", *known]
        raise ConfigError(f"{origin} is no axis{suggest(axis, names)}")
    if SHORT.get(axis, axis) == "trace.workload" and draft.has("trace.file"):
        raise ConfigError(f"{origin} and trace.file exclude each other; give one of them")


def _policies(config: Config) -> list[PolicySpec]:
    if not config.policies:
        raise ConfigError("no policy: give at least one, like -p sloweave (`prefillsim policies list` shows them)")
    if (text := _twice(config.policies)) is not None:
        raise PolicyError(f"policy {text!r} is given twice; give each policy once")
    return [PolicySpec.parse(text) for text in config.policies]


def _takes(policy: PolicySpec, parameter: str) -> bool:
    return any(part is not None and parameter in part.params for part in (getattr(policy, kind) for kind in KINDS))


def _with_parameters(policy: PolicySpec, values: dict[str, Any]) -> PolicySpec:
    if not values:
        return policy
    data = copy.deepcopy(policy.to_dict())
    for name, value in values.items():
        for kind in KINDS:
            if data[kind] is not None and name in data[kind]["params"]:
                data[kind]["params"][name] = value
    return PolicySpec.from_dict(data)


def _setting(draft: Draft, values: dict[str, Any], origins: dict[str, str], plugins: tuple[Plugin, ...]) -> Setting:
    """Return the setting at one point of the axes that are no policy parameter."""
    at = draft.copy()
    for axis, value in values.items():
        if axis != "tpot":
            at.put(SHORT.get(axis, axis), draft.sought(f"sweep.{axis}", value), origins[axis], f"sweep.{axis}")
    try:
        setting = Setting.of(at.finish(), plugins)
    except ObjectiveError as e:
        if at.origin("slo") == "--slo":
            raise
        raise ConfigError(f"{at.origin('slo')}: {str(e).removeprefix('--')}") from None
    if "tpot" not in values:
        return setting
    tpot = values["tpot"]
    usable = isinstance(tpot, int | float) and not isinstance(tpot, bool) and 0 < tpot < float("inf")
    tpot_ns = ns_from_ms(tpot) if usable else 0
    if tpot_ns < 1:
        raise ConfigError(f"{origins['tpot']} lists {tpot!r}, which should be a positive number of ms")
    return dataclasses.replace(setting, objectives=dataclasses.replace(setting.objectives, tpot_p99=tpot_ns))
