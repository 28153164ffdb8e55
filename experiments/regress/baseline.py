"""Baselines: what every seed of every cell came to, in a file that reads well in a review."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from costmodels.files import read_bounded
from experiments.cells import Cell, canonical, hash_of, jsonable, package_version
from experiments.config import ConfigError
from experiments.regress.metrics import METRICS
from experiments.run import CellResult

SUFFIX = ".baseline.json"

MOST_BYTES = 1 << 28
"""Of a baseline: some hundred thousand runs."""

DIGITS = 10
"""Significant digits that are kept: the last bits of a sum depend on the machine."""

CONFIGURATION = (
    "policy",
    "objectives",
    "cost_model",
    "policy_cost_model",
    "engine",
    "memory",
    "replicas",
    "router",
)
"""Of :meth:`experiments.cells.Cell.resolved`, what a file asks for. The code of plug-ins is what is being checked."""


Figure = Annotated[float, Field(strict=True, ge=0, le=1e15, allow_inf_nan=False)]
"""Of a run; larger ones cannot be, and their sums would have no end."""


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class SeedFigures(_Part):
    """One run."""

    trace: str
    """The trace's hash."""
    metrics: dict[str, Figure | None]
    """By :attr:`experiments.regress.metrics.Metric.name`; ``None`` where nothing was measured."""


class CellFigures(_Part):
    """A policy at one point of the axes, on all its seeds."""

    policy: str
    trace: str
    """The workload's name, or the file's."""
    point: dict[str, Any]
    """The axes and their values."""
    configuration: dict[str, str]
    """Hashes of the resolved parts in :data:`CONFIGURATION`, those that there are."""
    seeds: Annotated[dict[int, SeedFigures], Field(min_length=1)]

    @property
    def key(self) -> bytes:
        """What tells this cell from the others of a file."""
        return canonical([self.trace, self.policy, self.point])

    @property
    def where(self) -> str:
        """The trace and the values of the axes, for people."""
        axes = [f"{a}={v}" for a, v in self.point.items() if v is not None and a not in ("workload", "trace.workload")]
        return ", ".join([self.trace, *axes])

    @property
    def name(self) -> str:
        """One line for people."""
        return f"{self.policy} on {self.where}"


class Baseline(_Part):
    """All cells of one file."""

    format: Literal[1] = 1
    package: str
    """Version of prefillsim that made it."""
    cells: tuple[CellFigures, ...]

    @field_validator("cells")
    @classmethod
    def _each_once(cls, cells: tuple[CellFigures, ...]) -> tuple[CellFigures, ...]:
        keys = [cell.key for cell in cells]
        if len(set(keys)) < len(keys):
            raise ValueError(
                f"{next(cell.name for i, cell in enumerate(cells) if cell.key in keys[:i])} is there twice"
            )
        return cells

    def by_key(self) -> dict[bytes, CellFigures]:
        """Return the cells by what tells them apart."""
        return {cell.key: cell for cell in self.cells}

    def text(self) -> str:
        """Return the file's content: a line per run, so that a review shows the runs that have changed."""
        cells = ",\n".join(_cell_text(cell) for cell in self.cells)
        return f'{{\n "format": {self.format},\n "package": {json.dumps(self.package)},\n "cells": [\n{cells}\n ]\n}}\n'


def _cell_text(cell: CellFigures) -> str:
    seeds = ",\n".join(
        f'    "{seed}": {_line({"trace": figures.trace, "metrics": figures.metrics})}'
        for seed, figures in cell.seeds.items()
    )
    head = "".join(
        f'   "{name}": {_line(getattr(cell, name))},\n' for name in ("policy", "trace", "point", "configuration")
    )
    return f'  {{\n{head}   "seeds": {{\n{seeds}\n   }}\n  }}'


def _line(value: Any) -> str:
    return json.dumps(jsonable(value), ensure_ascii=False, allow_nan=False)


def baseline_of(cells: Iterable[Cell], results: Mapping[str, CellResult]) -> Baseline:
    """Return what a file's cells came to; those that failed are left out."""
    groups: dict[bytes, CellFigures] = {}
    for cell in cells:
        summary = results[cell.key].summary
        if summary is None:
            continue
        resolved = cell.resolved()
        parts = {name: _hash(resolved[name]) for name in CONFIGURATION if resolved[name] is not None}
        empty = CellFigures.model_construct(
            policy=cell.label,
            trace=cell.source.label,
            point=jsonable(dict(cell.point)),
            configuration=parts,
            seeds={},
        )
        metrics = {metric.name: _rounded(summary.get(metric.key)) for metric in METRICS}
        groups.setdefault(empty.key, empty).seeds[cell.seed] = SeedFigures(trace=cell.digest[:16], metrics=metrics)
    return Baseline(package=package_version(), cells=tuple(groups.values()))


def _hash(part: Any) -> str:
    """Return a short hash that a new field without a value does not change."""
    return hash_of({k: v for k, v in part.items() if v is not None} if isinstance(part, dict) else part)[:8]


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.{DIGITS}g}")


def baseline_path(file: Path) -> Path:
    """Return where the baseline of a TOML file is: beside it."""
    return file.with_name(file.stem + SUFFIX)


def read_baseline(path: Path) -> Baseline | None:
    """Return a baseline, ``None`` where there is no such file.

    Raises:
        ConfigError: if it is none.
    """
    try:
        content = read_bounded(path, MOST_BYTES)
        baseline = Baseline.model_validate_json(content)
        json.loads(content, object_pairs_hook=_each_name_once)
    except FileNotFoundError:
        return None
    except ValidationError as e:
        first = e.errors()[0]
        at = ".".join(map(str, first["loc"]))
        wrong = f"{at + ': ' if at else ''}{first['msg'].removeprefix('Value error, ')}"
    except ValueError as e:
        wrong = str(e)
    else:
        return baseline
    raise ConfigError(f"{path} is not a baseline of this version of prefillsim ({wrong}); --update writes it anew")


def _each_name_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Refuse what the two sides of a merge leave behind where both are kept: the later would count, without a word."""
    names = dict(pairs)
    if len(names) < len(pairs):
        counted = Counter(name for name, _ in pairs)
        raise ValueError(f"{json.dumps(counted.most_common(1)[0][0])} is there twice in one place")
    return names
